"""Everything random is drawn from what it is for, never from how often a generator was called before."""

from hashlib import blake2b


def seed_for(seed: int, purpose: str, *indices: int) -> int:
    """Return a 63-bit seed for one purpose, such as (seed, "dropout", step, rank, micro-batch). Costs about 2 us."""
    text = "/".join([str(seed), purpose, *map(str, indices)])
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
