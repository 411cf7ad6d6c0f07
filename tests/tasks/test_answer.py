"""The recipe that answers questions: layouts, windows, spans, the rules of the scores, and the model as it is used."""

import importlib.util
import json
import re
import string
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from small_answer import arguments, questions, write_rows
from trial import Outcome, run_here

from toolkit.errors import UserError
from toolkit.models.tokenizer import ENCODER, train_tokenizer
from toolkit.tasks.question_answering.answers import best_answers, best_spans, span_loss
from toolkit.tasks.question_answering.checks import NOWHERE
from toolkit.tasks.question_answering.data import QuestionData, groups_of
from toolkit.tasks.question_answering.metrics import answer_scores
from toolkit.tasks.question_answering.windows import WindowSize, pad_windows, question_windows

RECIPE = Path(__file__).parents[2] / "recipes" / "answer.py"


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    spec = importlib.util.spec_from_file_location("answer_recipe", RECIPE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tokenizer")
    texts = [text for row in questions(40, 0) for text in (row["question"], row["context"])]
    train_tokenizer(texts, folder, ENCODER)
    return PreTrainedTokenizerFast.from_pretrained(folder)


def answer(recipe: ModuleType, folder: Path, *words: str) -> Outcome:
    return run_here(recipe.Answer, recipe.task, ["--threads", "1", *words], folder)


def refusal(folder: Path, rows: list[dict[str, Any]], **settings: Any) -> str:
    """Return the message on rows that are refused."""
    with pytest.raises(UserError) as caught:
        QuestionData(train=str(write_rows(folder / "rows.jsonl", rows)), **settings).read()
    return str(caught.value)


# The scores.


def published_words(text: str) -> str:
    """The published normalisation, once more: lower case, punctuation, articles, white space, in this order."""
    text = "".join(sign for sign in text.lower() if sign not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text, flags=re.UNICODE).split())


def published_f1(answer: str, reference: str, version: int) -> float:
    given, wanted = published_words(answer).split(), published_words(reference).split()
    if version == 2 and (not given or not wanted):
        return float(given == wanted)
    left = list(wanted)
    shared = sum(1 for word in given if word in left and (left.remove(word) or True))
    if not shared:
        return 0.0
    precision, recall = shared / len(given), shared / len(wanted)
    return 2 * precision * recall / (precision + recall)


def published_scores(answers: list[str], references: list[list[str]], version: int) -> tuple[float, float]:
    exact, f1 = [], []
    for given, known in zip(answers, references, strict=True):
        worth = known if version == 1 else [text for text in known if published_words(text)] or [""]
        exact.append(max(float(published_words(given) == published_words(text)) for text in worth))
        f1.append(max(published_f1(given, text, version) for text in worth))
    return sum(exact) / len(exact), sum(f1) / len(f1)


TRICKY = [
    ("The U.S.A.", ["USA", "United States"]),
    ("a an the", ["The"]),
    ("the–dog", ["dog", "– dog"]),
    ("Theatre", ["theatre of the absurd", "the theatre"]),
    ("twenty-one  years", ["twenty one years", "Twentyone Years!"]),
    ("to be or not to be", ["not to be", "be be be"]),
    ("l’a dit", ["l’ dit", "la dit"]),
    ("snake_case", ["snakecase"]),
    ("", ["something"]),
    ("İstanbul", ["istanbul", "i̇stanbul"]),
    ("an\u00a0apple", ["apple"]),
    ("42.5%", ["425", "42"]),
]


def scored(pairs: list[tuple[str, list[str]]], folder: Path) -> dict[str, float]:
    predictions, references = zip(*pairs, strict=True)
    return answer_scores(list(predictions), list(references))


def test_scores_follow_the_published_rules_of_version_1(tmp_path: Path) -> None:
    expected = published_scores(*map(list, zip(*TRICKY, strict=True)), version=1)  # type: ignore[arg-type]
    scores = scored(TRICKY, tmp_path)
    assert (scores["exact_match"], scores["f1"]) == pytest.approx(expected, rel=1e-15)
    assert scored([("the cat sat", ["Cat sat down", "a dog"])], tmp_path) == {"exact_match": 0.0, "f1": 0.8}


def test_scores_follow_the_published_rules_of_version_2(tmp_path: Path) -> None:
    pairs = [*TRICKY, ("", []), ("the", []), ("a guess", [])]
    expected = published_scores(*map(list, zip(*pairs, strict=True)), version=2)  # type: ignore[arg-type]
    scores = scored(pairs, tmp_path)
    assert (scores["exact_match"], scores["f1"]) == pytest.approx(expected, rel=1e-15)
    assert scores["no_answer_accuracy"] == pytest.approx(2 / 3)
    answered = published_scores(*map(list, zip(*TRICKY, strict=True)), version=2)  # type: ignore[arg-type]
    assert (scores["answered_exact_match"], scores["answered_f1"]) == pytest.approx(answered)


