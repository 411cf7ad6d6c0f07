"""Tables with one word in each row: the same sentences as in a CoNLL file, however the sentence is told."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tag import Sentence, sentences, write_conll

from toolkit.errors import UserError
from toolkit.tasks.token_classification.data import TaggedSentences, TaggedTexts
from toolkit.tasks.token_classification.prediction import single_words

ROWS = sentences(30, 0)
HEADER = ("Sentence #", "Word", "POS", "Tag")


def write_table(
    path: Path,
    rows: list[Sentence],
    header: tuple[str, ...] = HEADER,
    name: str = "Sentence: {}",
    filled: bool = False,
    between: bool = False,
) -> Path:
    """Write a word in each row, with the sentence in the first row alone or in all of them; maybe an empty row
    between sentences."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(header)
        for number, (words, tags) in enumerate(rows, start=1):
            for place, (word, tag) in enumerate(zip(words, tags, strict=True)):
                table.writerow([name.format(number) if filled or place == 0 else "", word, "NN", tag])
            if between:
                table.writerow([""] * len(header))
    return path


def content(read: TaggedSentences) -> list[tuple[list[str], list[str]]]:
    """Return words and tags of the training sentences."""
    rows = read.train
    tags = [read.labels[tag] for tag in rows.tags]
    words = [words for block in rows.sentences() for words in block]
    ends = zip(rows.starts[:-1], rows.starts[1:], strict=True)
    return [(one, tags[first:last]) for one, (first, last) in zip(words, ends, strict=True)]


def problem(path: Path, **more: Any) -> str:
    with pytest.raises(UserError) as refusal:
        TaggedTexts(train=str(path), **more).read()
    return str(refusal.value)


@pytest.mark.parametrize(
    ("how", "settings"),
    [
        ({}, {}),
        ({"filled": True, "name": "{}", "header": ("sentence_id", "token", "pos", "ner")}, {}),
        ({"between": True}, {}),
        ({"filled": True, "name": "{}", "header": ("Nr", "Word", "POS", "Tag")}, {"sentence": "Nr"}),
        ({"name": "{}.5", "header": ("Sent", "Word", "POS", "Tag")}, {"sentence": "Sent"}),
    ],
)
def test_the_sentences_are_those_of_the_conll_file(
    tmp_path: Path, how: dict[str, Any], settings: dict[str, Any]
) -> None:
    table = write_table(tmp_path / "a.csv", ROWS, **how)
    conll = write_conll(tmp_path / "a.conll", ROWS)
    read = TaggedTexts(train=str(table), eval=str(table), **settings).read()
    expected = TaggedTexts(train=str(conll), eval=str(conll)).read()
    assert content(read) == content(expected) == ROWS
    assert read.train.digest == expected.train.digest
    assert "one word in each row, sentences by" in read.summary["data"]


@settings(deadline=None, max_examples=25)
@given(
    st.lists(
        st.lists(
            st.tuples(st.text("ab \"'|,;", min_size=1).filter(str.strip), st.sampled_from("XY")), min_size=1, max_size=4
        ),
        min_size=2,
        max_size=6,
    )
)
def test_any_words_come_back(tmp_path_factory: pytest.TempPathFactory, rows: list[list[tuple[str, str]]]) -> None:
    made = [([word for word, _ in row], [tag for _, tag in row]) for row in rows]
    if all(len(row) == 1 for row in rows) or len({tag for row in rows for _, tag in row}) < 2:
        return
    path = write_table(tmp_path_factory.mktemp("words") / "a.csv", made)
    read = TaggedTexts(train=str(path), eval=str(path), sentence="Sentence #").read()
    assert content(read) == made


def test_other_columns_groups_and_few_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [
        {"sentence_id": number, "word": word, "tag": tag, "source": "news" if number % 2 else "web"}
        for number, (words, tags) in enumerate(ROWS)
        for word, tag in zip(words, tags, strict=True)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    read = TaggedTexts(train=str(path), eval=str(path), group="source", max_rows=10).read()
    assert len(read.train) == 10
    assert {name: len(rows) for name, rows in read.groups.items()} == {"news": 5, "web": 5}
    both = TaggedTexts(train=str(path), eval_sets={"a": str(path), "b": str(path)}).read()
    assert len(both.evaluate) == 2 * len(ROWS)


def test_tables_that_are_not_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    odd = write_table(path, ROWS, ("Nr", "Word", "POS", "Tag"), "{}")
    assert "if 'Nr' tells which sentence a word is of, give --data.sentence Nr; or give a row" in problem(odd)
    assert "data.sentence is 'nr', and besides the words ('Word') and the tags ('Tag')" in problem(odd, sentence="nr")
    assert "the data has 'Nr', 'POS'; name the one" in problem(odd, sentence="Word")
    path.write_text("Sentence #,Word,Tag\n,Ada,B-x\n,ran,O\n1,so,O\n")
    assert "the first word has nothing in column 'Sentence #'" in problem(path)
    path.write_text("sentence_id,word,tag\n1,Ada,B-x\n1,ran,O\n2,so,O\n1,Al,B-x\n1,x,O\n")
    assert "1 in column 'sentence_id' comes again in row 4, after other sentences" in problem(path)
    path.write_text("Sentence #,Word,Tag\n1,Ada,B-x\n,ran,\n2,so,O\n,Bo,B-x\n")
    assert "a word without a tag in column 'Tag' in 1 row (number 1" in problem(path)
    path.write_text("sentence_id,text,tags\n1,Ada ran,B-x O\n2,so Bo ran,O B-x O\n")
    assert "so that each sentence would be one word" in problem(path, sentence="sentence_id")
    assert len(TaggedTexts(train=str(path), eval=str(path)).read().train) == 2
    path.write_text("Word,Tag\nAda,B-x\nran,O\nBo,B-x\n")
    assert "(the first is 'Ada'); give a row for each sentence" in problem(path)
    lists = tmp_path / "a.jsonl"
    lists.write_text('{"id": 1, "tokens": ["a", "b"], "tags": ["X", "Y"]}\n' * 2)
    assert "the column 'tokens' has a list in each row; leave data.sentence out" in problem(lists, sentence="id")
    with_words = write_table(tmp_path / "b.csv", ROWS)
    plain = write_table(tmp_path / "c.csv", ROWS, ("Nr", "Word", "POS", "Tag"), "{}")
    assert "evaluation data: no column 'Sentence #'" in problem(with_words, eval=str(plain))
    assert any("no file is given" in one for one in TaggedTexts(sentence="a").problems())


def test_predict_says_that_rows_are_single_words() -> None:
    rows = [{"Sentence #": number, "Word": word} for number, word in (("1", "Ada"), (None, "ran"), ("2", "so long"))]
    assert single_words(rows, "Word", [["Ada"], ["ran"], ["so", "long"]]) == [1]
    assert single_words([{"Word": "Ada"}, {"Word": "ran"}], "Word", [["Ada"], ["ran"]]) == []
