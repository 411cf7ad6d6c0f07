"""Tagging words, from CoNLL files and tables to a model that others load; windows, schemes, and what can be wrong."""

import importlib.util
import json
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from small_tag import sentences, write_conll
from trial import Outcome, run_here

from toolkit.data.formats.conll import conll_table
from toolkit.errors import UserError
from toolkit.losses import NOT_COUNTED
from toolkit.tasks.token_classification.data import TaggedTexts
from toolkit.tasks.token_classification.tags import broken_starts, kind_of_tags, repaired
from toolkit.tasks.token_classification.windows import frame_of, prepare_for_words, tokens_of_words, windows_of

RECIPE = Path(__file__).parents[2] / "recipes" / "tag.py"
STEPS = ["--steps", "14", "--epochs", "null"]
BIO = ["O", "B-a", "I-a", "B-b", "I-b"]


@pytest.fixture(scope="module")
def tag() -> ModuleType:
    specification = importlib.util.spec_from_file_location("tag", RECIPE)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["tag"] = module
    specification.loader.exec_module(module)
    return module


def run(tag: ModuleType, folder: Path, *arguments: str) -> Outcome:
    return run_here(tag.Tag, tag.task, ["--threads", "1", *arguments], folder)


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def problem(path: Path, **settings: Any) -> str:
    """Return the message on data that cannot be used."""
    with pytest.raises(UserError) as raised:
        TaggedTexts(train=str(path), **settings).read()
    return str(raised.value)


# The whole way.


def test_entities_from_conll_files_and_the_pipeline_answers_alike(tag: ModuleType, tmp_path: Path) -> None:
    from seqeval.metrics import f1_score
    from transformers import pipeline

    train = write_conll(tmp_path / "train.conll", sentences(150, 0))
    held_out = write_conll(tmp_path / "eval.conll", sentences(20, 1))
    common = ["--data.train", str(train), "--data.eval", str(held_out), "--batch.size", "16"]
    outcome = run(tag, tmp_path / "run", *common, *STEPS).done()
    metrics, baseline = outcome.record["metrics"], outcome.record["baseline"]
    assert 0.5 < metrics["entity_f1"] < 1
    assert baseline["entity_f1"] == 0
    assert baseline["accuracy"] > 0.3
    assert {"f1_person", "precision_person", "recall_place"} <= set(metrics)

    # As many entities right as the run counted, and sentence by sentence the ones that it shows.
    rows = sentences(20, 1)
    answers = pipeline("token-classification", str(outcome.folder / "model"), aggregation_strategy="first")
    found = answers([" ".join(words) for words, _ in rows])
    shown = [json.loads(line) for line in (outcome.folder / "predictions.jsonl").read_text().splitlines()]
    entities_of = {row["text"]: row["predicted"] for row in shown}
    assert len(shown) == 20
    assert [row["row"] for row in shown] == list(range(1, 21))
    for row, answer in zip(shown, found, strict=True):
        assert row["scores"]["lowest"] <= min((one["score"] for one in answer), default=1) + 1e-5
    for (words, _), answer in zip(rows, found, strict=True):
        assert [f"{one['word'].strip()} ({one['entity_group']})" for one in answer] == entities_of[" ".join(words)]
    predicted = [_tags_of(words, answer) for (words, _), answer in zip(rows, found, strict=True)]
    assert metrics["entity_f1"] == pytest.approx(f1_score([tags for _, tags in rows], predicted), abs=1e-12)

    again = run(tag, outcome.folder, *common, *STEPS, "--evaluate.only").done()
    again.says(f"{metrics['entity_f1']:.4f}", f"{metrics['loss']:.4f}")
    other = write_conll(tmp_path / "other.conll", [(["Ada", "sings"], ["B-singer", "O"])])
    own = ["--model.name", str(outcome.folder / "model"), "--data.train", str(train)]
    run(tag, tmp_path / "strange", *own, "--data.eval", str(other), "--evaluate.only").told(
        "evaluation data: tags that the model, whose tags are", "does not know: 'B-singer' (1x), in 1 row (number 1"
    )
    more = run(tag, tmp_path / "more", *own, "--data.eval", str(held_out), "--steps", "1", "--epochs", "null").done()
    more.says("the model's own, 5 tags")


