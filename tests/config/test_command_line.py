"""The command line: what it yields, what it says, and how fast it says it."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from toolkit.config.batch import BatchConfig
from toolkit.config.fields import leaves
from toolkit.config.optim import OptimConfig
from toolkit.config.parser import parse
from toolkit.config.schema import Config, EvaluateConfig, TimeoutConfig
from toolkit.config.suggestions import nearest
from toolkit.config.yaml import as_mapping, differing, flatten, read_yaml, to_yaml
from toolkit.errors import UserError

DESCRIPTION = """Put texts into classes.

    accelerate launch recipes/classify.py --model.name path/to/encoder --data.train reviews.csv --data.text review
        a line that is longer than a terminal and stays as it is
"""


@dataclass(frozen=True)
class LoraConfig:
    rank: int = 0
    """Rank of the added matrices, 100% of them; 0 trains the model itself."""


@dataclass(frozen=True)
class ModelConfig:
    name: str = "embedded"
    """A hub id or a folder."""
    dropout: float | None = None
    """Dropout; null keeps the model's own."""
    lora: LoraConfig = LoraConfig()
    """Low-rank adaptation."""
    freeze: list[str] | None = None
    """Parts that are not trained."""
    labels: dict[str, int] | None = None
    """Names and numbers."""

    def problems(self) -> Iterator[str]:
        if self.lora.rank < 0:
            yield f"model.lora.rank is {self.lora.rank}; it must be 0 or greater"


@dataclass(frozen=True)
class Recipe(Config):
    model: ModelConfig = ModelConfig()
    """What is trained."""
    pooling: Literal["first", "mean"] | None = None
    """How tokens become one vector."""


@dataclass(frozen=True)
class InSteps(Config):
    epochs: float | None = None
    steps: int | None = 200


def read(*arguments: str) -> Recipe:
    return parse(Recipe, DESCRIPTION, arguments)


def problems(*arguments: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        read(*arguments)
    return list(caught.value.problems)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def to_file(content: str | bytes, name: str = "run.yaml") -> str:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return to_file


# What it yields


def test_no_arguments_yield_the_defaults() -> None:
    assert read() == Recipe()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--batch.size", "64"], Recipe(batch=BatchConfig(size=64))),
        (["--batch.size=64", "--seed=1"], Recipe(batch=BatchConfig(size=64), seed=1)),
        (["--optim.lr", "1e-3"], Recipe(optim=OptimConfig(lr=0.001))),
        (["--optim.lr", "2"], Recipe(optim=OptimConfig(lr=2.0))),
        (["--optim.betas", "[0.9,0.95]"], Recipe(optim=OptimConfig(betas=(0.9, 0.95)))),
        (["--optim.clip", "null"], Recipe(optim=OptimConfig(clip=None))),
        (["--evaluate.only"], Recipe(evaluate=EvaluateConfig(only=True))),
        (["--evaluate.only", "--seed", "1"], Recipe(evaluate=EvaluateConfig(only=True), seed=1)),
        (["--evaluate.only", "yes"], Recipe(evaluate=EvaluateConfig(only=True))),
        (["--batch.balance", "Off"], Recipe(batch=BatchConfig(balance=False))),
        (["--evaluate.only", "true"], Recipe(evaluate=EvaluateConfig(only=True))),
        (["--batch.balance", "false"], Recipe(batch=BatchConfig(balance=False))),
        (["--output", "5"], Recipe(output="5")),
        (["--output", "a: b"], Recipe(output="a: b")),
        (["--model.name", "null"], Recipe(model=ModelConfig(name="null"))),
        (["--model.name=-x"], Recipe(model=ModelConfig(name="-x"))),
        (["--model.lora.rank", "8"], Recipe(model=ModelConfig(lora=LoraConfig(8)))),
        (["--model.freeze", "[embeddings, '1']"], Recipe(model=ModelConfig(freeze=["embeddings", "1"]))),
        (["--model.labels", "{no: 0, yes: 1}"], Recipe(model=ModelConfig(labels={"no": 0, "yes": 1}))),
        (["--pooling", "mean"], Recipe(pooling="mean")),
        (["--seed", "3", "--seed", "3"], Recipe(seed=3)),
    ],
)
def test_flags(arguments: list[str], expected: Recipe) -> None:
    config = read(*arguments)
    assert config == expected
    assert [type(value) for value in flatten(as_mapping(config)).values()] == [
        type(value) for value in flatten(as_mapping(expected)).values()
    ]