# Reading.


def test_every_layout_gives_the_same_questions(tmp_path: Path) -> None:
    rows = questions(12, 3)
    articles: dict[str, list[dict[str, Any]]] = {"one": [], "two": []}
    for number, row in enumerate(rows):
        answers = [{"text": text, "answer_start": start} for text, start in zip(*row["answers"].values(), strict=True)]
        asked = {"id": row["id"], "question": row["question"], "answers": answers, "is_impossible": not answers}
        articles["one" if number < 6 else "two"].append({"context": row["context"], "qas": [asked]})
    nested = tmp_path / "nested.json"
    layout = [{"title": title, "paragraphs": paragraphs} for title, paragraphs in articles.items()]
    nested.write_text(json.dumps({"version": "v2.0", "data": layout}))
    listed = [
        {**row, "answers": [{"text": t, "answer_start": s} for t, s in zip(*row["answers"].values(), strict=True)]}
        for row in rows
    ]
    simple = [
        {
            "ask": row["question"],
            "Passage": row["context"],
            "answer": next(iter(row["answers"]["text"]), None),
            "answer_start": next(iter(row["answers"]["answer_start"]), None),
        }
        for row in rows
    ]
    tables = [
        write_rows(tmp_path / f"{name}.jsonl", made) for name, made in (("a", rows), ("b", listed), ("c", simple))
    ]
    parts = [QuestionData(train=str(tables[0]), eval=str(path)).read().evaluate for path in [nested, *tables]]
    for part in parts:
        assert part.questions == [row["question"] for row in rows]
        assert part.answers == [row["answers"]["text"] for row in rows]
        for number, (begin, end) in enumerate(part.spans.tolist()):
            context = part.contexts[part.context_of[number]]
            assert (
                (begin, end) == NOWHERE if not part.answers[number] else context[begin:end] == part.answers[number][0]
            )
        assert part.digest == parts[0].digest
    assert parts[0].titles == ["one"] * 6 + ["two"] * 6


def test_whatever_is_wrong_with_rows_is_told_at_once(tmp_path: Path) -> None:
    rows = questions(14, 0, missing=False)
    rows[0]["question"] = "  "
    rows[1]["context"] = None
    rows[2]["answers"] = {"text": ["Atlantis"], "answer_start": [3]}
    rows[3]["answers"]["answer_start"][0] += 1
    rows[4]["answers"] = {"text": ["attic"], "answer_start": [1, 2]}
    rows[5]["is_impossible"] = True
    message = refusal(tmp_path, rows)
    for number, part in [
        (1, "without a question"),
        (2, "without a context"),
        (3, "not in the context"),
        (4, "answer_start does not point at the answer, which occurs elsewhere"),
        (5, "as many starts as texts"),
        (6, "marked as impossible"),
    ]:
        assert re.search(rf"number {number},.*{part}.*--data.drop_invalid", message), part
    assert f"is said to start at {rows[3]['answers']['answer_start'][0]}, and starts at" in message
    assert "'Atlantis'" in message
    # Left out, or mended, and counted.
    path = write_rows(tmp_path / "rows.jsonl", rows)
    left = QuestionData(train=str(path), drop_invalid=True, mend_answers=True).read()
    assert left.summary["dropped"] == "questions with something wrong about them: 5 of the training data"
    assert left.summary["mended"].startswith("1 ")
    assert len(left.train) + len(left.evaluate) == 9


def test_cells_of_text_are_read_for_what_they_say(tmp_path: Path) -> None:
    base = {"question": "Which?", "context": "an attic, a barn"}
    rows = [
        {**base, "answer": "attic", "answer_start": "3", "is_impossible": "False"},
        {**base, "answer": " ", "answer_start": "", "is_impossible": "True"},
    ]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    read = QuestionData(train=str(path), eval=str(path)).read()
    assert read.train.answers == [["attic"], []]
    assert read.train.spans.tolist() == [[3, 8], list(NOWHERE)]
    assert read.guesses() == ["attic", "attic"]
    rows.append({**base, "answer": "barn", "answer_start": "there", "is_impossible": ""})
    assert re.search(r"number 3,.*no whole number.*'there'", refusal(tmp_path, rows))


