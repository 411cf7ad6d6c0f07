"""Dropout that knows the sample: what is left out depends on the sample, and never on how a batch is cut or laid out.

Each element of a mask is a hash of (seed, step, sample, which dropout of the model, position in the sample, feature).
The first three are hashed into a key for each row (`KeyedRows` in `toolkit/data/loader.py`), and here the rest is mixed
in: first what there is little of, the feature last. A dropout is known by the name of its module, since a count of
calls would change where activations are computed again.
"""

from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from typing import Any

import torch
import torch.nn.functional as F

from toolkit.batch_layout import Counted, Layout, layout
from toolkit.errors import UserError

GOLDEN = 0x9E3779B9 - 2**32
NUMBER = "dropout_number"
"""The attribute of a module by which its dropout is told from the others'."""
SHARED = ("pos_dropout",)
"""Dropouts of tables that all samples share (DeBERTa's relative positions): one mask for a step."""
STEPS = 2**16
"""A rate is rounded to one of so many, and what is kept is scaled by exactly that: two elements share a hash."""

torch_dropout = F.dropout


def mix(values: torch.Tensor) -> torch.Tensor:
    """Hash int32 to int32, one to one, in place: the function lowbias32 (Wellons, 2018)."""
    values ^= (values >> 16).bitwise_and_(0xFFFF)  # a shift of signed numbers repeats the sign
    values *= 0x7FEB352D
    values ^= (values >> 15).bitwise_and_(0x1FFFF)
    values *= 0x846CA68B - 2**32
    values ^= (values >> 16).bitwise_and_(0xFFFF)
    return values


def numbered(count: int, device: torch.device, first: int = 0) -> torch.Tensor:
    """Return the numbers from `first` on, spread over the range of int32: (count,)."""
    return torch.arange(first, first + count, dtype=torch.int32, device=device) * GOLDEN


def one_more(hashes: torch.Tensor, count: int, first: int = 0) -> torch.Tensor:
    """Return hashes with one more dimension of this size mixed in; it begins at the number `first`."""
    return mix(hashes.unsqueeze(-1) + numbered(count, hashes.device, first))


def in_groups(hashes: torch.Tensor, members: Counted) -> torch.Tensor:
    """Return what `one_more` does for groups of different sizes: a hash for each of their members."""
    return mix(hashes[members.group] + members.number.to(torch.int32) * GOLDEN)