def test_a_file_is_overridden_by_flags_on_either_side_of_it_and_by_later_files(write: Any) -> None:
    first = write("batch: {size: 8, eval: 3}\noptim:\n  lr: 1e-3\nmodel.name: x\n", "first.yaml")
    second = write("batch:\n  size: 9\n", "second.yaml")
    config = read("--seed", "4", "--config", first, "--batch.micro", "2", f"--config={second}", "--optim.eps", "1e-6")
    assert config == Recipe(
        batch=BatchConfig(size=9, eval=3, micro=2),
        optim=OptimConfig(lr=0.001, eps=1e-6),
        model=ModelConfig(name="x"),
        seed=4,
    )
    assert read("--batch.size", "7", "--config", first).batch.size == 7
    assert read("--config", second, "--config", first).batch.size == 8


@pytest.mark.parametrize(
    ("line", "value"), [("1e-3", 0.001), ("1E3", 1000.0), (".5", 0.5), ("2", 2.0), ("3.", 3.0), ("+1e+2", 100.0)]
)
def test_every_way_to_write_a_float_in_a_file(write: Any, line: str, value: float) -> None:
    lr = read("--config", write(f"optim: {{lr: {line}}}")).optim.lr
    assert lr == value
    assert type(lr) is float


@pytest.mark.parametrize("text", ["'null'", "'5'", "no", "off", "2024-01-01", "1:30", "010", "'1e-3'", "' a: b '"])
def test_text_in_a_file_stays_text(write: Any, text: str) -> None:
    assert read("--config", write(f"output: {text}")).output == text.strip("'")


def test_a_quoted_number_in_a_file_is_a_number_where_no_text_is_taken(write: Any) -> None:
    assert read("--config", write("batch: {size: '8', micro: 'null'}\noptim: {lr: '1e-3'}")) == Recipe(
        batch=BatchConfig(size=8), optim=OptimConfig(lr=0.001)
    )


@pytest.mark.parametrize("content", ["timeout: {meeting: 5}", "timeout.meeting: 5", "timeout: {rendezvous: 5}"])
def test_a_file_of_an_earlier_version_is_read_by_the_names_of_today(write: Any, content: str) -> None:
    """So a run goes on that was begun before: its config.yaml and its checkpoints have the old name."""
    path = write(content)
    assert read("--config", path) == Recipe(timeout=TimeoutConfig(rendezvous=5))
    assert differing(read_yaml(path), {"timeout": {"rendezvous": 5}}) == []
    assert differing(read_yaml(path), {"timeout": {"rendezvous": 6}}) == [("timeout.rendezvous", 5, 6)]
    both = write("timeout: {meeting: 5, rendezvous: 6}")
    assert problems("--config", both) == [f"timeout.rendezvous is given more than once in {both}: 5, 6; give one value"]


@pytest.mark.parametrize("content", ["", "# nothing\n", "---\n", "batch:\n  # size: 3\nmodel: {lora: {}}\n", "\ufeff"])
def test_an_empty_file_or_section_sets_nothing(write: Any, content: str) -> None:
    assert read("--config", write(content)) == Recipe()