def test_numbers_are_read_as_they_are_written(tmp_path: Path) -> None:
    base = {"question": "How many?", "context": "there are 12 or 3.5"}
    rows = [{**base, "answer": 12, "answer_start": 10.0}, {**base, "answer": 3.5, "answer_start": None}]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    read = QuestionData(train=str(path), eval=str(path)).read()
    assert read.train.answers == [["12"], ["3.5"]]
    assert read.train.spans.tolist() == [[10, 12], [16, 19]]
    for start in (10.5, float("inf")):
        wrong = [{**base, "answer": "12", "answer_start": start}]
        assert re.search(rf"number 1,.*no whole number.*the first: {start}\)", refusal(tmp_path, wrong))


def test_columns_that_cannot_be_found(tmp_path: Path) -> None:
    row = {"question": "Which?", "context": "an attic", "answer": "attic"}
    other = write_rows(tmp_path / "other.jsonl", [{"question": "Which?", "context": "an attic"}])
    message = refusal(tmp_path, [row], eval=str(other))
    assert message.startswith("evaluation data: cannot tell which column holds the answers")
    assert "the data has the columns 'question', 'context'" in message
    message = refusal(tmp_path, [row], question="context", context="context")
    assert "data.question is 'context', a column that is taken for something else too" in message
    # A column that was given is no other one, whatever its name.
    rows = [{"text": "Which?", "source": "an attic", "answer": "attic"}]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    assert QuestionData(train=str(path), eval=str(path), question="text").read().train.contexts == ["an attic"]


@pytest.mark.parametrize("paragraphs", ["text", ["text", "text"], [{"context": "an attic", "qas": ["Which?"]}]])
def test_a_nested_file_that_is_not_what_it_should_be(tmp_path: Path, paragraphs: Any) -> None:
    path = tmp_path / "nested.json"
    path.write_text(json.dumps({"data": [{"title": "one", "paragraphs": paragraphs}]}))
    with pytest.raises(UserError, match=r"article 1, paragraph 1, question 1.* without a question"):
        QuestionData(train=str(path)).read()


def test_an_answer_is_moved_to_the_nearest_place(tmp_path: Path) -> None:
    row = {"question": "Which?", "context": "an attic, a barn, an attic, a den", "answer": "attic", "answer_start": 17}
    other = {**row, "context": row["context"] + ".", "answer_start": 21}
    path = write_rows(tmp_path / "rows.jsonl", [row, other])
    read = QuestionData(train=str(path), eval=str(path), mend_answers=True).read()
    assert read.train.spans.tolist() == [[21, 26], [21, 26]]
    assert read.summary["mended"].startswith("2 ")  # one in either table
    for kept in (row, other):
        del kept["answer_start"]
    read = QuestionData(train=str(write_rows(path, [row, other]))).read()
    assert read.train.spans.tolist() == [[3, 8]]
    assert read.summary["guessed"].startswith("2 ")


def test_no_context_stands_on_both_sides(tmp_path: Path) -> None:
    rows = [{**row, "title": f"article {number % 5}"} for number, row in enumerate(questions(60, 0))]
    # Articles 3 and 4 share a context, so they belong together.
    rows[4]["context"], rows[4]["question"], rows[4]["answers"] = (
        rows[3][name] for name in ("context", "question", "answers")
    )
    bare = [{name: row[name] for name in row if name != "title"} for row in rows]
    for made, groups in ((rows, "of 4 articles"), (bare, "of 59 contexts")):
        path = write_rows(tmp_path / "rows.jsonl", made)
        read = QuestionData(train=str(path), held_out=0.3).read()
        assert groups in read.summary["held out"]
        assert not set(read.train.contexts) & set(read.evaluate.contexts)
        assert groups != "of 4 articles" or not set(read.train.titles) & set(read.evaluate.titles)
        assert len(read.train) + len(read.evaluate) == 60
    whole: Any = SimpleNamespace(context_of=np.array([0, 1, 1, 2]), titles=["a", "a", "b", None])
    assert groups_of(whole)[0].tolist() == [0, 0, 0, 1]
    assert "the same context" in refusal(tmp_path, [rows[0], rows[0]])


# Windows and spans.


def read_small(folder: Path, count: int = 23, **settings: Any) -> Any:
    path = write_rows(folder / "small.jsonl", questions(count, 2))
    return QuestionData(train=str(path), eval=str(path), **settings).read()


