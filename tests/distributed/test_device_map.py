"""Layers on several devices of one process (`model.device_map`) train what one device trains; what can't is refused.

There is one CPU to torch, and no index makes it two (`test_torch_knows_one_cpu`): the runs are those of
`tests/helpers/spread_runs.py`, on three stand-ins that compute on the host and refuse tensors of two of them together.
"""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations_with_replacement
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator, dispatch_model
from hypothesis import given
from hypothesis import strategies as st
from launching import ROOT, python
from resuming import run
from tiny_recipe import Tiny, task

from toolkit.config.model import LoraConfig, ModelConfig
from toolkit.config.schema import BatchConfig, Config
from toolkit.distributed import device_map
from toolkit.distributed.device_map import device_map_problems, mixing_explained
from toolkit.distributed.memory import remedies
from toolkit.distributed.mesh import Strategy
from toolkit.distributed.phase import FORWARD_PASS, Phase
from toolkit.errors import SharedUserError, UserError
from toolkit.models.spread import balanced, check_holds_values, spread_layers
from toolkit.prepare import check_repeats
from toolkit.rehearsal.few_samples import Seen
from toolkit.task import Task

# Norms of three devices are added up in another order than that of one.
ROUNDING = 1e-11
LAYERS, HIDDEN = 5, 16
DEVICES = ["standin:0", "standin:1", "standin:2"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the runs came to."""
    folder = tmp_path_factory.mktemp("spread")
    output = folder / "found.json"
    done = python(
        ROOT / "tests" / "helpers" / "spread_runs.py", str(output), str(folder), timeout=400, CUDA_VISIBLE_DEVICES=""
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(Path(output).read_text(encoding="utf-8"))
    return found


def furthest(one: Any, other: Any) -> float:
    """Return how far the numbers of two nested lists lie apart at most."""
    return float((torch.tensor(one, dtype=torch.float64) - torch.tensor(other, dtype=torch.float64)).abs().max())


SAME = {
    "usual, spread": "usual, one",
    "checkpointed": "usual, one",
    "adapters, spread": "adapters, one",
    "others, spread": "others, one",
    "cpu then spread": "usual, one",
    "spread then cpu": "usual, one",
}


@pytest.mark.parametrize("name", SAME)
def test_the_numbers_are_those_of_one_device(runs: dict[str, Any], name: str) -> None:
    """With dropout, clipping, uneven micro-batches, an average, a step that is skipped, and after a resume."""
    found, expected = runs[name], runs[SAME[name]]
    assert found["weights"].keys() == expected["weights"].keys()
    assert max(furthest(found["weights"][key], expected["weights"][key]) for key in expected["weights"]) < ROUNDING
    assert [row["samples"] for row in found["rows"]] == [row["samples"] for row in expected["rows"]]
    for key in ("loss", "gradient_norm"):
        for row, one in zip(found["rows"], expected["rows"], strict=True):
            ours, theirs = (math.inf if value is None else value for value in (row.get(key), one.get(key)))
            assert ours == pytest.approx(theirs, rel=ROUNDING)
    assert found["metrics"] == pytest.approx(expected["metrics"], rel=ROUNDING)


def test_a_run_that_was_stopped_is_one_of_those(runs: dict[str, Any]) -> None:
    for name in ("cpu then spread", "spread then cpu"):
        assert runs[f"{name}, stopped"]["record"]["status"] == "preempted"
        assert len(runs[name]["rows"]) == 6


def test_the_runs_had_what_could_differ(runs: dict[str, Any]) -> None:
    norms = [row["gradient_norm"] for row in runs["usual, one"]["rows"]]
    assert min(norms) > 0.1  # each step was clipped
    assert any(row.get("skipped") for row in runs["others, spread"]["rows"])
    assert "layers spread over 3 GPUs of one process" in runs["usual, spread"]["plan"]["strategy"]
    assert "its layers are spread" in runs["usual, spread"]["plan"]["packing"]


def test_the_plan_says_which_layers_lie_where(runs: dict[str, Any]) -> None:
    told = runs["usual, spread"]["plan"]["device map"]
    assert told.startswith("standin:0: transformer.h.0 and all but the layers, ")
    assert "; standin:2: transformer.h.3 to transformer.h.4, " in told
    assert told.endswith("(weights, gradients, AdamW); one GPU works at a time")


def test_it_computes_what_accelerate_computes_and_sends_less(runs: dict[str, Any]) -> None:
    beside = runs["beside Accelerate"]
    for way in ("toolkit", "accelerate"):
        assert beside[way]["logits on"] == "standin:0"
        for name, gradient in beside["one"]["gradients"].items():
            assert furthest(beside[way]["gradients"][name], gradient) < ROUNDING
    assert sum(beside["toolkit"]["sent"].values()) < sum(beside["accelerate"]["sent"].values())


def test_what_is_sent_and_held_is_what_the_page_says(runs: dict[str, Any]) -> None:
    found = runs["beside Accelerate"]["toolkit"]
    # Hidden states of 8 rows of 8 tokens in float64, on forwards and their gradients back: 0 to 1, 1 to 2, 2 to 0.
    states = 8 * 8 * HIDDEN * 8
    masks = found["sent"]["0 to 1"] - states
    assert found["sent"] == {
        **{"0 to 1": states + masks, "1 to 2": states, "2 to 0": states},
        **{"1 to 0": states, "2 to 1": states, "0 to 2": states + masks},
    }
    assert masks <= 8 * 8 * 8 * 2  # once for all layers of a device
    # In float64 a trained weight takes 32 bytes.
    layer = 32 * (12 * HIDDEN**2 + 13 * HIDDEN)
    outside = 32 * (48 * HIDDEN + 12 * HIDDEN + 2 * HIDDEN)
    assert found["held"] == dict(zip(DEVICES, (layer + outside, 2 * layer, 2 * layer), strict=True))


def test_what_reaches_into_a_layer_from_outside_is_refused(runs: dict[str, Any]) -> None:
    said = runs["reaches in"]
    assert "computes with tensors of two of them (Expected all tensors to be on the same device" in said
    assert "use fsdp2_one_node.yaml" in said


@given(st.lists(st.integers(1, 9), min_size=1, max_size=7), st.integers(0, 20), st.integers(2, 4))
def test_the_largest_load_is_the_least_that_there_is(sizes: list[int], outside: int, devices: int) -> None:
    if len(sizes) < devices - 1:
        return

    def largest(places: Any) -> int:
        loads = [outside] + [0] * (devices - 1)
        for place, size in zip(places, sizes, strict=True):
            loads[place] += size
        return max(loads)

    found = balanced(sizes, outside, devices)
    ways = combinations_with_replacement(range(devices), len(sizes))
    assert largest(found) == min(largest(way) for way in ways if {*range(1, devices)} <= {*way})
    assert found == sorted(found)


# What can't be spread.


def refused(work: Callable[[], object]) -> str:
    with pytest.raises(UserError) as error:
        work()
    return "; ".join(error.value.problems)


def layers(count: int) -> torch.nn.Module:
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(4, 4)) for _ in range(count))
    return model


def test_a_model_without_enough_layers_and_layers_that_share_weights() -> None:
    devices = [torch.device("cpu")] * 4
    assert "over 4 GPUs, and the Module has only 2; show the run fewer" in refused(
        lambda: spread_layers(layers(2), devices)
    )
    assert "the Linear has no torch.nn.ModuleList of layers" in refused(
        lambda: spread_layers(torch.nn.Linear(2, 2), devices)
    )
    shared: Any = layers(5)
    shared.layers[3][0].weight = shared.layers[1][0].weight
    assert "layers.1 and layers.3 share a weight" in refused(lambda: spread_layers(shared, devices))


def spread(**settings: Any) -> Any:
    """Return a configuration that asks for a device map, and other settings of the model."""
    batch = BatchConfig(micro=settings.pop("micro", None))
    return SimpleNamespace(model=ModelConfig(**{"device_map": "balanced", **settings}), batch=batch)


@pytest.mark.parametrize(
    ("strategy", "on_cpu", "devices", "precision", "parts"),
    [
        (Strategy(), False, 2, "bf16", ()),
        (Strategy(), False, 1, "no", ("this process sees one (CUDA_VISIBLE_DEVICES says which)",)),
        (Strategy(), True, 0, "no", ("torch finds none on this machine; leave it out",)),
        (Strategy(replicate=4), False, 4, "no", ("asks for 4 processes; leave model.device_map out, or start one",)),
        (Strategy(sharded=True), False, 4, "no", ("asks for FSDP2: sharded over 1 process(es)",)),
        (Strategy(tensor=2), True, 0, "no", ("asks for tensor parallel: each layer split over 2", "finds none")),
        (Strategy(), False, 2, "fp16", ("mixed precision fp16", "use bf16, or leave model.device_map out")),
    ],
)
def test_launches_that_do_not_go_with_it(
    monkeypatch: pytest.MonkeyPatch,
    strategy: Strategy,
    on_cpu: bool,
    devices: int,
    precision: str,
    parts: tuple[str, ...],
) -> None:
    monkeypatch.setattr(device_map, "devices_here", lambda on_cpu: devices)
    problems = list(device_map_problems(spread(), strategy, on_cpu, precision))
    assert len(problems) == len(parts[-1:]) if len(parts) < 2 or precision == "fp16" else len(problems) == len(parts)
    for part in parts:
        assert any(part in problem for problem in problems), problems
    assert not list(device_map_problems(Config(), strategy, on_cpu, precision))


def test_a_launch_for_the_cpu_and_a_size_to_be_found_are_told_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    cpu, auto = device_map_problems(spread(micro="auto"), Strategy(), True, "no")
    assert "the launch configuration asks for the CPU; leave one of them out" in cpu
    assert "batch.micro is auto: what fits is tried on one GPU alone" in auto
    phase = Phase(FORWARD_PASS, 1, True, 0.0, batch=SimpleNamespace(ids=(1, 2)))
    assert not any("auto" in remedy for remedy in remedies(phase, spread(), is_sharded=False))


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"device_map": "auto"}, "is balanced in Transformers too"),
        ({"device_map": "sequential"}, "leaves no room for their gradients"),
        ({"device_map": "balanced_low_0"}, "leaves the first GPU free"),
        ({"device_map": '{"": "disk"}'}, "get no gradient; give balanced, or leave it out and use fsdp2_cpu_offload"),
        ({"device_map": "cuda:1"}, "all GPUs that the process sees, which CUDA_VISIBLE_DEVICES chooses"),
        ({"compile": True}, "a compiled layer takes nothing from another GPU"),
        ({"name": "a", "lora": LoraConfig(rank=2, bits=4)}, "quantised weights lie on one GPU"),
    ],
)
def test_settings_that_do_not_go_with_it(settings: dict[str, Any], part: str) -> None:
    (problem,) = spread(**settings).model.problems()
    assert part in problem


def test_random_numbers_that_would_not_be_drawn_again_alike() -> None:
    config, runtime = spread(checkpoint_activations=True), SimpleNamespace(strategy=Strategy(devices=2))
    check_repeats(config, runtime, Seen([], packs=False))  # type: ignore[arg-type]
    with pytest.raises(SharedUserError, match=r"layers.0 draws random numbers without regard to the samples"):
        check_repeats(config, runtime, Seen(["layers.0"], packs=False))  # type: ignore[arg-type]


def test_only_mixed_devices_are_explained() -> None:
    with pytest.raises(RuntimeError, match="shape"), mixing_explained(Strategy(devices=2)):
        raise RuntimeError("shape")
    with pytest.raises(RuntimeError, match="same device"), mixing_explained(Strategy()):
        raise RuntimeError("not on the same device")


# Models that come with a device map of their own, and what Accelerate does with them.


def offloaded(folder: Path) -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    dispatched: torch.nn.Module = dispatch_model(model, {"0": "cpu", "1": "disk"}, offload_dir=str(folder))
    return dispatched


def test_accelerate_trains_an_offloaded_model_whose_weights_never_change(tmp_path: Path) -> None:
    """Which is why it is refused here."""
    model = offloaded(tmp_path)
    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    before = [model(torch.ones(1, 4))]
    accelerator.backward(before[0].sum())
    optimizer.step()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == ["1.weight", "1.bias"]
    assert "2 weights of the Sequential hold no values (1.weight, ...)" in refused(lambda: check_holds_values(model))


def test_a_recipe_that_offloads_its_model_is_told_before_the_first_step(tmp_path: Path) -> None:
    def build(config: Tiny) -> Task:
        made = task(config)

        def model(runtime: Any) -> torch.nn.Module:
            network: torch.nn.Module = made.model(runtime)
            places = {"inner": "cpu", "outer": "disk"}
            return dispatch_model(network, places, offload_dir=str(tmp_path / "offloaded"))  # type: ignore[no-any-return]

        return replace(made, model=model)

    run(tmp_path / "run", build=build).told(
        "2 weights of the Network hold no values (outer.weight, ...)", "a weight gets no gradient"
    )


def test_a_model_that_a_recipe_has_spread_by_itself() -> None:
    model: Any = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    check_holds_values(model)
    model.hf_device_map = {"": torch.device("cpu")}
    check_holds_values(model)
    model.hf_device_map = {"0": 0, "1": 1}
    said = refused(lambda: check_holds_values(torch.nn.Sequential(model)))
    assert "comes with a device map of its own (2 parts on 0, 1)" in said
    assert "spread it with --model.device_map balanced" in said


def test_torch_knows_one_cpu() -> None:
    """So that cpu:1 is no second device to try this on."""
    assert torch.ones(1, device="cpu:1").device == torch.ones(1).device == torch.device("cpu")


def test_accelerate_leaves_a_model_alone_that_names_more_than_one_part() -> None:
    model: Any = layers(2)
    assert not Accelerator(cpu=True).verify_device_map(model)
    spread_layers(model, [torch.device("cpu")] * 2)
    assert Accelerator(cpu=True).verify_device_map(model)
    assert replace(Strategy(), devices=2).description == "layers spread over 2 GPUs of one process"
