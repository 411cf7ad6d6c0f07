"""Dropout that knows the sample: how its masks are distributed, and that no layout of a batch changes them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from small_families import WORDS, small_model
from torch.utils.checkpoint import checkpoint

from toolkit import BatchConfig, Config, Task, TaskData
from toolkit.attention import padding_known
from toolkit.batch_layout import CHECKPOINTING, Layout, drawing_from, end_to_end
from toolkit.data.collate import pad
from toolkit.data.loader import KeyedRows
from toolkit.distributed.start_runtime import start_runtime
from toolkit.dropout import SampleDropout, elements, kept, know_samples, number_of
from toolkit.losses import output_of
from toolkit.prepare import prepare
from toolkit.train_state import TrainState

ROWS, TOKENS, FEATURES = 64, 32, 128
WIDTH = 16


def mask(
    *, seed: int = 0, step: int = 0, ids: Sequence[int] = range(ROWS), name: str = "a", before: int = 0, rate: float
) -> torch.Tensor:
    """Return which elements of (rows, tokens, features) are left out, after so many earlier calls."""
    own = Layout(keys=KeyedRows(seed, step, list(ids)).keys(), calls={number_of(name): before})
    left = elements(torch.ones(len(ids), TOKENS, FEATURES), rate, number_of(name), own)
    assert left is not None
    return left == 0


def spread(values: torch.Tensor, rate: float, draws: int) -> float:
    """Return how far the chi-square of counts of so many draws each is from what it should be, in its deviations."""
    wanted = draws * rate
    chi = ((values - wanted) ** 2 / (wanted * (1 - rate))).sum()
    return float((chi - values.numel()) / (2 * values.numel()) ** 0.5)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_each_position_feature_and_sample_is_left_out_at_the_rate(rate: float) -> None:
    out = mask(rate=rate).double()
    for dims in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2)):
        counts = out.sum(dims)
        assert abs(spread(counts, rate, out.numel() // counts.numel())) < 4
    # Both halves of a hash are used.
    for half in (out[..., ::2], out[..., 1::2]):
        assert abs(float(half.mean()) - rate) < 4 * (rate * (1 - rate) / half.numel()) ** 0.5


NEIGHBOURS: dict[str, Callable[[float], tuple[torch.Tensor, torch.Tensor]]] = {
    "features of one hash": lambda p: (mask(rate=p)[..., ::2], mask(rate=p)[..., 1::2]),
    "neighbouring features": lambda p: (mask(rate=p)[..., :-1], mask(rate=p)[..., 1:]),
    "features two apart": lambda p: (mask(rate=p)[..., :-2], mask(rate=p)[..., 2:]),
    "positions": lambda p: (mask(rate=p)[:, :-1], mask(rate=p)[:, 1:]),
    "a position and a feature": lambda p: (mask(rate=p)[:, 1:, :-2], mask(rate=p)[:, :-1, 2:]),
    "samples": lambda p: (mask(rate=p)[:-1], mask(rate=p)[1:]),
    "a sample and a position": lambda p: (mask(rate=p)[1:, :-1], mask(rate=p)[:-1, 1:]),
    "samples far apart": lambda p: (mask(rate=p), mask(rate=p, ids=range(10**9, 10**9 + ROWS))),
    "steps": lambda p: (mask(rate=p), mask(rate=p, step=1)),
    "seeds": lambda p: (mask(rate=p), mask(rate=p, seed=1)),
    "a seed and a step": lambda p: (mask(rate=p, seed=1), mask(rate=p, step=1)),
    "layers": lambda p: (mask(rate=p, name="layer.0.dropout"), mask(rate=p, name="layer.1.dropout")),
    "calls of one layer": lambda p: (mask(rate=p), mask(rate=p, before=1)),
    "a layer's second call and another one": lambda p: (mask(rate=p, before=1), mask(rate=p, name="b")),
}


@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("what", NEIGHBOURS)
def test_neighbours_are_independent(what: str, rate: float) -> None:
    one, other = (part.double() - rate for part in NEIGHBOURS[what](rate))
    correlation = float((one * other).mean()) / (rate * (1 - rate))
    assert abs(correlation) * one.numel() ** 0.5 < 4


def test_rows_of_one_sample_differ_and_depend_on_nothing_else() -> None:
    """Pairs and their negatives: the second row of a sample is another one, wherever it stands in a batch."""
    together = KeyedRows(0, 5, [7, 3], torch.tensor([0, 1, 0, 1])).keys()
    assert len(set(together.tolist())) == 5
    alone = KeyedRows(0, 5, [3], torch.tensor([0, 0])).keys()
    assert together[[1, 3, 4]].tolist() == alone.tolist()
    assert KeyedRows(0, 5, [3]).keys()[0] == alone[0]


def test_a_mask_is_what_its_formula_says() -> None:
    """By hand, in Python's numbers: what a run draws must not change with a library."""

    def lowbias(x: int) -> int:
        x ^= x >> 16
        x = x * 0x7FEB352D % 2**32
        x ^= x >> 15
        x = x * 0x846CA68B % 2**32
        return x ^ x >> 16

    keys, rate = KeyedRows(3, 4, [11, 12]).keys(), 0.3
    left = elements(torch.ones(2, 3, 5), rate, number_of("some.dropout"), Layout(keys=keys))
    assert left is not None
    for row, key in enumerate(keys[:-1].tolist()):
        for position in range(3):
            place = lowbias((lowbias(key % 2**32) + position * 0x9E3779B9) % 2**32)
            own = lowbias(place ^ number_of("some.dropout") % 2**32)
            for feature in range(5):
                pair = lowbias((own + feature // 2 * 0x9E3779B9) % 2**32)
                half = pair >> 16 if feature % 2 else pair & 0xFFFF
                signed = half - 2**16 if half >= 2**15 else half
                assert (left[row, position, feature] > 0) == (signed >= round(rate * 2**16) - 2**15)


@pytest.mark.parametrize("rate", [1e-3, 0.1, 0.5, 0.999, 1.0])
def test_the_mean_stays(rate: float) -> None:
    left = elements(torch.ones(512, 64, 64), rate, 1, Layout(keys=KeyedRows(0, 0, range(512)).keys()))
    assert left is not None
    error = (rate / max(1 - rate, 1e-12) / left.numel()) ** 0.5
    assert abs(float(left.double().mean()) - (rate < 1)) < 4 * error if rate < 1 else not left.any()


def test_a_rate_is_met_to_one_of_its_steps() -> None:
    """All halves of a hash once: exactly the share that the scale undoes is left out."""
    # 16 bits on both sides of each number, and the hash undone: it is one to one.
    numbers = torch.arange(2**16, dtype=torch.int32) * (2**16 + 1)
    for rate in (0.1, 1 / 3, 2.0**-16):
        halves = numbers.view(torch.int16)
        assert int((halves < round(rate * 2**16) - 2**15).sum()) == 2 * round(rate * 2**16)
    hashes = torch.arange(-(2**15), 2**15, dtype=torch.int32)
    share = 1 - kept(hashes, 64, 0.25).double().mean()
    assert abs(float(share) - 0.25) < 4 * (0.25 * 0.75 / (64 * 2**16)) ** 0.5


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(2, 6), min_size=2, max_size=6),
    parts=st.integers(1, 3),
    longer=st.integers(0, 3),
    order=st.randoms(use_true_random=False),
)
def test_masks_are_the_same_in_any_layout(lengths: list[int], parts: int, longer: int, order: Any) -> None:
    ids = order.sample(range(1000), len(lengths))
    whole = Layout(keys=KeyedRows(0, 1, ids).keys())
    expected = elements(torch.ones(len(ids), max(lengths), 7), 0.4, 1, whole)
    assert expected is not None
    rows = list(range(len(ids)))
    order.shuffle(rows)
    for part in (rows[number::parts] for number in range(parts)):
        if not part:
            continue
        mine = [lengths[row] for row in part]
        longest = max(mine) + longer
        keys = KeyedRows(0, 1, [ids[row] for row in part]).keys()
        padded = elements(torch.ones(len(part), longest, 7), 0.4, 1, Layout(keys=keys))
        flat_layout = Layout(keys=keys, shape=torch.Size((len(part), longest)))
        flat = elements(torch.ones(len(part) * longest, 7), 0.4, 1, flat_layout)
        placed = end_to_end(mine, longest, torch.device("cpu"))
        packed = elements(torch.ones(1, sum(mine), 7), 0.4, 1, Layout(keys=keys, end_to_end=placed))
        assert padded is not None
        assert flat is not None
        assert packed is not None
        assert torch.equal(flat.view_as(padded), padded)
        pieces = packed[0].split(mine)
        for number, row in enumerate(part):
            assert torch.equal(padded[number, : lengths[row]], expected[row, : lengths[row]])
            assert torch.equal(pieces[number], expected[row, : lengths[row]])


