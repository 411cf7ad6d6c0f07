"""How the batch that is computed right now lies in memory: which samples its rows hold, and where they have padding.

Dropout asks for it, so that what is left out of a sample depends on the sample alone, and attention does, so that it
need not look at a mask on the device. It is a state of this process and not an argument, because what asks stands deep
inside models of other people.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

LENGTHS = "lengths"
"""The name of a tensor of a batch that stays on the host: the tokens of each row, which lie on the left of it."""
UNPADDED = "unpadded"
"""The name of an empty tensor that a batch has where its attention mask hides nothing."""
ROW_SAMPLES = "row_samples"
"""The name of a tensor of a batch that is taken out of it before the task sees it: for each row the sample that it
belongs to, by its place in the batch, int64 (rows,). Without it a batch has a row for each sample, in their order."""
ON_THE_LEFT = "on_the_left"
"""The name of an empty tensor that a batch has where it is padded on the left: there dropout is drawn by the column."""
NOTES = (LENGTHS, UNPADDED, ROW_SAMPLES, ON_THE_LEFT)
"""What of a batch is not for the model."""


class Counted(NamedTuple):
    """Members of groups, one after another."""

    group: torch.Tensor
    """The group of each, int64."""
    number: torch.Tensor
    """Its number in the group, int64."""


class RunOrder(NamedTuple):
    """How the tokens of rows that lie end to end lie where each row of each head is a matrix: row, head, token."""

    source: torch.Tensor
    """The place of each among tokens and heads, int64 (tokens * heads,)."""
    back: torch.Tensor
    """The other way round."""
    tokens: Counted
    """Each of them in its row and head."""


@dataclass(frozen=True)
class EndToEnd:
    """The rows of a batch without their padding, one after another in one row of so many `tokens`."""

    tokens: int
    row: torch.Tensor
    """The row that each token comes from, int64 (tokens,)."""
    position: torch.Tensor
    """Its place in that row, int64 (tokens,)."""
    place: torch.Tensor
    """Its place in the padded batch, all rows counted through, int64 (tokens,)."""
    starts: torch.Tensor
    """Where each row begins, and at the end where the last one ends, int32 (rows + 1,)."""
    runs: tuple[tuple[int, int], ...]
    """Rows of equal length that follow each other: how many, and their length."""
    known: dict[tuple[str, int], Any] = field(default_factory=dict)
    """What was worked out for numbers of heads."""

    def order(self, heads: int) -> RunOrder:
        """Return how the tokens of so many heads lie as matrices; the host waits for nothing."""
        if ("order", heads) not in self.known:
            lengths = torch.tensor([length for count, length in self.runs for _ in range(count)])
            tokens = counted(lengths.repeat_interleave(heads))
            starts = lengths.cumsum(0) - lengths
            source = (starts[tokens.group // heads] + tokens.number) * heads + tokens.group % heads
            back = torch.empty_like(source)
            back[source] = torch.arange(len(source))
            device = self.row.device
            self.known["order", heads] = RunOrder(sent(source, device), sent(back, device), tokens)
        found: RunOrder = self.known["order", heads]
        return found

    def pairs(self, heads: int) -> Counted:
        """Return for each two tokens that a token of a head may see the token that does, on the host."""
        if ("pairs", heads) not in self.known:
            lengths = torch.tensor([length for count, length in self.runs for _ in range(count * heads)])
            self.known["pairs", heads] = counted((lengths[self.order(heads).tokens.group] + 1) // 2)
        found: Counted = self.known["pairs", heads]
        return found


@dataclass
class Trial:
    """What is noticed while a model is tried on a few samples, before the first step."""

    running: list[torch.nn.Module] = field(default_factory=list)
    """The modules that are running, from the outer to the inner."""
    callers: set[torch.nn.Module] = field(default_factory=set)
    """Those that call dropout as a function, on tensors of which the samples are known."""
    strangers: set[torch.nn.Module] = field(default_factory=set)
    """Those that call it on others, too."""
    knows_lengths: bool = False
    """Whether a model that can compute without padding was given a batch of which the lengths are known."""
    given: dict[torch.nn.Module, list[torch.Tensor]] = field(default_factory=dict)
    """What was dropped out of, by the module that asked: the sums of its tensors. They differ between processes that
    split a layer where such a tensor is a part of a larger one."""

    def note(self, module: torch.nn.Module, values: torch.Tensor) -> None:
        """Note of which tensor a module drops something out."""
        self.given.setdefault(module, []).append(values.double().sum())


@dataclass(frozen=True)
class LateKeys:
    """Keys of rows (see `Layout.keys`) that are made when a dropout first asks for them: many models have none."""

    rows: int
    make: Callable[[], torch.Tensor]

    @cached_property
    def made(self) -> torch.Tensor:
        """The keys, the same for all copies of a layout."""
        return self.make()


@dataclass
class Layout:
    """What is known of the batch that is computed right now."""

    keys: torch.Tensor | LateKeys | None = None
    """What dropout is drawn from, for each row, and at the end once for none, int32 (rows + 1,); None draws it from
    torch's generator."""
    shape: torch.Size | None = None
    """Rows and tokens of its attention mask, if that is known."""
    padded: bool = True
    """Whether that mask hides anything."""
    on_the_right: bool = False
    """Whether what it hides is on the right, where no token of a causal model looks."""
    lengths: tuple[int, ...] | None = None
    """The tokens of each row, if all padding is on the right."""
    end_to_end: EndToEnd | None = None
    """Set while the model computes without the padding."""
    part: int = 0
    """This process's number among those that split the layers of a model (tensor parallel)."""
    calls: dict[int, int] = field(default_factory=dict)
    """How often each dropout was asked since the batch began."""
    callers: list[torch.nn.Module] = field(default_factory=list)
    """The modules, from the outer to the inner, that are running and call dropout as a function."""
    is_restored: bool = False
    """Whether activations are computed again, and `calls` is what it was when they were computed first."""
    trial: Trial | None = None
    """Set while a model is tried."""
    hashes: dict[tuple[str, int, torch.device], torch.Tensor] = field(default_factory=dict)
    """What dropout has made of the keys, to be used again, by the device that it lies on."""

    @property
    def rows(self) -> int:
        """The rows that there are keys for."""
        if isinstance(self.keys, LateKeys):
            return self.keys.rows
        return 0 if self.keys is None else len(self.keys) - 1

    def made_keys(self, device: torch.device) -> torch.Tensor:
        """Return the keys, of a batch that has any, on a device: layers may lie on several (`model.device_map`)."""
        assert self.keys is not None
        place = "keys", 0, device
        if place not in self.hashes:
            made = self.keys.made if isinstance(self.keys, LateKeys) else self.keys
            self.hashes[place] = made.to(device, non_blocking=True)
        return self.hashes[place]


