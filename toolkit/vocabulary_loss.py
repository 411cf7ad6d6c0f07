"""Losses and best guesses of a language model, of which most logits never exist.

Over a large vocabulary the logits are the largest tensor of a step by far, and in float32 there are several of that
size: 8,192 tokens of a vocabulary of 256,000 take 8 GB each. Here only tokens with a label get logits, and where even
those are many, they are made chunk by chunk, thrown away, and made again in the backward pass.

What stands between a model's last layer and its logits differs: a transform, a bias, a scale, a soft cap, adapters, a
weight that is split over processes. So nothing of it is written down here: the model's own forward pass computes each
chunk, with its layers (`base_model_prefix`) replaced by their output. All of it happens inside the one call of whatever
wraps the model, so that gradients arrive where distributed data parallel and FSDP2 wait for them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable
from torch.distributed.fsdp import FSDPModule

from toolkit.attention import padding_known
from toolkit.losses import NOT_COUNTED, full_precision, inputs_of

LOGITS = 2**25
"""So many logits may exist at once, 134 MB in float32, and about three times that in the backward pass."""
FEWEST, FEWEST_ON_CPU = 1024, 128
"""Tokens of a chunk, however large the vocabulary: with fewer, reading the head's weight and adding up its gradient
would take longer than the products, which a GPU is much faster at. (The first is computed and not measured: 4 products
of 2 operations each stand against about 18 bytes, per element of the weight.)"""


class TokenScores(NamedTuple):
    """What a language model says of the labelled tokens of a batch, one after another."""

    losses: torch.Tensor
    """The cross-entropy of each, in nats: (labelled,), float32 or better."""
    guesses: torch.Tensor
    """The token that the model takes for the likeliest, int64 (labelled,); empty where gradients are wanted."""


def note_labels(labels: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return what a collate function adds to a batch, so that no device is asked which tokens have a label.

    Args:
        labels: int64 (rows, tokens), for each token what is to be predicted there, or `NOT_COUNTED`.

    Returns:
        "carrying": row and place of each token that has a label, (labelled, 2); "targets": these labels.
    """
    carrying = (labels != NOT_COUNTED).nonzero()
    return {"carrying": carrying, "targets": labels[tuple(carrying.T)]}


def counted_through(carrying: torch.Tensor, length: int) -> torch.Tensor:
    """Return rows and places as places in all rows one after another, of so many tokens each."""
    return carrying[:, 0] * length + carrying[:, 1]