def _tags_of(words: list[str], answer: list[dict[str, Any]]) -> list[str]:
    """Return the tags of words from what a pipeline found in them, joined by spaces."""
    tags, at = ["O"] * len(words), 0
    starts = []
    for word in words:
        starts.append(at)
        at += len(word) + 1
    for one in answer:
        inside = [place for place, start in enumerate(starts) if one["start"] <= start < one["end"]]
        # The start of a byte-level token may include the space before the word.
        inside = inside or [starts.index(one["start"] + 1)]
        for place in inside:
            tags[place] = f"{'B' if place == inside[0] else 'I'}-{one['entity_group']}"
    return tags


def test_plain_tags_from_columns_with_held_out_rows(tag: ModuleType, tmp_path: Path) -> None:
    rows = [
        {"words": words, "pos": ["name" if tag != "O" else "other" for tag in tags]}
        for words, tags in sentences(120, 0)
    ]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    flags = ["--epochs", "2", "--batch.size", "16", "--data.max_length", "64", "--checkpoint.best", "highest accuracy"]
    outcome = run(tag, tmp_path / "run", "--data.train", str(data), *flags).done()
    outcome.says("words 'words', tags 'pos'", "plain, 2; the most frequent is")
    metrics, baseline = outcome.record["metrics"], outcome.record["baseline"]
    assert set(metrics) == {"loss", "accuracy", "macro_f1"}
    assert metrics["accuracy"] > 0.95 > baseline["accuracy"]
    # A window is no limit of the model's: a pipeline would truncate longer sentences there.
    saved = json.loads((outcome.folder / "model" / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert saved["model_max_length"] == 512


# Windows.


@pytest.mark.parametrize(("room", "overlap"), [(5, 0), (5, 2), (7, 6), (12, 4), (100, 25)])
def test_windows_cover_each_word_once_where_it_has_most_context(room: int, overlap: int) -> None:
    random = np.random.default_rng(room)
    for _ in range(20):
        counts = random.integers(0, 5, random.integers(1, 40))
        windows, owner = windows_of(counts, room, overlap)
        ends = np.cumsum(counts)
        begins, total = ends - counts, ends[-1]
        spans = [(int(begins[first]), int(ends[last - 1])) for first, last in windows]
        assert all(end - start <= room for start, end in spans)
        assert windows[0][0] == 0
        assert windows[-1][1] == len(counts)
        assert all(after[0] <= before[1] for before, after in pairwise(windows))
        assert all(before[1] - after[0] <= overlap for before, after in pairwise(spans))
        assert len(windows) == 1 or total > room
        for word, mine in enumerate(owner.tolist()):
            context = {}
            for number, (first, last) in enumerate(windows):
                if first <= word < last:
                    start, end = spans[number]
                    left = begins[word] - start if first else np.inf
                    right = end - ends[word] if last < len(counts) else np.inf
                    context[number] = min(left, right)
            assert context[mine] == max(context.values())


def test_a_long_sentence_has_each_label_once_and_is_put_together_again(tag: ModuleType, tmp_path: Path) -> None:
    rows = sentences(30, 0, longest=9)
    path = str(write_conll(tmp_path / "train.conll", rows))
    config = TaggedTexts(train=path, eval=path, max_length=16, overlap=6)
    read = config.read()
    tokens = _tokens(tag, read)
    data = read.tokenize(tokens)
    held_out = data.evaluate
    assert len(held_out) > len(rows)
    assert "of at most 16 tokens" in data.summary["windows"]
    samples = held_out.fetch(range(len(held_out)))
    assert max(len(sample["input_ids"]) for sample in samples) <= 16
    labelled = {n: [label for label in sample["labels"] if label != NOT_COUNTED] for n, sample in enumerate(samples)}
    assert sum(map(len, labelled.values())) == sum(len(tags) for _, tags in rows)
    # With the labels for predictions, the sentences come out as they went in.
    finished = read.postprocess(held_out, {number: (tags, [0.5] * len(tags)) for number, tags in labelled.items()})
    assert finished.predictions == finished.references == [tags for _, tags in rows]
    assert finished.baseline == [["O"] * len(tags) for _, tags in rows]
    batch = tag.pad_words(tokens)(samples[:7])
    assert batch["labels"].shape == batch["input_ids"].shape == batch["attention_mask"].shape
    assert int((batch["labels"] != NOT_COUNTED).sum()) == sum(len(labelled[n]) for n in range(7))
    # In one window the tokens are those of the tokenizer itself.
    whole = TaggedTexts(train=path, eval=path).read().tokenize(tokens).train
    for sample, (words, tags) in zip(whole.fetch(range(5)), rows, strict=False):
        encoded = tokens(words, is_split_into_words=True)
        assert sample["input_ids"] == encoded["input_ids"]
        first = [
            place
            for place, word in enumerate(encoded.word_ids())
            if word is not None and encoded.word_ids().index(word) == place
        ]
        assert [read.labels[sample["labels"][place]] for place in first] == tags


def _tokens(tag: ModuleType, read: Any) -> Any:
    embedded = tag.replace(tag.ENCODER, prefix_space=True)
    return tag.tokenizer(tag.ModelConfig(), read.training_texts(), read.training_digest, embedded)


def test_words_that_the_tokenizer_makes_nothing_of(tmp_path: Path) -> None:
    tokens = _word_piece()
    rows = [
        {"tokens": ["red", "\u200d\ufe0f", "blue"], "tags": ["B-x", "I-x", "O"]},
        {"tokens": ["\u200d"], "tags": ["O"]},
    ]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    read = TaggedTexts(train=str(path), eval=str(path)).read()
    data = read.tokenize(tokens)
    held_out = data.evaluate
    assert data.summary["unreadable"].startswith(
        "4 words that the tokenizer makes nothing of: no loss, and always predicted as 'O'"
    )
    assert len(held_out) == 1
    assert [label for label in held_out.fetch([0])[0]["labels"] if label != NOT_COUNTED] == [1, 0]
    finished = read.postprocess(held_out, {0: ([1, 0], [0.9, 0.5])})
    assert finished.predictions == [["B-x", "O", "O"], ["O"]]
    assert finished.scores == [{"lowest": 0.5, "mean": 0.7}, {}]


def _word_piece() -> Any:
    """Return a tokenizer as BERT has, which drops control characters."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "a", "red", "blue", "##ish"])}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.Sequence([normalizers.BertNormalizer(), normalizers.Replace("\ufe0f", "")])
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]")


def test_words_longer_than_a_window_are_refused_and_cut_on_request(tmp_path: Path) -> None:
    tokens = _word_piece()
    tokens.model_max_length = 4
    path = write_rows(
        tmp_path / "rows.jsonl", [{"tokens": ["red", "red" + 6 * "ish", "blue"], "tags": ["B-x", "O", "O"]}] * 2
    )
    with pytest.raises(
        UserError, match=r"a word of more tokens than the model takes at once \(4; the longest has 7\) in"
    ):
        TaggedTexts(train=str(path), eval=str(path)).read().tokenize(tokens)
    read = TaggedTexts(train=str(path), eval=str(path), max_length=4).read()
    data = read.tokenize(tokens)
    assert "4 sentences have a word that is cut to a window" in data.summary["windows"]
    assert sum(label != NOT_COUNTED for sample in data.train.fetch([0, 1, 2]) for label in sample["labels"]) == 3
    for settings, message in (({"max_length": 5}, "takes at most 4 tokens"), ({"overlap": 4}, "has room for 4 tokens")):
        with pytest.raises(UserError, match=message):
            TaggedTexts(train=str(path), eval=str(path), **settings).read().tokenize(tokens)


@pytest.mark.parametrize(
    ("settings", "takes"),
    [
        ({"model_type": "bert", "max_position_embeddings": 128}, 128),
        ({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ({"model_type": "t5", "max_position_embeddings": 512}, 10**9),
        ({"model_type": "llama", "max_position_embeddings": 10**12}, 10**9),
    ],
)
def test_a_tokenizer_takes_no_more_than_its_model(
    encoder: Path, tmp_path: Path, settings: dict[str, Any], takes: int
) -> None:
    from toolkit.config.model import ModelConfig
    from toolkit.models.tokenizer import tokenizer

    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    unlimited = json.loads((encoder / "tokenizer_config.json").read_text(encoding="utf-8")) | {
        "model_max_length": 10**9
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(unlimited), encoding="utf-8")
    (folder / "tokenizer.json").write_bytes((encoder / "tokenizer.json").read_bytes())
    assert tokenizer(ModelConfig(name=str(folder)), (), "").model_max_length == takes


def test_tokenizers_that_mark_words_by_the_space_before_them(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for number, step in enumerate((level, pre_tokenizers.Sequence([pre_tokenizers.Digits(), level]))):
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = step
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
        backend.train_from_iterator(["the cat sat on the mat"] * 5, trainer)
        tokens = prepare_for_words(PreTrainedTokenizerFast(tokenizer_object=backend))
        as_text = tokens("the cat sat")["input_ids"]
        assert tokens(["the", "cat", "sat"], is_split_into_words=True)["input_ids"] == as_text
        tokens.save_pretrained(tmp_path / str(number))
        assert AutoTokenizer.from_pretrained(tmp_path / str(number))("the cat sat")["input_ids"] == as_text


def test_a_tokenizer_in_python_is_asked_word_by_word() -> None:
    class Slow:
        is_fast = False

        def __call__(self, words: list[str], **_: Any) -> dict[str, list[int]]:
            (word,) = words
            return {"input_ids": [ord(letter) for letter in word if letter != "-"]}

    ids, counts = next(tokens_of_words(Slow(), [["ab", "-", "c"]]))
    assert ids.tolist() == [97, 98, 99]
    assert counts.tolist() == [2, 0, 1]
    assert frame_of(Slow()) == ({"input_ids": [97]}, 0)


# Schemes.


def test_kinds_of_tags() -> None:
    assert kind_of_tags(["O", "B-x", "I-x"], "auto")[0] == "bio"
    assert kind_of_tags(["O", "I-x"], "auto")[0] == "bio"
    assert kind_of_tags(["O", "S-x", "B-x", "E-x"], "auto")[0] == "bio"
    assert kind_of_tags(["B", "I", "O"], "auto")[0] == "bio"
    assert kind_of_tags(["NOUN", "VERB", "O"], "auto")[0] == "plain"
    assert kind_of_tags(["O", "B-x"], "plain")[0] == "plain"
    assert "some are not ('x')" in kind_of_tags(["O", "B-x", "x"], "auto")[1]
    assert "these tags are neither O nor begin with B- or I-: 'NOUN'" in kind_of_tags(["NOUN"], "bio")[1]


def test_broken_beginnings_and_their_repair() -> None:
    from seqeval.metrics.sequence_labeling import get_entities

    tags = np.array([2, 2, 0, 2, 4, 4, 1, 2, 0, 3, 2])
    starts = np.array([0, 1, 6, 11])
    broken = broken_starts(BIO, tags, starts)
    assert np.flatnonzero(broken).tolist() == [0, 1, 3, 4, 10]
    fixed = repaired(BIO, tags, broken)
    assert fixed.tolist() == [1, 1, 0, 1, 3, 4, 1, 2, 0, 3, 1]
    assert not broken_starts(BIO, fixed, starts).any()
    # conlleval finds the same entities before and after, sentence by sentence.
    for values in (tags, fixed):
        named = [[BIO[tag] for tag in values[first:last]] for first, last in pairwise(starts)]
        assert get_entities(named) == get_entities([[BIO[tag] for tag in fixed[a:b]] for a, b in pairwise(starts)])


def test_longer_schemes_and_the_names_of_tags(tmp_path: Path) -> None:
    rows = [(["Ada", "B", "Lovelace", "met", "Carl"], ["B-per", "I-per", "E-per", "O", "S-per"])]
    data = write_conll(tmp_path / "a.conll", [*rows, (["in", "Turin"], ["O", "S-loc"])])
    read = TaggedTexts(train=str(data), eval=str(data)).read()
    assert read.labels == ["O", "B-loc", "I-loc", "B-per", "I-per"]
    assert [read.labels[tag] for tag in read.train.tags] == ["B-per", "I-per", "I-per", "O", "B-per", "O", "B-loc"]
    assert "'E-per'" in read.summary["scheme"]


# Metrics against the reference implementations.


def test_metrics(tmp_path: Path) -> None:
    from seqeval.metrics import f1_score, precision_score, recall_score
    from sklearn.metrics import f1_score as word_f1

    from toolkit.tasks.token_classification.metrics import tag_metrics

    random = np.random.default_rng(0)
    wanted = [[BIO[tag] for tag in random.integers(0, 5, size)] for size in (1, 4, 9, 30)]
    predicted = [[tag if random.random() < 0.7 else BIO[random.integers(5)] for tag in row] for row in wanted]
    predicted[-1][0] = "B-new"
    scores = {}
    for metric in (*tag_metrics("bio"), *tag_metrics("plain")):
        scores |= metric(predicted, wanted)
    assert scores["entity_f1"] == pytest.approx(f1_score(wanted, predicted), abs=1e-15)
    assert scores["entity_precision"] == pytest.approx(precision_score(wanted, predicted), abs=1e-15)
    assert scores["entity_recall"] == pytest.approx(recall_score(wanted, predicted), abs=1e-15)
    assert [scores["f1_a"], scores["f1_b"]] == pytest.approx(sorted_f1(wanted, predicted), abs=1e-15)
    assert "f1_new" not in scores
    flat = [[tag for row in rows for tag in row] for rows in (wanted, predicted)]
    assert scores["accuracy"] == np.mean(np.array(flat[0]) == np.array(flat[1]))
    assert scores["macro_f1"] == pytest.approx(word_f1(*flat, average="macro", zero_division=0), abs=1e-15)


def sorted_f1(wanted: list[list[str]], predicted: list[list[str]]) -> list[float]:
    from seqeval.metrics import f1_score

    return [float(score) for score in f1_score(wanted, predicted, average=None)[:2]]


# Files.


def test_conll_files() -> None:
    four = "-DOCSTART- -X- O O\n\nEU NNP I-NP B-ORG\nrejects VBZ I-VP O\n\n\n# NN O O\n"
    table = conll_table(four.splitlines(keepends=True), "a.txt")[0]
    assert table["tokens"].to_pylist() == [["EU", "rejects"], ["#"]]
    assert table["tags"].to_pylist() == [["B-ORG", "O"], ["O"]]
    assert table["column_2"].to_pylist() == [["NNP", "VBZ"], ["NN"]]
    tabs = "# id = 1\r\nNew York\tB-loc\r\n\u00a0\tO\r\n\t\r\nend\tO"
    assert conll_table(tabs.splitlines(keepends=True), "a")[0]["tokens"].to_pylist() == [
        ["New York", "\u00a0"],
        ["end"],
    ]
    # What announces a document has fields of its own.
    for announced in ("-DOCSTART-\n", "-DOCSTART- -X- -X- O\n", "-DOCSTART-\tO\n"):
        assert conll_table([announced, "\n", "a\tO\n", announced, "b\tO\n"], "a")[0]["tokens"].to_pylist() == [
            ["a"],
            ["b"],
        ]
    with pytest.raises(UserError, match=r"b: 1 line \(number 3\) with another number of fields than the 2 of line 1"):
        conll_table(["a O\n", "b O\n", "c O O\n"], "b")
    with pytest.raises(UserError, match="line 2: 'word' is a word without a tag"):
        conll_table(["\n", "word\n"], "c")
    for nothing in ("\n", "-DOCSTART- O\n"):
        with pytest.raises(UserError, match="d holds no words"):
            conll_table([nothing], "d")


@pytest.mark.parametrize("name", ["a.conll", "a.txt", "a.annotated", "a"])
def test_any_ending_is_read_as_conll(tmp_path: Path, name: str) -> None:
    rows = sentences(12, 0)
    held_out = write_conll(tmp_path / name, rows[:6])
    train = write_conll(tmp_path / "train.iob2", rows[6:])
    for config in (
        TaggedTexts(train=str(train), eval=str(held_out)),
        TaggedTexts(name=str(tmp_path), train="train.iob2", eval=name),
    ):
        read = config.read()
        assert [len(read.train), len(read.evaluate)] == [6, 6]
        assert [read.labels[tag] for tag in read.evaluate.tags] == [tag for _, tags in rows[:6] for tag in tags]
        assert set(read.files) == {held_out, train}


def test_label_ids_of_a_saved_data_set_and_texts_with_spaces(tmp_path: Path) -> None:
    import datasets

    names = datasets.Features(
        {
            "tokens": datasets.List(datasets.Value("string")),
            "ner_tags": datasets.List(datasets.ClassLabel(names=["O", "I-x", "B-x"])),
        }
    )
    rows = {"tokens": [["a", "b"], ["c"]], "ner_tags": [[2, 1], [0]]}
    datasets.Dataset.from_dict(rows, features=names).save_to_disk(tmp_path / "saved")
    read = TaggedTexts(train=str(tmp_path / "saved"), eval=str(tmp_path / "saved")).read()
    assert read.labels == ["O", "I-x", "B-x"]
    assert read.train.tags.tolist() == [2, 1, 0]
    (tmp_path / "a.csv").write_text("sentence,labels\nNew York is big,B-loc I-loc O O\nso,O\n")
    read = TaggedTexts(train=str(tmp_path / "a.csv"), eval=str(tmp_path / "a.csv")).read()
    assert [read.labels[tag] for tag in read.train.tags] == ["B-loc", "I-loc", "O", "O", "O"]


# What can be wrong.


def test_rows_that_are_not_whole(tmp_path: Path) -> None:
    good = {"tokens": ["a", "b"], "tags": ["B-x", "O"]}
    bad = [{"tokens": ["a", "b"], "tags": ["O"]}, {"tokens": [], "tags": []}, {"tokens": ["a"], "tags": None}]
    more = [{"tokens": ["a", None], "tags": ["O", "O"]}, {"tokens": ["a", "b"], "tags": ["O", ""]}]
    data = write_rows(tmp_path / "a.jsonl", [good, *bad, *more, good, good])
    message = problem(data)
    assert "(the first such row has 2 words and 1 tags) in 1 row (number 2," in message
    assert "an empty sentence in column 'tokens' in 1 row (number 3," in message
    assert "nothing in column 'tokens' or 'tags' in 1 row (number 4," in message
    assert "a word that is null in column 'tokens' in 1 row (number 5," in message
    assert "a word without a tag in column 'tags' in 1 row (number 6," in message
    read = TaggedTexts(train=str(data), eval=str(data), drop_invalid=True).read()
    assert read.train.rows.tolist() == [0, 6, 7]
    dropped = "rows with words or tags missing: 5 of the training data and 5 of the evaluation data"
    assert read.summary["dropped"] == dropped


def test_an_entity_that_starts_inside(tag: ModuleType, tmp_path: Path) -> None:
    rows = [(["a", "b"], ["O", "I-x"]), (["c", "d"], ["B-x", "I-x"]), (["e"], ["I-x"]), (["f", "g"], ["B-x", "I-y"])]
    data = write_conll(tmp_path / "a.conll", rows)
    message = problem(data, eval=str(data))
    assert (
        "training data: 3 words are tagged as inside of an entity that has not begun, such as 'I-x', in 3 rows"
        in message
    )
    assert "(numbers 1, 3, 4, counted from 1" in message
    assert "evaluation data: 3 words" in message
    assert "--data.repair true" in message
    read = TaggedTexts(train=str(data), eval=str(data), repair=True).read()
    assert [read.labels[tag] for tag in read.train.tags] == ["O", "B-x", "B-x", "I-x", "B-x", "B-x", "B-y"]
    assert read.summary["repaired"].startswith("6 words")
    # As the person who started it sees it.
    run(tag, tmp_path / "run", "--data.train", str(data)).refused("(numbers 1, 3, 4,")


def test_tags_that_training_does_not_know(tmp_path: Path) -> None:
    train = write_conll(tmp_path / "a.conll", [(["a", "b"], ["O", "B-x"])] * 3)
    other = write_conll(tmp_path / "b.conll", [(["a", "b"], ["B-x", "I-x"]), (["a", "b"], ["B-y", "I-y"])])
    message = problem(train, eval=str(other))
    assert (
        "evaluation data: tags that the training data does not know: 'B-y' (1x), 'I-y' (1x), in 1 row (number 2,"
        in message
    )
    alike = write_conll(tmp_path / "c.conll", [(["a", "b"], ["N", "N"])] * 3)
    assert "every word has the tag 'N', so there is nothing to learn" in problem(alike, eval=str(alike))
    assert "none of the 3 training rows can be held out" in problem(
        write_conll(tmp_path / "d.conll", [(["a"], [t]) for t in "NVX"])
    )


def test_columns_that_are_not_there(tmp_path: Path) -> None:
    rows = [{"tokens": ["a"], "tags": ["N"], "n": 1}] * 3
    data = write_rows(tmp_path / "a.jsonl", rows)
    assert "data.tags is 'tgas', but the data has the columns 'tokens', 'tags', 'n'; did you mean 'tags'" in problem(
        data, tags="tgas"
    )
    assert "the column 'n' holds int64, not lists of words and tags" in problem(data, tags="n")
    other = write_rows(tmp_path / "b.jsonl", [{"tokens": ["a"], "labels": ["N"]}])
    assert "evaluation data: no column 'tags', which the training data has" in problem(data, eval=str(other))
    assert "data.tokens is 'tags', a column that is taken for something else too" in problem(
        data, tokens="tags", tags="tags"
    )
    assert "but there is no such file or folder" in problem(Path("~nobody-of-this-name/a.conll"))
    mixed = write_conll(tmp_path / "c.conll", [(["a", "b", "c"], ["O", "B-x", "x"])])
    assert "take each tag as a class of its own with --data.kind plain" in problem(mixed)


def test_tables_of_texts_that_are_no_sentences(tmp_path: Path) -> None:
    data = tmp_path / "a.csv"
    data.write_text("tokens,tags\n" + "\"['Ada', 'ran']\",\"['B-x', 'O']\"\n" * 2)
    assert "'tokens' holds lists that were written as texts, such as \"['Ada', 'ran']\"" in problem(data)
    lines = write_conll(tmp_path / "a.tsv", [(["Ada", "ran"], ["B-x", "O"])] * 2)
    assert "a CoNLL file, with a word and its tag on each line, has the ending .conll" in problem(lines)


def test_the_embedded_lines() -> None:
    from toolkit.sample_data.code_tokens import tagged_lines

    source = "import os.path as p\n\n\ndef size(name, least=0):\n    return max(os.stat(name, flag=1).st_size, 'a')\n"
    found = [
        " ".join(f"{a}/{b}" for a, b in zip(row["tokens"], row["tags"], strict=True)) for row in tagged_lines(source)
    ]
    assert found == [
        "import/keyword os/import ./operator path/import as/keyword p/import",
        "def/keyword size/function (/operator name/parameter ,/operator least/parameter =/operator 0/number )/operator "
        ":/operator",
        "return/keyword max/builtin (/operator os/variable ./operator stat/method (/operator name/variable ,/operator "
        "flag/argument =/operator 1/number )/operator ./operator st_size/attribute ,/operator 'a'/string )/operator",
    ]