# Whole models.


class Rows:
    """Rows of tokens of different lengths."""

    def __init__(self, count: int = 6) -> None:
        generator = np.random.default_rng(0)
        self.rows = [generator.integers(3, WORDS, 3 + number % 5) for number in range(count)]

    def __len__(self) -> int:
        return len(self.rows)

    def fetch(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        return [{"input_ids": self.rows[number]} for number in ids]

    def lengths(self, ids: np.ndarray) -> np.ndarray:
        return np.array([len(self.rows[number]) for number in ids])

    def digest(self) -> str:
        return f"rows-{len(self)}"


def task_of(model: torch.nn.Module, call: Callable[..., Any] = output_of) -> Task:
    """Return a task whose loss adds up what a model makes of each token."""

    def collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return pad(samples, {"input_ids": 1})

    def loss(model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        output = call(model, batch)
        states = output if isinstance(output, torch.Tensor) else output[0]
        if states.ndim == 3:
            states = states * batch["attention_mask"].unsqueeze(-1)
        return (states * torch.linspace(-1, 1, states.shape[-1], dtype=states.dtype)).pow(3).sum()

    return Task(
        model=lambda runtime: model,
        data=TaskData(train=Rows()),
        collate=collate,
        units=lambda batch: len(batch["input_ids"]),
        loss=loss,
    )


def of_both(model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> Any:
    """Return the output of an encoder and a decoder that both read the same."""
    with padding_known(batch):
        return model(batch["input_ids"], batch["attention_mask"], decoder_input_ids=batch["input_ids"])


def tried(model: torch.nn.Module, call: Callable[..., Any] = output_of) -> TrainState:
    """Return a model as a run has it before its first step."""
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    config = Config(batch=BatchConfig(size=6), threads=1)
    return prepare(task_of(model, call), config, start_runtime(config))


def gradients(state: TrainState, parts: Sequence[Sequence[int]], step: int = 0) -> torch.Tensor:
    """Return the gradients of a step in one row, with its samples cut into these parts."""
    model = state.model
    model.zero_grad()
    for part in parts:
        batch = state.task.collate(state.task.data.train.fetch(part))
        with drawing_from(KeyedRows(0, step, part).keys()):
            state.task.loss(model, batch).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


WHOLE, CUT = [range(6)], [[5], [1, 4, 2], [0, 3]]


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("kind", ["bert", "albert", "bart", "opt", "starcoder2", "deberta-v2", "mpnet", "gpt2", "t5"])
def test_a_model_draws_by_samples_alone(kind: str) -> None:
    """Functional dropout (BART, OPT, Starcoder2), shared layers (ALBERT), a table that all samples share (DeBERTa)."""
    more: dict[str, Any] = {"deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}}.get(kind, {})
    state = tried(small_model(kind, **more), of_both if kind in ("bart", "t5") else output_of)
    assert state.drawn_by_topology == []
    before = torch.get_rng_state()
    expected = gradients(state, WHOLE)
    assert apart(gradients(state, CUT), expected) < (1e-12 if kind != "t5" else 1e-7)
    assert torch.equal(torch.get_rng_state(), before)
    assert apart(gradients(state, WHOLE, step=1), expected) > 1e-3
    # Evaluation drops nothing.
    state.model.eval()
    assert torch.equal(gradients(state, WHOLE, step=1), gradients(state, WHOLE))


@pytest.mark.parametrize("kind", ["bert", "gpt2", "bart", "opt", "llama"])
def test_activations_that_are_computed_again_drop_the_same(kind: str) -> None:
    state = tried(small_model(kind), of_both if kind == "bart" else output_of)
    expected = gradients(state, CUT)
    assert apart(gradients(state, CUT, step=1), expected) > 1e-3
    state.model.activation_checkpointing_enable(CHECKPOINTING)
    assert apart(gradients(state, CUT), expected) < 1e-14


class OwnDropPath(torch.nn.Module):
    """Leaves out whole samples, as models of images do; know_samples takes its place."""

    drop_prob = 0.3

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class Plain(torch.nn.Module):
    """A module of one's own, with dropout of several kinds."""

    def __init__(self, again: bool = False, times: int = 1, given: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.layer = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Dropout(0.3))
        self.channels = torch.nn.Dropout1d(0.3)
        self.planes = torch.nn.Dropout2d(0.3)
        self.pooled = torch.nn.Dropout(0.3)
        self.path = OwnDropPath()
        self.again, self.times, self.given = again, times, given or {}
        torch.manual_seed(0)
        for parameter in self.parameters():
            torch.nn.init.normal_(parameter)
        self.double()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.words(input_ids)
        for _ in range(self.times):
            if self.again:
                hidden = checkpoint(self.layer, hidden, use_reentrant=False, **self.given)
            else:
                hidden = self.layer(hidden)
        hidden = (hidden * attention_mask.unsqueeze(-1)).sum(1)
        hidden = self.channels(hidden.view(-1, 4, 4)).flatten(1)
        hidden = self.path(self.planes(hidden.view(-1, 4, 2, 2))).flatten(1)
        return self.pooled(hidden)


def plain(**given: Any) -> TrainState:
    return tried(Plain(**given), lambda model, batch: model(batch["input_ids"], batch["attention_mask"]))


def test_a_plain_module_draws_by_samples_alone_and_computes_again() -> None:
    state = plain()
    assert state.drawn_by_topology == []
    expected = gradients(state, WHOLE)
    assert apart(gradients(state, CUT), expected) < 1e-13
    assert apart(gradients(plain(again=True), CUT), expected) < 1e-13


def test_a_layer_that_is_used_again_is_told_from_itself_or_refused() -> None:
    """The network's own checkpointing does not say for which of its uses a layer is computed again."""
    expected = gradients(plain(times=2), WHOLE)
    knows = plain(times=2, again=True, given={"context_fn": CHECKPOINTING["context_fn"]})
    assert apart(gradients(knows, WHOLE), expected) < 1e-13
    with pytest.raises(Exception, match=r"context_fn=toolkit\.batch_layout\.kept"):
        gradients(plain(times=2, again=True), WHOLE)


class Swaps(Plain):
    """Computes with the tokens first, as some recurrent models do."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(self.words(input_ids).transpose(0, 1)).transpose(0, 1)
        return (hidden * attention_mask.unsqueeze(-1)).sum(1)


class Noisy(Plain):
    """Draws random numbers in a way of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = Noise()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return super().forward(input_ids, attention_mask) + self.noise(input_ids)


class Both(Plain):
    """Calls dropout as a function on tensors of samples and on others."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        table = F.dropout(self.words.weight, 0.3, self.training)
        hidden = self.layer(F.dropout(F.embedding(input_ids, table), 0.3, self.training))
        return (hidden * attention_mask.unsqueeze(-1)).sum(1)


class Noise(torch.nn.Module):
    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return torch.rand(len(input_ids), 1, dtype=torch.float64)


@pytest.mark.parametrize(("kind", "name"), [(Swaps, "layer.2"), (Noisy, "noise"), (Both, "Both")])
def test_what_draws_without_regard_to_samples_is_named_and_runs_on(kind: type[Plain], name: str) -> None:
    state = tried(kind(), lambda model, batch: model(batch["input_ids"], batch["attention_mask"]))
    assert state.drawn_by_topology == [name]
    torch.manual_seed(1)
    first = gradients(state, WHOLE)
    torch.manual_seed(1)
    assert torch.equal(gradients(state, WHOLE), first)
    if kind is not Noisy:  # noise that is added has no part in the gradients' masks
        torch.manual_seed(2)
        assert apart(gradients(state, WHOLE), first) > 1e-3


def test_generation_and_evaluation_draw_nothing() -> None:
    state = plain()
    state.model.eval()
    batch = state.task.collate(state.task.data.train.fetch(range(6)))
    plainly = know_samples(Plain()).eval()
    with drawing_from(KeyedRows(0, 0, range(6)).keys()):
        found = state.model(batch["input_ids"], batch["attention_mask"])
    assert torch.equal(found, plainly(batch["input_ids"], batch["attention_mask"]))


def test_names_stay_and_nothing_but_dropout_is_replaced() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.2), torch.nn.AlphaDropout(0.2)).eval()
    names = [name for name, _ in model.named_modules()]
    know_samples(model)
    assert [name for name, _ in model.named_modules()] == names
    assert [type(layer) for layer in model] == [torch.nn.Linear, SampleDropout, torch.nn.AlphaDropout]
    assert not model[1].training
    assert model[1].p == 0.2