def laid_out(values: torch.Tensor, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return values of labelled tokens where these stand in the batch, (rows, tokens), and 0 elsewhere."""
    shape = batch["input_ids"].shape
    return (
        values.new_zeros(shape.numel()).index_copy(0, counted_through(batch["carrying"], shape[1]), values).view(shape)
    )


def chunk_rows(vocabulary: int, device: torch.device) -> int:
    """Return how many tokens may have logits at once."""
    return max(FEWEST_ON_CPU if device.type == "cpu" else FEWEST, LOGITS // vocabulary)


def causal_scores(model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> TokenScores:
    """Return losses and guesses of a causal model of Transformers.

    Args:
        model: the model, or what wraps it.
        batch: "input_ids" and "attention_mask", padded on the right, and what `note_labels` returns of the next tokens.
    """
    with padding_known(batch, on_the_right=True):
        # A cache would keep the keys and values of all layers for a next token, which nobody asks for.
        inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "use_cache": False}
        return token_scores(model, inputs, batch)


def masked_scores(model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> TokenScores:
    """Return losses and guesses of a model of Transformers that fills in words.

    Args:
        model: the model, or what wraps it.
        batch: what the model takes, and what `note_labels` returns of the hidden tokens.
    """
    with padding_known(batch):
        return token_scores(model, inputs_of(batch, "labels", "carrying", "targets"), batch)


def token_scores(model: torch.nn.Module, inputs: Mapping[str, Any], batch: Mapping[str, torch.Tensor]) -> TokenScores:
    """Call a model, or what wraps it, with inputs of its own and return losses and guesses instead of logits."""
    module = language_model_of(model)
    before = module.__dict__.get("forward")
    module.forward = Head(module)
    try:
        # As arguments of the call, so that whoever remembers calls by their arguments knows one from another.
        scores: TokenScores = model(**inputs, carrying=batch["carrying"], targets=batch["targets"])
    finally:
        del module.forward
        if before is not None:
            module.forward = before
    return scores


def language_model_of(model: torch.nn.Module) -> Any:
    """Return the model of Transformers within what wraps it."""
    return next(module for module in model.modules() if hasattr(type(module), "base_model_prefix"))


class Head:
    """Stands for the forward pass of a language model, in one call: returns scores of labelled tokens."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.forward: Callable[..., Any] = module.forward
        self.layers: str = module.base_model_prefix
        self.output: Any = None
        """What the layers returned, to be given again with other hidden states; None before, or if it has none."""
        self.hidden: torch.Tensor | None = None
        """The hidden states of the labelled tokens, (labelled, features)."""
        self.weights: tuple[torch.Tensor, ...] = ()
        """The parameters between hidden states and logits that are trained."""

    def __call__(self, *args: Any, carrying: torch.Tensor, targets: torch.Tensor, **kwargs: Any) -> TokenScores:
        """Run the model on what it is given.

        Args:
            args: positional arguments of the model.
            carrying: int64 (labelled, 2), row and place of the tokens that have a label.
            targets: int64 (labelled,), these labels.
            kwargs: named arguments of the model, "input_ids" among them.
        """
        self.args, self.kwargs = args, kwargs
        count = len(carrying)
        if not count:  # the weights get a gradient of zero all the same: other processes wait for it
            carrying, targets = carrying.new_zeros(1, 2), targets.new_zeros(1)
        places = counted_through(carrying, kwargs["input_ids"].shape[1])
        vocabulary = getattr(self.module.config.get_text_config(), "vocab_size", None) or 1
        self.rows = chunk_rows(vocabulary, carrying.device)
        reason = self.hindrance()
        if reason is None and self.layers in self.module._modules:
            chunked = len(places) > self.rows
            with self.layers_replaced(partial(self.run_layers, places, chunked)):
                logits = self.forward(*args, **kwargs).logits
        else:
            chunked, logits = False, self.forward(*args, **kwargs).logits
        if self.hidden is None:
            # All logits of the batch were made, whatever was asked for.
            chunked, reason = False, reason or "does not say what its layers return"
            logits = logits.flatten(0, -2).index_select(0, places)
        if reason is not None and logits.numel() > LOGITS:
            lines = getattr(self.module, "plan_remarks", {})
            self.module.plan_remarks = {**lines, "logits": f"all at once: a {type(self.module).__name__} {reason}"}
        if not chunked:
            scores = self.scores(logits.flatten(0, -2), targets)
            # Cloned, since FSDP2 warns of what looks into another tensor.
            return scores if count else TokenScores(*(values[:0].clone() for values in scores))
        assert self.hidden is not None
        if not torch.is_grad_enabled():
            return self.in_chunks(self.hidden, targets)
        self.weights = parameters_behind(logits)
        losses = Recomputed.apply(self, self.hidden, targets, *self.weights)  # type: ignore[no-untyped-call]
        self.hidden = None
        return TokenScores(losses, targets.new_empty(0))

    def hindrance(self) -> str | None:
        """Return why the logits of this model can't be made chunk by chunk, if they can't."""
        parts = [
            part for name, child in self.module.named_children() if name != self.layers for part in child.modules()
        ]
        if any(isinstance(part, FSDPModule) for part in parts):
            return "has a head that is gathered by itself (FSDP_MIN_NUM_PARAMS)"
        if any(hasattr(parameter, "ds_id") for part in parts for parameter in part.parameters(recurse=False)):
            return "has a head whose weights are gathered when it is called (ZeRO 3)"
        if any(isinstance(part, torch.nn.modules.dropout._DropoutNd) and part.training and part.p for part in parts):
            return "has dropout in its head"
        return None

    def run_layers(
        self, places: torch.Tensor, chunked: bool, layers: torch.nn.Module, *args: Any, **kwargs: Any
    ) -> Any:
        """Run the layers; return what they return, of labelled tokens alone, or if `chunked` of one of these."""
        output = layers(*args, **kwargs)
        states = output[0] if isinstance(output, tuple) else getattr(output, "last_hidden_state", None)
        ids = self.kwargs["input_ids"]
        if not isinstance(states, torch.Tensor) or states.ndim != 3 or states.shape[:2] != ids.shape:
            return output
        kind = states.device.type
        # The model may be called inside of a wrapper that sets this, or set it itself.
        self.precision = partial(torch.autocast, kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        self.output, self.hidden = output, states.flatten(0, 1).index_select(0, places)
        return self.with_states(self.hidden[:1].detach() if chunked else self.hidden)

    def with_states(self, states: torch.Tensor) -> Any:
        """Return what the layers returned, with these hidden states instead, (tokens, features)."""
        states = states.unsqueeze(0)
        if isinstance(self.output, tuple):
            return (states, *self.output[1:])
        self.output.last_hidden_state = states
        return self.output

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Return the logits of some tokens, (tokens, vocabulary), given their hidden states."""
        with self.layers_replaced(lambda *_, **__: self.with_states(states)):
            found: torch.Tensor = self.forward(*self.args, **self.kwargs).logits
        return found.squeeze(0)

    @contextmanager
    def layers_replaced(self, call: Callable[..., Any]) -> Iterator[None]:
        """Have the model call something else than its layers in this block."""
        # An attribute of the instance comes before its modules, whose tree, names and hooks stay as they are.
        self.module.__dict__[self.layers] = Replaced(self.module._modules[self.layers], call)
        try:
            yield
        finally:
            del self.module.__dict__[self.layers]

    def scores(self, logits: torch.Tensor, targets: torch.Tensor) -> TokenScores:
        """Return the scores of some tokens."""
        losses = F.cross_entropy(full_precision(logits), targets, reduction="none")
        return TokenScores(losses, targets.new_empty(0) if torch.is_grad_enabled() else logits.argmax(-1))

    def in_chunks(self, hidden: torch.Tensor, targets: torch.Tensor) -> TokenScores:
        """Return the scores of all tokens, without gradients."""
        with self.precision():
            chunks = zip(torch.split(hidden, self.rows), torch.split(targets, self.rows), strict=True)
            found = [self.scores(self.logits(states), labels) for states, labels in chunks]
        losses, guesses = zip(*found, strict=True)
        return TokenScores(torch.cat(losses), torch.cat(guesses))


class Replaced:
    """Stands for the layers of a model: instead of them something else is called, which is given them first of all."""

    def __init__(self, layers: torch.nn.Module, call: Callable[..., Any]) -> None:
        self.layers = layers
        self.call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(self.layers, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.layers, name)
        # Of a model that could have an encoder too, such as OPT, the one half is called.
        return Replaced(found, self.call) if name == "decoder" and isinstance(found, torch.nn.Module) else found


class Recomputed(torch.autograd.Function):
    """Cross-entropies of tokens, chunk by chunk, forward and backward.

    Not `torch.utils.checkpoint`: autograd would add up the chunks' gradients of the head's weight in the precision in
    which they come, 16 bits, where one large product would have been added up in 32.
    """

    @staticmethod
    def forward(ctx: Any, head: Head, hidden: torch.Tensor, targets: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        """Return the losses; the weights of the head come along so that their gradients find their way."""
        ctx.head = head
        ctx.save_for_backward(hidden, targets)
        return head.in_chunks(hidden, targets).losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of hidden states and weights."""
        head: Head = ctx.head
        hidden, targets = ctx.saved_tensors
        of_hidden = torch.empty_like(hidden)
        sums = [torch.zeros_like(w, dtype=torch.promote_types(w.dtype, torch.float32)) for w in head.weights]
        parts = (torch.split(tensor, head.rows) for tensor in (hidden, of_hidden, targets, gradient))
        with torch.enable_grad(), head.precision():
            for chunk in zip(*parts, strict=True):
                add_gradients(head, sums, *chunk)
        of_all = (total.to(w.dtype) for total, w in zip(sums, head.weights, strict=True))
        return None, of_hidden, None, *of_all


def add_gradients(
    head: Head,
    sums: Sequence[torch.Tensor],
    hidden: torch.Tensor,
    of_hidden: torch.Tensor,
    targets: torch.Tensor,
    gradient: torch.Tensor,
) -> None:
    """Take the gradients of a chunk: of its hidden states into `of_hidden`, of the head's weights added to `sums`."""
    states = hidden.detach().requires_grad_()
    losses = head.scores(head.logits(states), targets).losses
    of_states, *of_weights = torch.autograd.grad(losses, (states, *head.weights), gradient)
    of_hidden.copy_(of_states)
    for total, part in zip(sums, of_weights, strict=True):
        total.add_(part)


def parameters_behind(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the parameters that a tensor was computed from and that get a gradient."""
    found: dict[torch.Tensor, None] = {}
    seen: set[Any] = {None}
    nodes: list[Any] = [tensor.grad_fn]
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found[node.variable] = None
        nodes += [before for before, _ in node.next_functions]
    return tuple(found)