def test_steps_and_epochs_take_each_others_place(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert (read("--steps", "9").epochs, read("--steps", "9").steps) == (None, 9)
    assert read("--config", write("steps: 9")).epochs is None
    assert read("--config", write("epochs: 2\nsteps: 8"), "--epochs", "null").epochs is None
    in_epochs = parse(InSteps, "", ["--epochs", "0.5"])
    assert (in_epochs.epochs, in_epochs.steps) == (0.5, None)
    assert parse(InSteps, "", ["--seed", "1"]).steps == 200
    with pytest.raises(SystemExit):
        read("--steps", "9", "--print_config")
    assert "epochs: null\nsteps: 9\n" in capsys.readouterr().out
    # A null says only that the other one counts.
    assert read("--steps", "null") == Recipe()


def test_steps_and_epochs_together_are_refused() -> None:
    assert problems("--steps", "9", "--epochs", "2") == [
        "epochs is 2.0 and steps is 9; give one of them and set the other to null (given by --steps and by --epochs)"
    ]
    assert problems("--epochs", "null") == ["neither epochs nor steps is given; give one of them (given by --epochs)"]


# The round trip

texts = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        ["\x85", "a\u2028b\n", "null", "~", "1e-3", "1_0", "0o7", "yes", "=", "-", "- a", "<<", "5", "a: b"]
    ),
)
rates = st.floats(1e-12, 1e6)
recipes = st.builds(
    Recipe,
    batch=st.builds(
        BatchConfig,
        size=st.integers(8, 2**40),
        micro=st.none() | st.integers(1, 8) | st.just("auto"),
        micro_tokens=st.none() | st.integers(1, 2**40),
        balance=st.booleans(),
        pack=st.sampled_from(["auto", "always", "never"]),
        eval=st.integers(1, 9),
    ).filter(lambda batch: not list(batch.problems())),
    optim=st.builds(
        OptimConfig,
        name=st.sampled_from(["adamw", "sgd", "adafactor", "muon"]),
        lr=rates,
        betas=st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)),
        eps=rates,
        clip=st.none() | rates,
        warmup=st.floats(0, 1) | st.integers(0, 999).map(float),
        layer_decay=st.none() | st.floats(1e-3, 1),
        average=st.none() | st.floats(1e-3, 0.999),
    ),
    evaluate=st.builds(EvaluateConfig, every=st.none() | st.integers(1), only=st.booleans()),
    output=st.none() | texts.filter(str.strip),
    seed=st.integers(0, 2**64),
    model=st.builds(
        ModelConfig,
        name=texts,
        dropout=st.none() | rates,
        lora=st.builds(LoraConfig, st.integers(0, 64)),
        freeze=st.none() | st.lists(texts, max_size=3),
        labels=st.none() | st.dictionaries(texts, st.integers(), max_size=3),
    ),
    pooling=st.sampled_from([None, "first", "mean"]),
).flatmap(
    lambda recipe: st.one_of(
        rates.map(lambda epochs: replace(recipe, epochs=epochs)),
        st.integers(1).map(lambda steps: replace(recipe, epochs=None, steps=steps)),
    )
)