def test_windows_are_those_of_the_tokenizer_and_hold_the_answer(tmp_path: Path, tokens: Any) -> None:
    read = read_small(tmp_path)
    size = WindowSize(30, 7)
    windows = question_windows(read.train, tokens, size)
    contexts = [read.train.contexts[number] for number in read.train.context_of]
    theirs = tokens(
        read.train.questions,
        contexts,
        truncation="only_second",
        max_length=size.max_length,
        stride=size.stride,
        return_overflowing_tokens=True,
    )
    samples = windows.fetch(range(len(windows)))
    assert [sample["input_ids"] for sample in samples] == theirs["input_ids"]
    assert windows.question_of.tolist() == theirs["overflow_to_sample_mapping"]
    assert windows.lengths(np.arange(len(windows))).tolist() == [len(ids) for ids in theirs["input_ids"]]
    assert windows.windowed > 5
    # The marked tokens are the answer; a question with an answer has it in some window, and one without in none.
    found = set()
    for number, sample in enumerate(samples):
        begin, end = sample["labels"]
        question = windows.question_of[number]
        if begin:
            assert tokens.decode(sample["input_ids"][begin : end + 1]).strip() == read.train.answers[question][0]
            place = windows.characters(np.array([number]), np.array([[begin, end]]))[0]
            assert contexts[question][place[0] : place[1]].strip() == read.train.answers[question][0]
            assert sample["context"][0] <= begin <= end < sample["context"][1]
            found.add(question)
        else:
            assert end == 0
    assert found == {number for number, known in enumerate(read.train.answers) if known}
    assert windows.out_of_reach(30) == 0
    assert windows.out_of_reach(1) > 0


