"""Optimizers, layer-wise rates and the average of the weights: against loops written by hand, on every layout, and over
a stop."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from launching import CPU, ROOT, launch
from optimizer_layouts import SETTINGS, config_of, results
from resuming import numbers, run, stopped, stopping
from safetensors.torch import load_file
from test_loop import relative
from tiny_recipe import Network, Sequences, Tiny, collate, task

from toolkit.config.optim import OptimConfig
from toolkit.data.order import ShuffledOrder
from toolkit.distributed.mesh import Strategy
from toolkit.distributed.start_runtime import start_runtime
from toolkit.errors import UserError
from toolkit.optimizer import begin_averages, build_optimizer, kept_bytes, orthogonal, take_into_average
from toolkit.output.run_folder import folder_name, read_record
from toolkit.randomness import seed_for
from toolkit.rehearsal.settings_fit import check_fit
from toolkit.schedules import learning_rate
from toolkit.verify.check import verify

Weights = dict[str, torch.Tensor]
LAYERS = ("inner.", "layers.0.", "layers.1.", "outer.")
HERE = Path(__file__).parent
LAYOUTS = {"DDP": (CPU, 2), "FSDP2": (ROOT / "accelerate_configs" / "cpu_fsdp2.yaml", 2)}


def factor(config: OptimConfig, name: str) -> float:
    """Return the part of the rate that a weight of the tiny network has, by its name."""
    (number,) = (number for number, prefix in enumerate(LAYERS) if name.startswith(prefix))
    return (config.layer_decay or 1.0) ** (len(LAYERS) - 1 - number)


def is_hidden(name: str) -> bool:
    return name in {f"layers.{layer}.{part}.weight" for layer in (0, 1) for part in (0, 2)}


def newton_schulz(matrix: torch.Tensor) -> torch.Tensor:
    """The published iteration, over singular values instead of products of matrices."""
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    values = values / values.norm()
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return left @ torch.diag(values) @ right


def changes(config: OptimConfig, model: torch.nn.Module) -> Callable[[float], None]:
    """Return what takes a step at a rate: the optimizers of torch, one group for each weight, and Muon by hand."""
    groups = [
        {"params": [p], "weight_decay": config.weight_decay if p.ndim > 1 else 0.0, "factor": factor(config, name)}
        for name, p in model.named_parameters()
        if config.name != "muon" or not is_hidden(name)
    ]
    made: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "adamw": lambda: torch.optim.AdamW(groups, betas=config.betas, eps=config.eps),
        "sgd": lambda: torch.optim.SGD(groups, momentum=config.betas[0]),
        "adafactor": lambda: torch.optim.Adafactor(groups),
    }
    optimizer = made["adamw" if config.name == "muon" else config.name]()
    means = {name: torch.zeros_like(p) for name, p in model.named_parameters()}

    @torch.no_grad()
    def change(rate: float) -> None:
        for group in optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        optimizer.step()
        for name, p in model.named_parameters():
            if config.name == "muon" and is_hidden(name):
                assert p.grad is not None
                own, beta = rate * factor(config, name), config.betas[0]
                means[name] = beta * means[name] + (1 - beta) * p.grad
                update = newton_schulz(beta * means[name] + (1 - beta) * p.grad)
                p.copy_(p * (1 - own * config.weight_decay) - own * 0.2 * max(p.shape) ** 0.5 * update)

    return change


@cache
def by_hand(name: str) -> tuple[Weights, Weights]:
    """Train on whole global batches; return the last weights, and their average over the steps."""
    config = config_of(name)
    torch.manual_seed(seed_for(config.seed, "new weights"))
    model, source = Network("layers"), Sequences(config.data.samples, 0)
    change = changes(config.optim, model)
    order = ShuffledOrder(len(source), config.batch.size, config.seed)
    after: list[Weights] = []
    for step in range(12):
        batch = collate(source.fetch(order.global_batch(step).tolist()))
        model.zero_grad()
        F.cross_entropy(model(batch["values"], batch["mask"]), batch["labels"]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.optim.clip or float("inf"))
        change(learning_rate(config.optim, step, 12))
        after.append({key: value.clone() for key, value in model.state_dict().items()})
    counts = [(config.optim.average or 0.0) ** (11 - step) for step in range(12)]
    summed = {key: sum(count * one[key] for count, one in zip(counts, after, strict=True)) for key in after[0]}
    return after[-1], {key: value / sum(counts) for key, value in summed.items()}


@pytest.mark.parametrize("name", SETTINGS)
def test_one_process_does_what_a_loop_by_hand_does(name: str) -> None:
    runtime = start_runtime(config_of(name))
    found, (last, average) = results(runtime, name, micro=3), by_hand(name)
    assert relative(found["last"], last) < 1e-12
    assert relative(found["exported"], average) < 1e-12
    # The weights went somewhere, and the two are not the same.
    torch.manual_seed(seed_for(0, "new weights"))
    assert relative(Network("layers").state_dict(), last) > 0.005
    assert relative(average, last) > 1e-3
    # The metrics are those of the weights that are exported.
    model, batch = Network("layers"), collate(Sequences(23, 10_000).fetch(range(23)))
    model.load_state_dict(average)
    loss = F.cross_entropy(model(batch["values"], batch["mask"]), batch["labels"]).item()
    assert found["metrics"]["loss"] == pytest.approx(loss, rel=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_processes_do_what_a_loop_by_hand_does(layout: str, tmp_path: Path) -> None:
    config, processes = LAYOUTS[layout]
    place = tmp_path / "found.pt"
    done = launch(HERE / "helpers" / "optimizer_layouts.py", str(place), processes=processes, config=config)
    assert done.returncode == 0, done.stderr
    for name, found in torch.load(place).items():
        last, average = by_hand(name)
        assert relative(found["last"], last) < 1e-12, name
        assert relative(found["exported"], average) < 1e-12, name


@pytest.mark.parametrize("shape", [(3, 5), (7, 2), (4, 4)])
def test_the_iteration_of_muon_is_that_of_torch_but_for_its_rounding(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    matrix = torch.nn.Parameter(torch.zeros(shape))
    matrix.grad = torch.randn(shape)
    theirs = torch.optim.Muon([matrix], lr=1.0, weight_decay=0.0, momentum=0.0, adjust_lr_fn="match_rms_adamw")
    theirs.step()
    ours = -0.2 * max(shape) ** 0.5 * orthogonal(matrix.grad)
    torch.testing.assert_close(matrix.detach(), ours, rtol=0.05, atol=0.02)
    torch.testing.assert_close(orthogonal(matrix.grad, torch.bfloat16), orthogonal(matrix.grad), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_step_that_is_left_out_leaves_weights_state_and_average_alone(name: str) -> None:
    """The first one too, before anything is kept."""

    def trained(*finite: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = Network("layers")
        optimizer = build_optimizer(SETTINGS[name], model)
        begin_averages(optimizer)
        for number in range(len(finite)):
            torch.manual_seed(sum(finite[:number]))
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter) * (1.0 if finite[number] else float("nan"))
            optimizer.found_inf = torch.tensor(0.0 if finite[number] else 1.0)  # type: ignore[attr-defined]
            optimizer.step()
            take_into_average(optimizer, 0.8, torch.tensor(1.0 if finite[number] else float("inf")))
        state = [value for p in model.parameters() for value in optimizer.state[p].values()]
        return [*(parameter.detach() for parameter in model.parameters()), *state]

    expected, found = trained(True, True), trained(False, True, False, False, True)
    assert len(expected) == len(found)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", SETTINGS)
def test_the_plan_knows_what_an_optimizer_keeps(name: str) -> None:
    config = config_of(name)
    runtime = start_runtime(config)
    training = prepared(config, runtime)
    kept = sum(
        value.numel() * value.element_size()
        for entries in training.optimizer.state.values()
        for value in entries.values()
        if value.ndim
    )
    assert kept_bytes(config.optim, training.optimizer.optimizer) == kept > 0
    runtime.accelerator.free_memory()


def prepared(config: Tiny, runtime: Any) -> Any:
    """Return a training after one epoch."""
    from toolkit.loop import train
    from toolkit.prepare import prepare

    training = prepare(task(config), replace(config, epochs=1), runtime)
    training.output.rows = []
    train(training)
    return training


@pytest.mark.parametrize("name", ["adafactor", "muon"])
def test_a_run_that_is_stopped_comes_to_the_same_average_bit_for_bit(name: str, tmp_path: Path) -> None:
    flags = ["--model.flaw", "layers", "--optim.name", name, "--optim.layer_decay", "0.5", "--optim.average", "0.9"]
    flags += ["--optim.schedule", "wsd", "--optim.decay", "5", "--optim.floor", "0.1"]
    whole = (
        run(tmp_path / "whole", *flags)
        .done()
        .says(
            "then constant, and falling in the last 5 (wsd) to 0.1 of the peak",
            "2 in layers, the rate of each 0.5 of that of the one above; the highest for outer, the lowest for inner",
            "of the weights, decay 0.9; averages are evaluated and saved",
        )
    )
    folder = tmp_path / "run"
    assert run(folder, *flags, build=stopping(folder, training=8)).code == 75
    run(folder, *flags).done().says("going on after step 7")
    assert numbers(folder) == numbers(whole.folder)
    assert verify(folder).sound
    # A checkpoint has both; the other one is exported by choice.
    last = run(tmp_path / "last", *flags, "--export", "last").done()
    best = folder / "checkpoints" / folder_name(read_record(folder)["exported"]["step"])
    exported, checkpoint = (load_file(path) for path in (
        last.folder / "model" / "model.safetensors", best / "optimizer.safetensors"
    ))  # fmt: skip
    saved = load_file(folder / "checkpoints" / "step-000012" / "weights.safetensors")
    assert all(torch.equal(exported[key], saved[key]) for key in exported)
    averaged = load_file(folder / "model" / "model.safetensors")
    assert all(torch.equal(averaged[key], checkpoint[f"{key}/average"]) for key in averaged)
    assert relative(exported, averaged) > 1e-3


def test_an_average_that_was_not_kept_from_the_start_is_refused(tmp_path: Path) -> None:
    without, having = stopped(tmp_path / "without", 5), stopped(tmp_path / "having", 5, "--optim.average", "0.9")
    average = ("--optim.average", "0.9")
    run(without, *average).told(f"the folder {without} belongs to another run: optim.average was null and is now 0.9")
    run(having).told("optim.average was 0.9 and is now null")
    named = ("--resume", str(without / "checkpoints" / "step-000005"))
    run(tmp_path / "new", *average, *named).told("of a run with other numbers: optim.average was null and is now 0.9")
    run(having, *average, "--export", "last").done().says("going on after step 5")


BAD: dict[str, tuple[list[str], str]] = {
    "average of 1": (["--optim.average", "1"], "optim.average is 1.0; it must be above 0 and below 1"),
    "export of none": (["--export", "average"], "export is average, and no average of the weights is kept"),
    "layer decay of 0": (["--optim.layer_decay", "0"], "optim.layer_decay is 0.0; it must be above 0 and at most 1"),
    "layer decay without layers": (["--optim.layer_decay", "0.9"], "optim.layer_decay is 0.9, and the Network has no"),
    "muon without layers": (["--optim.name", "muon"], "optim.name is muon, and the Network has no layers"),
    "floor of 1": (["--optim.floor", "1"], "optim.floor is 1.0; it must be at least 0 and below 1"),
    "no restart": (["--optim.schedule", "cosine", "--optim.restarts", "0"], "optim.restarts is 0; it must be 1 or"),
    "part of a step": (["--optim.schedule", "wsd", "--optim.decay", "1.5"], "optim.decay is 1.5; give a whole number"),
    "more than all": (["--optim.schedule", "wsd", "--optim.warmup", "0.9"], "together more than all steps"),
    "decay of linear": (["--optim.decay", "5"], "optim.decay is 5.0, and optim.schedule is linear, which has none"),
    "floor of constant": (["--optim.floor", "0.1", "--optim.schedule", "constant"], "schedule is constant, which has"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_refused_by_name(case: str, tmp_path: Path) -> None:
    # A warm-up of 3 steps is the tiny recipe's own.
    flags, message = BAD[case]
    run(tmp_path / "run", *flags).refused(message)


def test_whole_matrices_are_not_gathered_from_the_host() -> None:
    runtime: Any = SimpleNamespace(
        data_parallel_size=1,
        size=1,
        strategy=Strategy(sharded=True, offloaded=True),
        launch=SimpleNamespace(accumulation=None),
        precision="no",
    )
    config = config_of("muon")
    with pytest.raises(UserError, match=r"optim\.name is muon, which gathers whole matrices.*fsdp_offload_params"):
        check_fit(task(config), config, runtime)
    check_fit(task(config), config_of("adamw"), runtime)


def test_an_average_of_half_precision_does_not_stand_still() -> None:
    model = torch.nn.Linear(4, 4, bias=False).bfloat16()
    optimizer = build_optimizer(OptimConfig(lr=0.1), model)
    for step in range(50):
        model.weight.data.fill_(1 + step / 64)
        take_into_average(optimizer, 0.999, torch.tensor(1.0))
    counts = [0.999 ** (49 - step) for step in range(50)]
    expected = sum(count * (1 + step / 64) for step, count in enumerate(counts)) / sum(counts)
    assert float(optimizer.state[model.weight]["average"].mean()) == pytest.approx(expected, rel=1e-6)