@settings(max_examples=150, deadline=None)
@given(recipe=recipes, seed=st.integers(0, 9), before=st.booleans())
def test_any_configuration_comes_back_from_its_yaml(
    recipe: Recipe, seed: int, before: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "round_trip.yaml"
    path.write_text(to_yaml(recipe), encoding="utf-8")
    config = ["--config", str(path)]
    assert read(*config) == recipe
    flag = ["--seed", str(seed)]
    assert read(*(flag + config if before else config + flag)) == replace(recipe, seed=seed)
    assert differing(read_yaml(path), as_mapping(recipe)) == []


@settings(max_examples=60, deadline=None)
@given(recipe=recipes, place=st.integers(0, 2))
def test_any_configuration_comes_back_from_print_config(
    recipe: Recipe, place: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "printed.yaml"
    path.write_text(to_yaml(recipe), encoding="utf-8")
    arguments = [["--config", str(path)], ["--batch.eval", "5"]]
    arguments.insert(place, ["--print_config"])
    with pytest.MonkeyPatch.context() as patch:
        printed: list[str] = []
        patch.setattr("builtins.print", lambda text, end: printed.append(text))
        with pytest.raises(SystemExit) as ended:
            read(*chain(*arguments))
    assert ended.value.code == 0
    path.write_text("".join(printed), encoding="utf-8")
    assert read("--config", str(path)) == replace(recipe, batch=replace(recipe.batch, eval=5))


@settings(max_examples=100, deadline=None)
@given(recipe=recipes)
def test_any_configuration_comes_back_from_its_flags(recipe: Recipe) -> None:
    flags = []
    for key, _, _ in leaves(recipe):
        section, _, name = key.rpartition(".")
        value = getattr(reduce(getattr, section.split("."), recipe) if section else recipe, name)
        text = value if isinstance(value, str) else to_yaml(value).removesuffix("\n...\n")
        flags.append(f"--{key}={text}")
    # Where null is allowed a flag can't give the text "null", nor "~".
    assume((recipe.output or "").strip().lower() not in ("null", "~"))
    assert read(*flags) == recipe


def test_yaml_is_in_field_order_with_lists_on_one_line() -> None:
    text = to_yaml(Recipe(steps=7, epochs=None))
    lines = text.splitlines()
    assert lines[:3] == ["batch:", "  size: 32", "  micro: null"]
    assert "  betas: [0.9, 0.999]" in lines
    assert [line.split(":")[0] for line in lines if line[0] != " "] == [
        *("batch", "optim", "evaluate", "checkpoint", "timeout", "log", "track"),
        *("epochs", "steps", "seed", "export", "output", "resume", "rehearse", "threads", "model", "pooling"),
    ]


def test_differing_names_each_key_with_both_values() -> None:
    first, second = as_mapping(Recipe()), as_mapping(Recipe(seed=3, optim=OptimConfig(betas=(0.9, 0.5))))
    assert differing(first, second) == [("optim.betas", [0.9, 0.999], [0.9, 0.5]), ("seed", 0, 3)]
    # A key that one of them lacks counts as null.
    assert differing({"a": {"b": 1}}, {"c": None, "d": (2,)}) == [("a.b", 1, None), ("d", None, [2])]
    assert flatten({"a": {"b": {"c": 1}}, "d": {}}) == {"a.b.c": 1, "d": {}}


# What it says


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--bach.size", "3"], "--bach.size 3 is unknown; did you mean --batch.size?"),
        (["--lr=3"], "--lr 3 is unknown; did you mean --optim.lr?"),
        (["--batch_size", "64"], "--batch_size 64 is unknown; did you mean --batch.size?"),
        (["--learning-rate", "-1"], "--learning-rate -1 is unknown; did you mean --optim.lr?"),
        (["--optim.wamup", "3"], "--optim.wamup 3 is unknown; did you mean --optim.warmup?"),
        (["--batch.siz", "3"], "--batch.siz 3 is unknown; did you mean --batch.size?"),
        (["--model.rank", "3"], "--model.rank 3 is unknown; did you mean --model.lora.rank?"),
        (["--name", "x"], "--name x is unknown; did you mean --optim.name or --model.name?"),
        (["--timeout.meeting", "5"], "--timeout.meeting 5 is unknown; did you mean --timeout.rendezvous?"),
        (["--train_batch_size", "8"], "--train_batch_size 8 is unknown; did you mean --batch.size?"),
        (["--trainer.max_epochs", "8"], "--trainer.max_epochs 8 is unknown; did you mean --epochs?"),
        (["--bf16"], "--bf16 is unknown; mixed precision is the launcher's: mixed_precision in the launch file"),
        (
            ["--local-rank=0"],
            "--local-rank 0 is unknown; how many processes there are, and where, is the launcher's, which",
        ),
        (["--deepspeed", "x.json"], "--deepspeed x.json is unknown; how a model is spread is the launcher's: "),
        (
            ["--gradient_accumulation_steps", "4"],
            "--gradient_accumulation_steps 4 is unknown; batch.size is what one step takes over all processes, "
            "batch.micro at most",
        ),
        (["--threads", "100000"], "threads is 100000; it must be from 1 to 1,024"),
        (["--log.every", "0"], "log.every is 0; it must be 1 or greater"),
        (["--gibberish"], "--gibberish is unknown; --help lists every name"),
        (["--model.x", "1"], "--model.x 1 is unknown; model has --model.name, --model.dropout, --model.lora.rank, "),
        (["--batch", "{size: 3}"], "--batch {size: 3} can't be set, batch is a section; did you mean --batch.size? "),
        (["--batch.size", "many"], "batch.size is many; it must be a whole number (given by --batch.size)"),
        (["--batch.size", "2.5"], "batch.size is 2.5; it must be a whole number (given by --batch.size)"),
        (["--batch.size", "64.0"], "batch.size is 64.0; it must be a whole number (given by --batch.size); write 64"),
        (["--steps", "1e4"], "steps is 1e4; it must be a whole number or null (given by --steps); write 10000"),
        (["--batch.size", "true"], "batch.size is true; it must be a whole number (given by --batch.size)"),
        (["--batch.size="], "batch.size is ''; it must be a whole number (given by --batch.size)"),
        (["--batch.size", "null"], "batch.size is null; it must be a whole number (given by --batch.size)"),
        (["--batch.size", ".nan"], "batch.size is .nan; it must be a whole number (given by --batch.size)"),
        (["--steps", "1:30"], "steps is 1:30; it must be a whole number or null (given by --steps)"),
        (["--steps", "0x10"], "steps is 0x10; it must be a whole number or null (given by --steps)"),
        (["--optim.clip", "#x"], "optim.clip is #x; it must be a number or null (given by --optim.clip)"),
        (["--model.freeze", "&x [*x]"], "model.freeze is &x [*x]; it must be a list, each text or null (given by"),
        (["--optim.lr", ".nan"], "optim.lr is .nan; it must be a finite number or null (given by --optim.lr)"),
        (["--optim.clip=-.inf"], "optim.clip is -.inf; it must be a finite number or null (given by --optim.clip)"),
        (["--evaluate.only", "maybe"], "evaluate.only is maybe; it must be true or false (given by --evaluate.only)"),
        (
            ["--optim.schedule", "cosin"],
            "optim.schedule is cosin; it must be one of: linear, cosine, constant, wsd (given by --optim.schedule); "
            "did you mean cosine?",
        ),
        (["--pooling", "max"], "pooling is max; it must be one of: first, mean or null (given by --pooling)"),
        (
            ["--optim.betas", "[0.9]"],
            "optim.betas is [0.9]; it must be a list of 2: [a number, a number] (given by --optim.betas)",
        ),
        (["--model.freeze", "x"], "model.freeze is x; it must be a list, each text or null (given by --model.freeze)"),
        (["--output", "a\udcffb"], "output is 'a\\udcffb'; it must be text or null (given by --output)"),
        (["--batch.size", "0"], "batch.size is 0; it must be 1 or greater (given by --batch.size)"),
        (["--optim.lr", "-1e-3"], "optim.lr is -0.001; it must be greater than 0 (given by --optim.lr)"),
        (["--model.lora.rank", "-1"], "model.lora.rank is -1; it must be 0 or greater (given by --model.lora.rank)"),
        (["--batch.size"], "--batch.size has no value; it must be a whole number"),
        (["--optim.name", "--seed", "1"], "--optim.name has no value; it must be one of: adamw, sgd, adafactor, muon"),
        (["--config"], "--config has no value; it must be the path of a YAML file"),
        (["--config="], "--config has no value; it must be the path of a YAML file"),
        (["data.csv"], "data.csv is not a flag; a setting is given as --name value"),
        (["--seed", "1", "2"], "2 is not a flag; a setting is given as --name value"),
        (["-seed", "1"], "-seed is not a flag, flags begin with two dashes; did you mean --seed?"),
        (["--"], "-- is not a flag"),
        (["--print_config=all"], "--print_config all is unknown"),
        (["--seed", "1", "--seed=2"], "seed is given more than once by --seed: 1, 2; give one value"),
    ],
)
def test_one_bad_flag(arguments: list[str], expected: str) -> None:
    found = problems(*arguments)
    assert len(found) == 1
    assert found[0].startswith(expected)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"output: \xff\xfe\n", "{path} is not UTF-8: line 1 holds the byte 0xff; save it as UTF-8"),
        ("seed: 1\nbatch: {size: 3\n", "{path} is not YAML: line 3, column 1: expected ',' or '}}', but got"),
        ("seed: 1\n\tbatch: 2\n", "{path} is not YAML: line 2, column 1: found character '\\t'"),
        ("seed: 1\nseed: 2\n", "{path} is not YAML: line 2, column 1: the key seed stands twice"),
        ("seed: 1\n---\nseed: 2\n", "{path} is not YAML: line 2, column 1: but found another document"),
        ("seed: !!python/object:os.system 1", "{path} is not YAML: line 1, column 7: could not determine"),
        ("seed: !!bool x", "{path} is not YAML: 'x'"),
        ("seed: !!int x", "{path} is not YAML: invalid literal for int()"),
        ("seed: \x00", "{path} is not YAML: unacceptable character #x0000"),
        ("? [a]\n: 1", "{path} is not YAML: line 1, column 3: found unhashable key"),
        ("- seed\n- 1\n", "{path} holds a list; it must hold lines such as `seed: 1`"),
        ("seed 1\n", "{path} holds the single value 'seed 1'; it must hold"),
        ("[" * 4000, "{path} is nested too deeply"),
        ("a: &x {b: *x}", "{path} refers to itself"),
    ],
)
def test_one_bad_file(write: Any, content: str | bytes, expected: str) -> None:
    path = write(content)
    found = problems("--config", path)
    assert len(found) == 1
    assert found[0].startswith(expected.format(path=f"the configuration file {path}"))