def kept(hashes: torch.Tensor, count: int, rate: float) -> torch.Tensor:
    """Return which elements are kept, bool, with one more dimension of this size than the hashes have."""
    return kept_of(one_more(hashes, (count + 1) // 2).view(torch.int16)[..., :count], rate)


def kept_of(halves: torch.Tensor, rate: float) -> torch.Tensor:
    """Return which elements are kept, bool, given half a hash for each, int16."""
    return halves >= threshold_of(rate)


def threshold_of(rate: float) -> int:
    """Return the least of the signed 16-bit numbers that are kept."""
    return round(rate * STEPS) - STEPS // 2


def scale_of(rate: float) -> float:
    """Return what the values that are kept are multiplied by, so that their mean stays what it was."""
    left = 1 - round(rate * STEPS) / STEPS
    return 1 / left if left else 0.0


def masked(values: torch.Tensor, keep: torch.Tensor, rate: float) -> torch.Tensor:
    """Return the values that are kept, scaled, and zero for the others."""
    return values * (keep.to(values.dtype) * scale_of(rate))


def dropped(values: torch.Tensor, hashes: torch.Tensor, rate: float) -> torch.Tensor:
    """Return the values without what is left out, given hashes of their shape without the last dimension."""
    if values.device.type == "cuda":
        return one_kernel()(values, hashes, threshold_of(rate), scale_of(rate))
    return masked(values, kept(hashes, values.shape[-1], rate), rate)


def in_one_kernel(values: torch.Tensor, hashes: torch.Tensor, threshold: int, scale: float) -> torch.Tensor:
    """Return what `dropped` does, in operations that a compiler makes one kernel of: no view of half the width."""
    feature = torch.arange(values.shape[-1], dtype=torch.int32, device=values.device)
    mixed = mix(hashes.unsqueeze(-1) + (feature >> 1) * GOLDEN)
    half = torch.where((feature & 1) == 1, mixed >> 16, (mixed << 16) >> 16)
    return values * ((half >= threshold).to(values.dtype) * scale)


@cache
def one_kernel() -> Callable[[torch.Tensor, torch.Tensor, int, float], torch.Tensor]:
    """Return `in_one_kernel` compiled for a GPU; as it is if it can't be compiled, or would give other masks there.

    (For CPUs the compiler of torch 2.13 makes other masks of some shapes. They are not compiled there.)
    """
    compiled = torch.compile(in_one_kernel, dynamic=True)
    hashes = numbered(77 * 13, torch.device("cuda")).view(77, 13)
    values = torch.ones(77, 13, 95, device="cuda")
    with torch.no_grad():
        try:
            found = compiled(values, hashes, -26214, 1.25)
        except Exception:
            return in_one_kernel
        same = torch.equal(found, in_one_kernel(values, hashes, -26214, 1.25))
    return compiled if same else in_one_kernel


def by_row(own: Layout, number: int, device: torch.device) -> torch.Tensor:
    """Return a hash for each row, (rows,), for the dropout of this number; each of its calls has another."""
    return mix(own.made_keys(device)[:-1] ^ called(own, number))


def called(own: Layout, number: int) -> int:
    """Return the number of a dropout with how often it was asked in this batch before: a module may be used twice.

    Raises:
        UserError: activations are computed again, and it is not known for which of its calls.
    """
    before = own.calls.get(number, 0)
    if not own.is_restored and torch._C._current_graph_task_id() != -1:
        # A backward pass is under way: the network's own activation checkpointing computes something again.
        if before > 1:
            raise UserError(
                "a module with dropout runs several times in one forward pass and is computed again in the backward "
                "pass, and which of its masks is meant is not known; give torch.utils.checkpoint "
                "context_fn=toolkit.batch_layout.kept_for_recomputation"
            )
        return number
    own.calls[number] = before + 1
    return signed(number + before * 0x3C6EF372)


def by_token(own: Layout, number: int, tokens: int, device: torch.device) -> torch.Tensor:
    """Return a hash for each token: (rows, tokens), or without padding (all tokens,).

    What does not depend on the dropout is made once for a batch.
    """
    end_to_end = own.end_to_end
    place = ("end to end", 0, device) if end_to_end is not None else ("padded", tokens, device)
    if place not in own.hashes:
        rows = mix(own.made_keys(device)[:-1].clone())
        if end_to_end is not None:
            own.hashes[place] = mix(rows[end_to_end.row] + end_to_end.position.to(torch.int32) * GOLDEN)
        else:
            own.hashes[place] = one_more(rows, tokens)
    return mix(own.hashes[place] ^ called(own, number))


Drop = Callable[[torch.Tensor, float, int, Layout], torch.Tensor | None]
"""Returns values without what is left out, at a rate, for the dropout of a number; None where it is not known which
samples they belong to."""


def elements(values: torch.Tensor, rate: float, number: int, own: Layout) -> torch.Tensor | None:
    """Drop each element by itself."""
    shape = values.shape
    if own.end_to_end is not None and shape[:-1] in ((1, own.end_to_end.tokens), (own.end_to_end.tokens,)):
        return dropped(values, by_token(own, number, 0, values.device).view(shape[:-1]), rate)
    if not values.ndim or shape[0] != own.rows:
        flat = own.shape is not None and own.end_to_end is None and shape[:1] == (own.shape.numel(),)
        if flat and values.ndim == 2 and own.shape is not None and own.shape[0] == own.rows:
            return dropped(values, by_token(own, number, own.shape[1], values.device).flatten(), rate)
        return None
    if values.ndim == 1:
        return masked(values, kept(by_row(own, number, values.device), 1, rate).squeeze(-1), rate)
    if values.ndim == 3:
        return dropped(values, by_token(own, number, shape[1], values.device), rate)
    hashes = by_row(own, number, values.device)
    for size in shape[1:-1]:
        hashes = one_more(hashes, size)
    return dropped(values, hashes, rate)


def samples(values: torch.Tensor, rate: float, number: int, own: Layout) -> torch.Tensor | None:
    """Drop whole samples (stochastic depth)."""
    if not values.ndim or values.shape[0] != own.rows:
        return None
    return masked(values, kept(by_row(own, number, values.device), 1, rate).view(-1, *[1] * (values.ndim - 1)), rate)


def channels(values: torch.Tensor, rate: float, number: int, own: Layout) -> torch.Tensor | None:
    """Drop whole channels of samples, of values of shape (rows, channels, ...)."""
    if values.ndim < 2 or values.shape[0] != own.rows:
        return None
    keep = kept(by_row(own, number, values.device), values.shape[1], rate)
    return masked(values, keep.view(*values.shape[:2], *[1] * (values.ndim - 2)), rate)


def shared(values: torch.Tensor, rate: float, number: int, own: Layout) -> torch.Tensor:
    """Drop elements of a table that all samples share: the same ones in all micro-batches of a step."""
    hashes = mix(own.made_keys(values.device)[-1:] ^ called(own, number)).squeeze(0)
    for size in values.shape[:-1]:
        hashes = one_more(hashes, size)
    return dropped(values, hashes, rate)


class SampleDropout(torch.nn.Dropout):
    """A dropout layer whose masks depend on the samples."""

    def __init__(self, rate: float, drop: Drop, instead: Callable[..., Any]) -> None:
        super().__init__(rate)
        self.drop = drop
        self.instead = instead
        """Torch's own, for where the samples are not known."""
        self.is_unknown = False
        """Whether it was found in the trial that they are not."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values without what is left out."""
        own = layout()
        if not self.training or not self.p:
            return values
        if own.keys is None or self.is_unknown:
            return self.instead(values, self.p, self.training)  # type: ignore[no-any-return]
        left = self.drop(values, self.p, getattr(self, NUMBER), own)
        if own.trial is not None:
            own.trial.note(self, values)
            self.is_unknown |= left is None
            return values
        if left is None:
            raise UnknownSamplesError(self, values)
        return left


class UnknownSamplesError(UserError):
    """A dropout got a tensor of which it is not known which samples it holds."""

    def __init__(self, module: torch.nn.Module, values: torch.Tensor) -> None:
        super().__init__(
            f"the dropout of a {type(module).__name__} got a tensor of shape {tuple(values.shape)}, and which samples "
            "it belongs to is not known, though it was when the model was tried; train without it (--model.dropout 0)"
        )
        self.module = module


def signed(number: int) -> int:
    """Return the low 32 bits of a number as those of a signed one."""
    return (number + 2**31) % 2**32 - 2**31


def number_of(name: str) -> int:
    """Return the number that stands for the name of a module: 32 bits."""
    return signed(int.from_bytes(blake2b(name.encode(), digest_size=4).digest(), "big"))


def know_samples(model: torch.nn.Module) -> torch.nn.Module:
    """Replace the dropout layers of a model, in place, by such as depend on the samples; their names stay.

    To be called before anything is wrapped around it: the names decide what is drawn.
    """
    for name, module in model.named_modules():
        setattr(module, NUMBER, number_of(name))
        for child, layer in module.named_children():
            if (other := replacement(layer, child)) is not None:
                module.register_module(child, other.train(layer.training))
                setattr(other, NUMBER, number_of(f"{name}.{child}"))
    watch_functions()
    return model


def replacement(layer: Any, name: str) -> SampleDropout | None:
    """Return what takes the place of a layer, or None where it is no dropout, or another kind of it."""
    nn = torch.nn
    match type(layer):
        case nn.Dropout:
            return SampleDropout(layer.p, shared if name in SHARED else elements, torch_dropout)
        case nn.Dropout1d | nn.Dropout2d | nn.Dropout3d:
            own = {nn.Dropout1d: F.dropout1d, nn.Dropout2d: F.dropout2d, nn.Dropout3d: F.dropout3d}[type(layer)]
            return SampleDropout(layer.p, channels, own)
    # Stochastic depth: each architecture of Transformers has a class of its own for it.
    if type(layer).__name__.endswith("DropPath") and isinstance(getattr(layer, "drop_prob", None), float):
        return SampleDropout(layer.drop_prob, samples, drop_paths)
    return None


def drop_paths(values: torch.Tensor, rate: float, training: bool) -> torch.Tensor:
    """Leave out whole rows, drawn from torch's generator."""
    keep = torch.rand((len(values), *[1] * (values.ndim - 1)), device=values.device) >= rate
    return masked(values, keep, rate)


def remember_callers(module: torch.nn.Module) -> None:
    """Note from now on when a module runs that calls dropout as a function: the mask is drawn by its name."""
    module.register_forward_pre_hook(lambda caller, _: layout().callers.append(caller))
    module.register_forward_hook(lambda *_: leave(), always_call=True)


def leave() -> None:
    """Note that the innermost such module has ended."""
    layout().callers.pop()


@cache
def watch_functions() -> None:
    """Have `torch.nn.functional.dropout` ask for the samples, where a module that calls it is known to be running."""
    F.dropout = function


def function(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """Stand in for `torch.nn.functional.dropout`."""
    own = layout()
    if own.trial is not None and own.trial.running and training and p:
        caller = own.trial.running[-1]
        if elements(input, p, 0, own) is not None:
            own.trial.note(caller, input)
            own.trial.callers.add(caller)
            return input
        own.trial.strangers.add(caller)
    if not training or not p or own.keys is None or not own.callers:
        return torch_dropout(input, p, training, inplace)
    left = elements(input, p, getattr(own.callers[-1], NUMBER), own)
    if left is None:
        raise UnknownSamplesError(own.callers[-1], input)
    return left