class Fixed(torch.nn.Module):
    """Scores by token, the same wherever it stands in a batch."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
        values = input_ids.double()
        return SimpleNamespace(start_logits=torch.sin(values * 1.7), end_logits=torch.cos(values * 2.3))


def by_hand(sample: dict[str, Any], longest: int) -> tuple[float, list[float]]:
    """Return the loss of one window, its best span and scores, one token and one span at a time."""
    first, stop = sample["context"]
    places = [0, *range(first, stop)]
    logs = []
    for function, factor in ((np.sin, 1.7), (np.cos, 2.3)):
        values = {place: float(function(sample["input_ids"][place] * factor)) for place in places}
        total = np.log(sum(np.exp(value) for value in values.values()))
        logs.append({place: value - total for place, value in values.items()})
    start, end = logs
    spans = {(b, e): start[b] + end[e] for b in range(first, stop) for e in range(b, min(b + longest, stop))}
    best = max(spans, key=lambda span: spans[span])
    loss = -start[sample["labels"][0]] - end[sample["labels"][1]]
    return loss, [*best, spans[best], start[0] + end[0]]


@pytest.mark.parametrize("side", ["right", "left"])
def test_loss_and_spans_are_those_of_the_windows_alone(tmp_path: Path, tokens: Any, side: str) -> None:
    windows = question_windows(read_small(tmp_path).train, tokens, WindowSize(30, 7))
    samples = windows.fetch(range(len(windows)))
    by_side = SimpleNamespace(
        pad_token_id=0, pad_token_type_id=0, padding_side=side, model_input_names=["input_ids", "attention_mask"]
    )
    batch = pad_windows(by_side)(samples)
    expected = [by_hand(sample, 3) for sample in samples]
    assert float(span_loss(Fixed(), batch)) == pytest.approx(sum(loss for loss, _ in expected), rel=1e-13)
    spans = best_spans(Fixed(), batch, 3)
    assert spans.tolist() == [pytest.approx(values, rel=1e-12) for _, values in expected]
    # However long an answer may be, there are no more tokens than those of the window.
    longer = [pytest.approx(by_hand(sample, 30)[1], rel=1e-12) for sample in samples]
    assert best_spans(Fixed(), batch, 10**12).tolist() == longer
    assert {len(sample["input_ids"]) for sample in samples} != {30}  # there was padding


def test_the_best_span_of_all_windows_is_the_answer(tmp_path: Path, tokens: Any) -> None:
    read = read_small(tmp_path)
    windows = question_windows(read.evaluate, tokens, WindowSize(30, 7))
    several = int(np.flatnonzero(np.bincount(windows.question_of) > 1)[0])
    mine = np.flatnonzero(windows.question_of == several).tolist()
    # In every window the first token of its context; the last window is the surest.
    predictions = {
        number: [sample["context"][0], sample["context"][0], -9.0, -8.0]
        for number, sample in enumerate(windows.fetch(range(len(windows))))
    }
    predictions[mine[-1]][2] = -1.0
    answers, places, *_ = best_answers(windows, predictions, missing=False, margin=0.0)
    context = read.evaluate.contexts[read.evaluate.context_of[several]]
    begin, end = places[several]
    assert answers[several] == context[begin:end]
    assert begin > 20
    assert [answers[number] for number in range(len(answers)) if number != several] == ["The"] * (len(answers) - 1)
    # Where answers may be missing: -8 beats -9, but by less than 2; "no answer" is as likely as in its unlikeliest
    # window.
    answers, places, *_ = best_answers(windows, predictions, missing=True, margin=0.0)
    assert [number for number, text in enumerate(answers) if text] == [several]
    assert places[several - 1].tolist() == [-1, -1]
    assert all(best_answers(windows, predictions, missing=True, margin=2.0)[0])
    predictions[mine[-1]][3] = -0.5
    assert best_answers(windows, predictions, missing=True, margin=0.0)[0][several]
    for number in mine:
        predictions[number][3] = -0.5
    assert not best_answers(windows, predictions, missing=True, margin=0.0)[0][several]


def test_questions_and_tokenizers_that_can_not_be_used(tmp_path: Path, tokens: Any) -> None:
    read = read_small(tmp_path, 4)
    with pytest.raises(
        UserError, match=r"4 rows .*question so long that a window of 16 tokens.*larger data.max_length"
    ):
        question_windows(read.train, tokens, WindowSize(16, 10))
    slow = SimpleNamespace(is_fast=False)
    with pytest.raises(UserError, match="which characters of the context a token stands for"):
        question_windows(read.train, slow, WindowSize(30, 7))
    with pytest.raises(UserError, match="at most 512 tokens"):
        QuestionData(train="x", max_length=600).window(tokens)
    assert QuestionData(train="x").window(tokens) == WindowSize(384, 128)
    assert any("get nowhere" in problem for problem in QuestionData(train="x", max_length=20, stride=20).problems())


# The run.


def test_a_run_learns_and_its_model_answers_alike_elsewhere(recipe: ModuleType, tmp_path: Path) -> None:
    train = write_rows(tmp_path / "train.jsonl", questions(320, 5, most=3))
    held_out = write_rows(tmp_path / "eval.jsonl", questions(40, 6, most=3))
    data = ["--data.train", str(train), "--data.eval", str(held_out), "--data.max_length", "26", "--data.stride", "8"]
    words = [*data, "--epochs", "8", "--batch.size", "32", "--evaluate.show", "40", "--evaluate.every", "1000"]
    outcome = answer(recipe, tmp_path / "run", *words).done()
    record = outcome.record
    assert record["metrics"]["exact_match"] > record["baseline"]["exact_match"] + 0.2
    assert {"f1", "no_answer_accuracy", "answered_f1"} <= set(record["metrics"])
    shown = [json.loads(line) for line in (tmp_path / "run" / "predictions.jsonl").read_text().splitlines()]
    assert len(shown) == 40

    # The lines of the model card, as a user would run them.
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    lines = card.split("```python\n")[1].split("```")[0].replace("<this folder>", str(tmp_path / "run" / "model"))
    names: dict[str, Any] = {}
    exec(lines, names)
    for example in shown:
        text, begin, end = names["answer"](example["question"], example["context"])
        assert text == example["answer"]
        assert begin is None or example["context"][begin:end].strip() == text
    assert any(example["answer"] for example in shown)
    assert not all(example["answer"] for example in shown)

    again = answer(recipe, tmp_path / "run", *words, "--evaluate.only").done()
    for name in ("loss", "exact_match", "f1"):
        again.says(f"{record['metrics'][name]:.4f}")


def test_the_small_run_has_windows_and_questions_without_an_answer(recipe: ModuleType, tmp_path: Path) -> None:
    outcome = answer(recipe, tmp_path / "run", *arguments(tmp_path)).done()
    windows = re.search(r"(\d+) to train on, (\d+) to evaluate on, of at most 32 tokens", outcome.output)
    assert windows is not None
    assert int(windows[1]) > 37
    assert int(windows[2]) > 11
    outcome.says("of them without an answer")


def test_the_embedded_questions_are_answered_where_they_say() -> None:
    from toolkit.sample_data.questions import questions_of

    source = (
        "def read(self, path, mode='r', size=None):\n    for line in lines(path):\n        count = size\n"
        "    if not count:\n        raise ValueError(path)\n    return count\n"
    )
    assert {question: source[begin:end] for question, begin, end in questions_of(source)} == {
        "What is the name of the function?": "read",
        "What is the first parameter besides self?": "path",
        "What is the second parameter besides self?": "mode",
        "What is the third parameter besides self?": "size",
        "What is the default of mode?": "'r'",
        "What is the default of size?": "None",
        "What does it loop over?": "lines(path)",
        "What is lines called with?": "path",
        "What is count set to?": "size",
        "What does it test first?": "not count",
        "Which exception does it raise?": "ValueError",
        "What is ValueError called with?": "path",
        "What does it return at last?": "count",
    }
