"""The state of any optimizer comes back from named tensors and JSON as it was, and trains on to the same weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from toolkit.checkpoint.staging import StagingBuffer
from toolkit.checkpoint.state_dict import load_optimizer, pack, pack_optimizer, unpack
from toolkit.config.optim import OptimConfig
from toolkit.errors import UserError
from toolkit.optimizer import build_optimizer

Make = Callable[[torch.nn.Module], torch.optim.Optimizer]

scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=4))
# Keys that differ only by their type, or only by where they are nested.
keys = st.sampled_from([0, "0", "0/0", -1, "-1", None, "None", (0,), "(0,)", ""])
tensors = st.lists(st.integers(0, 255), max_size=3).map(lambda values: torch.tensor(values, dtype=torch.uint8))
states = st.recursive(
    st.one_of(scalars, tensors),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=8,
)


def plain(value: Any) -> Any:
    """Return a value in which tensors can be compared, and in which what is equal is of the same type."""
    if isinstance(value, torch.Tensor):
        return "tensor", value.dtype, value.tolist()
    if isinstance(value, list | tuple):
        return type(value), [plain(entry) for entry in value]
    if isinstance(value, dict):
        return dict, [(plain(key), plain(entry)) for key, entry in value.items()]
    return type(value), value


@settings(max_examples=300, deadline=None)
@given(states)
@example({0: torch.tensor(1), "0": torch.tensor(2)})
@example({"0/1": torch.tensor(1), "0": {"1": torch.tensor(2)}, 0: [torch.tensor(3), torch.tensor(4)]})
@example({(0,): torch.tensor(1), "(0,)": torch.tensor(2)})
def test_a_state_comes_back_as_it_was(state: Any) -> None:
    """Each container as its own kind, keys that are no text too, and no two tensors under one name."""
    found: dict[str, torch.Tensor] = {}
    packed = json.loads(json.dumps(pack(state, "weight", found)))
    assert plain(unpack(packed, found.__getitem__)) == plain(state)


class Odd(torch.optim.Optimizer):
    """Keeps a state of every kind, and needs all of it: the directions of the last steps, by the number of the step."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1, "span": (2, 3), "limit": float("inf"), "note": None})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state |= {
                        "count": 0,
                        "by_step": {},
                        "signs": (True, [None, -1]),
                        "nested": [{"sum": torch.zeros(())}],
                    }
                state["count"] += 1
                state["by_step"][state["count"]] = parameter.grad.clone()
                state["by_step"].pop(state["count"] - group["span"][1], None)
                state["nested"][0]["sum"] += parameter.grad.norm()
                direction = sum(grad / (1 + state["count"] - step) for step, grad in state["by_step"].items())
                scale = min(group["lr"] / (1 + float(state["nested"][0]["sum"])), group["limit"])
                parameter.add_((state["signs"][1][1] if state["signs"][0] else 0) * scale * direction)


OPTIMIZERS: dict[str, Make] = {
    "adamw": lambda model: build_optimizer(OptimConfig(name="adamw", lr=0.1), model),
    "sgd": lambda model: build_optimizer(OptimConfig(name="sgd", lr=0.1), model),
    "odd": lambda model: Odd(model.parameters()),
    "amsgrad": lambda model: torch.optim.Adam(model.parameters(), lr=0.1, amsgrad=True),
    "lbfgs": lambda model: torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3),
    "adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=0.1),
    "rmsprop": lambda model: torch.optim.RMSprop(model.parameters(), lr=0.1, centered=True, momentum=0.5),
}


def parameter_names(model: torch.nn.Module) -> dict[torch.Tensor, str]:
    return {parameter: name for name, parameter in model.named_parameters()}


def new_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()


def steps(model: torch.nn.Module, optimizer: torch.optim.Optimizer, numbers: range) -> None:
    for number in numbers:
        torch.manual_seed(number)
        inputs = torch.randn(5, 3, dtype=torch.float64)

        def closure(inputs: torch.Tensor = inputs) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(inputs).square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()


def saved(model: torch.nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> tuple[str, Path]:
    """Write what a checkpoint holds of an optimizer: its JSON and its tensors."""
    packed, found = pack_optimizer(optimizer, parameter_names(model))
    staging_buffer = StagingBuffer()
    staging_buffer.take(found)
    staging_buffer.write(folder / "optimizer.safetensors")
    return json.dumps(packed), folder / "optimizer.safetensors"


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("done", [0, 4])
def test_an_optimizer_goes_on_to_the_same_weights(name: str, done: int, tmp_path: Path) -> None:
    model, again = new_model(), new_model()
    optimizer, restored = OPTIMIZERS[name](model), OPTIMIZERS[name](again)
    # What the optimizer's settings were changed to on the way is state as well.
    optimizer.param_groups[0]["lr"] = 0.07
    steps(model, optimizer, range(done))
    packed, file = saved(model, optimizer, tmp_path)
    again.load_state_dict(model.state_dict())
    content = load_file(file)
    load_optimizer(restored, parameter_names(again), json.loads(packed), lambda key, like: content[key].to(like.device))
    for one, other in ((model, optimizer), (again, restored)):
        steps(one, other, range(done, done + 5))
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in again.state_dict().items())
    assert restored.param_groups[0]["lr"] == 0.07
    # Weights and settings alone would not do, except before the first step.
    forgetful = new_model()
    steps(forgetful, OPTIMIZERS[name](forgetful), range(done))
    fresh = OPTIMIZERS[name](forgetful)
    fresh.param_groups[0]["lr"] = 0.07
    steps(forgetful, fresh, range(done, done + 5))
    assert torch.equal(forgetful.state_dict()["0.weight"], model.state_dict()["0.weight"]) == (done == 0)


def test_tensors_are_named_by_their_parameter_and_not_by_its_number() -> None:
    """So a model whose parameters are grouped in another order takes the state of each to where it belongs."""
    model, again = new_model(), new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    steps(model, optimizer, range(3))
    names = parameter_names(model)
    packed, found = pack_optimizer(optimizer, names)
    assert sorted(found) == sorted(f"{name}/momentum_buffer" for name in names.values())
    restored = torch.optim.SGD(reversed(list(again.parameters())), lr=0.1, momentum=0.9)
    load_optimizer(restored, parameter_names(again), packed, lambda key, like: found[key].clone())
    again.load_state_dict(model.state_dict())
    for one, other in ((model, optimizer), (again, restored)):
        steps(one, other, range(3, 6))
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in again.state_dict().items())


@pytest.mark.parametrize(
    ("value", "kind"), [(object(), "object"), ({1, 2}, "set"), (1j, "complex"), (print, "builtin_function_or_method")]
)
def test_a_state_that_is_no_data_is_refused_by_name(value: Any, kind: str) -> None:
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[model[2].weight] = {"history": [0, {"last": value}]}  # type: ignore[index]
    with pytest.raises(
        UserError, match=rf"keeps a {kind} under 2\.weight/history/1/last, which a checkpoint can't hold"
    ):
        pack_optimizer(optimizer, parameter_names(model))
    optimizer.state.clear()
    optimizer.param_groups[0]["schedule"] = value
    with pytest.raises(UserError, match=rf"keeps a {kind} under group 0/schedule"):
        pack_optimizer(optimizer, parameter_names(model))


@pytest.mark.parametrize("packed", [[1], {"object": "os.system"}, {"tensor": 3}, {"list": {}}])
def test_what_was_not_packed_is_not_unpacked(packed: Any) -> None:
    with pytest.raises(ValueError, match="not the state of an optimizer"):
        unpack(packed, lambda name: torch.zeros(()))
