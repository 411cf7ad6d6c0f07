"""`toolkit chat` replies to each line as the evaluation does, with what was said before, and says what is wrong."""

import json
from io import StringIO
from pathlib import Path

import pytest
from recipe_layouts import config_class, load_recipe, small_arguments
from trial import alone, command_here, run_here

from toolkit.predict.chat import HELP, Talk, chat


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat")
    recipe = load_recipe("chat")
    arguments = [*small_arguments("chat", folder / "data"), "--threads", "1", "--optim.lr", "1e-2"]
    return run_here(config_class(recipe), recipe.task, arguments, folder / "run").done().folder


def talked(run: Path, said: str, **more: object) -> str:
    output = StringIO()
    with alone():
        chat(Talk(str(run), tokens=6, **more), StringIO(said), output)  # type: ignore[arg-type]
    return output.getvalue()


def test_a_talk_is_the_conversation_that_predict_replies_to(run: Path, tmp_path: Path) -> None:
    asked = ["What is the colour of sky?", "What is the colour of coal?"]
    heading, *lines = talked(run, "\n".join(asked) + "\n").splitlines()
    assert heading == f"{run}: {HELP}"
    replies = [line.removeprefix("> ").strip() for line in lines if line.strip(" >")]
    assert len(replies) == 2
    first = [{"role": "user", "content": asked[0]}]
    second = [*first, {"role": "assistant", "content": replies[0]}, {"role": "user", "content": asked[1]}]
    file = tmp_path / "in.jsonl"
    file.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in (first, second)))
    words = ["--output", tmp_path / "out.jsonl", "--tokens", "6", "--threads", "1"]
    command_here("predict", run, file, *words).done()
    found = [json.loads(line)["prediction"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [" ".join(reply.split()) for reply in found] == [" ".join(reply.split()) for reply in replies]


def test_a_talk_begins_anew(run: Path) -> None:
    said = talked(run, "What is the colour of sky?\n/new\nWhat is the colour of sky?\n\nWhat is never read?\n")
    replies = [part.strip() for part in said.partition("\n")[2].split(">") if part.strip()]
    assert len(replies) == 2
    assert replies[0] == replies[1]


def test_mistakes(run: Path, tmp_path: Path) -> None:
    command_here("chat", tmp_path / "no" / "model").told("and there is no such folder")
    command_here("chat", run, "--tokens", "0", "--temperature", "-1").told("--tokens is 0", "--temperature is -1")