def test_a_file_that_is_missing_a_folder_or_unreadable(tmp_path: Path) -> None:
    assert problems("--config", "nowhere.yaml") == ["the configuration file nowhere.yaml does not exist"]
    assert problems("--config", str(tmp_path)) == [
        f"the configuration file {tmp_path} is a folder; name a YAML file in it"
    ]
    (tmp_path / "loop").symlink_to("loop")
    assert "can't be read: Too many levels of symbolic links" in problems("--config", str(tmp_path / "loop"))[0]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("lr: 3", "lr: 3 (in {path}) is unknown; did you mean optim.lr?"),
        ("bach: {size: 3}", "bach.size: 3 (in {path}) is unknown; did you mean batch.size?"),
        ("batch: {sise: 3}", "batch.sise: 3 (in {path}) is unknown; did you mean batch.size?"),
        ("1: x", "1: x (in {path}) is unknown; --help lists every name"),
        ("batch: 3", "batch: 3 (in {path}) can't be set, batch is a section; did you mean batch.size? "),
        ("batch: {size: 2.5}", "batch.size is 2.5; it must be a whole number (given in {path})"),
        ("batch: {size: true}", "batch.size is true; it must be a whole number (given in {path})"),
        ("seed: {a: 1}", 'seed is {{"a": 1}}; it must be a whole number (given in {path})'),
        ("evaluate: {only: 1}", "evaluate.only is 1; it must be true or false (given in {path})"),
        ("model: {freeze: x}", "model.freeze is x; it must be a list, each text or null (given in {path})"),
        ("model: {name: 5}", "model.name is 5; it must be text (given in {path}); put it in quotes"),
        ("model: {name: null}", "model.name is null; it must be text (given in {path}); put it in quotes"),
        ("optim: {lr: .inf}", "optim.lr is Infinity; it must be a finite number or null (given in {path})"),
        ("batch: {size: 0}", "batch.size is 0; it must be 1 or greater (given in {path})"),
        ("seed: 1\nbatch: {size: 3}\nbatch.size: 4", "batch.size is given more than once in {path}: 3, 4; give one"),
    ],
)
def test_one_bad_setting_in_a_file(write: Any, content: str, expected: str) -> None:
    path = write(content)
    found = problems("--config", path)
    assert len(found) == 1
    assert found[0].startswith(expected.format(path=path))