_now = Layout()


def layout() -> Layout:
    """Return what is known of the batch that is computed right now."""
    return _now


@contextmanager
def using(chosen: Layout) -> Iterator[Layout]:
    """Let `layout()` be this one in the block."""
    global _now
    before, _now = _now, chosen
    try:
        yield chosen
    finally:
        _now = before


def drawing_from(keys: torch.Tensor | LateKeys | None, part: int = 0) -> AbstractContextManager[Layout]:
    """Draw dropout from these keys (see `Layout.keys`) in the block: forward and backward pass of one micro-batch."""
    return using(Layout(keys=keys, part=part))


def note_padding(lengths: Sequence[int], side: str = "right") -> dict[str, torch.Tensor]:
    """Return what a collate function adds to a batch of rows of these lengths, padded on this side."""
    notes = {UNPADDED: torch.empty(0)} if min(lengths) == max(lengths) else {}
    return {**notes, **({LENGTHS: torch.tensor(lengths)} if side == "right" else {ON_THE_LEFT: torch.empty(0)})}


def end_to_end(lengths: Sequence[int], longest: int, device: torch.device) -> EndToEnd:
    """Return how rows of these lengths, padded to the longest, lie without their padding.

    The host waits for nothing: it knows the lengths, and sends them once.
    """
    host = torch.tensor(lengths)
    on_device = sent(host, device)
    tokens = sum(lengths)
    rows = torch.repeat_interleave(torch.arange(len(lengths), device=device), on_device, output_size=tokens)
    starts = F.pad(on_device.cumsum(0), (1, 0))
    position = torch.arange(tokens, device=device) - starts[rows]
    runs = tuple((len(list(equal)), length) for length, equal in groupby(lengths))
    return EndToEnd(tokens, rows, position, rows * longest + position, starts.to(torch.int32), runs)


def counted(sizes: torch.Tensor) -> Counted:
    """Return the members of groups of these sizes."""
    group = torch.repeat_interleave(sizes)
    return Counted(group, torch.arange(len(group)) - (sizes.cumsum(0) - sizes)[group])


def sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor of the host on a device, without waiting for the copy."""
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def kept_for_recomputation() -> tuple[AbstractContextManager[None], AbstractContextManager[Layout]]:
    """Return the `context_fn` of activation checkpointing: computed again, a layer finds the layout that it had."""
    restored = replace(_now, calls=dict(_now.calls), callers=list(_now.callers), is_restored=True)
    return nullcontext(), using(restored)


# The older, reentrant kind needs inputs with a gradient, which adapters on frozen weights do not have.
CHECKPOINTING = {"use_reentrant": False, "context_fn": kept_for_recomputation}
"""What Transformers is told of activation checkpointing."""