def test_all_problems_are_reported_together(write: Any) -> None:
    path = write("optim: {lr: fast, betas: [0.9, 2]}\nsede: 1\nepochs: -1\n")
    assert problems(
        *("--config", path, "--config", "nowhere.yaml", "stray", "--batch.size", "x", "--batch.micro", "64"),
        *("--batch.eval", "0", "--seed"),
    ) == [
        f"optim.lr is fast; it must be a number or null (given in {path})",
        f"sede: 1 (in {path}) is unknown; did you mean seed?",
        "the configuration file nowhere.yaml does not exist",
        "stray is not a flag; a setting is given as --name value",
        "--seed has no value; it must be a whole number",
        "batch.size is x; it must be a whole number (given by --batch.size)",
        # Not that batch.micro exceeds batch.size: nobody chose the default that it would be compared with.
        "batch.eval is 0; it must be 1 or greater (given by --batch.eval)",
        f"optim.betas is [0.9, 2.0]; both must be at least 0 and below 1 (given in {path})",
        f"epochs is -1.0; it must be greater than 0 (given in {path})",
    ]


def test_a_mistyped_name_is_not_blamed_on_the_default_of_the_right_one() -> None:
    assert problems("--batch.sise", "128", "--batch.micro", "64") == [
        "--batch.sise 128 is unknown; did you mean --batch.size?"
    ]
    assert problems("--config", "nowhere.yaml", "--batch.micro", "64") == [
        "the configuration file nowhere.yaml does not exist"
    ]


def test_print_config_with_a_problem_prints_no_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(problems("--print_config", "--batch.size", "0")) == 1
    assert capsys.readouterr() == ("", "")


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.one_of(st.text(max_size=6), st.sampled_from(["--seed", "--batch.size=", "--x.y", "-1", "[", "{a: "])))
)
def test_no_argument_brings_anything_but_a_configuration_or_problems(arguments: list[str]) -> None:
    try:
        assert isinstance(read(*(a for a in arguments if a not in ("-h", "--help"))), Recipe)
    except UserError as error:
        problems = error.problems
    else:
        problems = ("no problem",)
    assert problems
    assert not any("\n" in problem for problem in problems)


def test_every_field_is_the_nearest_name_to_its_misspellings() -> None:
    names = [key for key, _, _ in leaves(Recipe())]
    for name in names:
        assert nearest(name.replace(".", "_"), names)[0] == name
        assert nearest(name.replace("_", "-").upper(), names)[0] == name
        if len(name) > 6:
            assert nearest(name[:-1], names)[0] == name


# The help, and the time it takes


def help_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as ended:
        read("--batch.size", "wrong", "--help")
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_help_shows_the_description_as_it_is(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert DESCRIPTION.strip() in help_text(capsys, monkeypatch)


def test_help_shows_every_field_with_its_sentence_type_and_default(capsys: Any, monkeypatch: Any) -> None:
    text = " ".join(help_text(capsys, monkeypatch).split())
    for key, _, _ in leaves(Recipe()):
        assert f" --{key} VALUE " in text
    for expected in (
        "--batch.size VALUE Samples of one optimizer step, over all processes (the global batch). "
        "(a whole number; default: 32)",
        "batch: How many samples a step takes and how they are cut.",
        "model.lora: Low-rank adaptation. --model.lora.rank VALUE Rank of the added matrices, 100% of them; 0 trains",
        "--optim.betas VALUE Decay rates of the running averages of AdamW; sgd and muon take the first as their "
        "momentum. (a list of 2: [a number, a number]; default: [0.9, 0.999])",
        "--pooling VALUE How tokens become one vector. (one of: first, mean or null; default: null)",
        "--print_config Print the resulting settings",
    ):
        assert expected in text


def test_help_and_a_mistyped_flag_are_fast_and_import_no_torch() -> None:
    program = """
import json, sys, time
start = time.perf_counter()
from toolkit.config.parser import parse
from toolkit.config.fields import leaves
from toolkit.config.schema import Config
from toolkit.errors import UserError
for arguments in (["--help"], ["--lr", "1"]):
    try:
        parse(Config, "x", arguments)
    except (SystemExit, UserError):
        pass
heavy = {"torch", "transformers", "accelerate", "numpy", "docstring_parser"} & set(sys.modules)
print(json.dumps([sorted(heavy), time.perf_counter() - start]), file=sys.stderr)
"""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    heavy, _ = json.loads(done.stderr)
    assert heavy == []
    assert time.perf_counter() - start < 3  # 0.2 s on an idle machine
