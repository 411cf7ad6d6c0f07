"""How people lay out data of a task: folders for classes, CoNLL files, two files, conversations, preferences."""

import json
import re
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from table_reading import here, write  # noqa: F401

from toolkit.data.config import DataConfig
from toolkit.errors import UserError
from toolkit.predict.rows import InputFile
from toolkit.tasks.dpo.data import PreferenceData
from toolkit.tasks.dpo.rows import pairs_of
from toolkit.tasks.seq2seq.data import TextPairs, TranslationPairs
from toolkit.tasks.sft.data import Conversations
from toolkit.tasks.text_classification.data import LabelledTexts
from toolkit.tasks.token_classification.data import TaggedTexts


def refusal(data: Any) -> str:
    with pytest.raises(UserError) as caught:
        data.read() if not isinstance(data, TranslationPairs) else data.read(nowhere)
    return str(caught.value)


def nowhere() -> Any:
    raise AssertionError("not the embedded data")


# --- a folder for each class


def reviews() -> None:
    for side, labels in (("train", ("good", "bad", "unread")), ("test", ("good", "bad"))):
        for label in labels:
            for number in range(4):
                write(f"reviews/{side}/{label}/{number}.txt", f"{label}\r\n{side} {number}")
    write("reviews/train/list.txt", "x")
    write("reviews/train/good/words.vocab", "x")


def test_a_folder_for_each_class() -> None:
    reviews()
    for data in (
        LabelledTexts(name="reviews"),
        LabelledTexts(train="reviews"),
        LabelledTexts(name="reviews", train="train", eval="test"),
        LabelledTexts(train="reviews/train", eval="reviews/test"),
    ):
        texts = data.read()
        assert (texts.labels, len(texts.train), len(texts.evaluate)) == (["bad", "good", "unread"], 12, 8)
        assert texts.train.table["text"][0] == "bad\r\ntrain 0"
        for part in (
            "the label is the folder's name",
            "left out in reviews/train: 1 in no label's folder (list.txt)",
            "left out below reviews/train: 1 with other endings",
            "reviews/test has no folder unread",
        ):
            assert part in texts.summary["data"]
    assert "such folder; did you mean test?" in refusal(LabelledTexts(name="reviews", eval="tset"))
    assert "the texts are in folders" in refusal(LabelledTexts(name="reviews", header=False))
    write("reviews/train/bad/9.txt", b"na\xefve")
    assert "reviews/train/bad/9.txt, line 1: not UTF-8" in refusal(LabelledTexts(name="reviews"))


def test_links_to_folders_give_no_text_twice() -> None:
    for label in ("good", "bad"):
        for number in range(3):
            write(f"reviews/{label}/{number}.txt", f"{label} {number}")
            write(f"elsewhere/{label}/{number}.txt", f"{label} there {number}")
    Path("reviews/good/more").symlink_to(Path("elsewhere/good").absolute())
    assert len(LabelledTexts(name="reviews", held_out=0.2).read().train) == 7
    for name, target in (("bad/itself", "."), ("bad/up", ".."), ("bad/other", "../good"), ("other", "bad")):
        link = Path("reviews", name)
        link.symlink_to(target)
        assert "are the same folder, by a link" in refusal(LabelledTexts(name="reviews"))
        link.unlink()


def test_texts_in_folders_that_are_tables_stay_tables() -> None:
    for side in ("train", "dev"):
        write(f"mrpc/{side}/msr.txt", "text\tlabel\n" + "a\t1\nb\t0\n" * 3)
    assert len(LabelledTexts(name="mrpc").read().train) == 6
    for language in ("de", "en"):
        write(f"xnli/{language}/train.txt", "text\tlabel\n" + "a\t1\nb\t0\n" * 3)
    texts = LabelledTexts(name="xnli", train="de/train.txt", eval="en/train.txt").read()
    assert texts.labels == ["0", "1"]


# --- a label and a text on each line

TREC = "DESC:manner How did serfdom end ?\nENTY:cremat What films ?\n\n" * 3


@pytest.mark.parametrize("name", ["trec.train", "train_5500.label", "trec.txt"])
def test_the_header_in_the_message_divides_labelled_lines(name: str) -> None:
    write(name, TREC)
    message = refusal(LabelledTexts(train=name))
    header = re.search(r'say so with --data.header "\[(.*)\]"', message)
    assert header
    found = DataConfig(train=name, header=header[1].split(", ")).tables(nowhere)
    assert found.train.to_dict() == {
        "label": ["DESC:manner", "ENTY:cremat"] * 3,
        "text": ["How did serfdom end ?", "What films ?"] * 3,
    }
    assert found.origin == f"{name} (each line divided at its first space)"
    write(name, TREC * 40 + "word\n")
    with pytest.raises(UserError, match="line 361: 'word' is a single word"):
        DataConfig(train=name, header=["label", "text"]).tables(nowhere)


# --- words and tags

WORDS = [("EU", "NNP", "B-ORG"), ("rejects", "VBZ", "O"), ("Ada", "NNP", "B-PER")]


def conll(separator: str, *places: int, numbered: bool = False) -> str:
    rows = [[str(number), *row] if numbered else list(row) for number, row in enumerate(WORDS, start=1)]
    return ("\n".join(separator.join(row[place] for place in places) for row in rows) + "\n\n") * 4


@pytest.mark.parametrize(
    ("content", "note"),
    [
        (conll(" ", 0, 1, 2), ""),
        ("# a comment\n" + conll("\t", 0, 1, 2), ""),
        ("-DOCSTART- -X- O\n\n" + conll("  ", 0, 2), ""),
        (conll("|", 0, 1, 2), " (fields separated by bars)"),
        (conll(";", 0, 2), " (fields separated by semicolons)"),
        (conll(",", 0, 2), " (fields separated by commas)"),
    ],
)
def test_separators_of_conll_files(content: str, note: str) -> None:
    write("a.conll", content)
    read = TaggedTexts(train="a.conll", eval="a.conll").read()
    assert read.labels == ["O", "B-ORG", "I-ORG", "B-PER", "I-PER"]
    assert read.train.table["tokens"][0] == ["EU", "rejects", "Ada"]
    assert read.summary["data"] == f"a.conll; evaluation: a.conll{note}"


@pytest.mark.parametrize("word", ['"', ","])
def test_conll_called_csv_is_told(word: str) -> None:
    content = f"{word} . O\n".join([conll(" ", 0, 1, 2)] * 2)
    write("a.csv", content)
    message = refusal(TaggedTexts(train="a.csv"))
    assert "it looks like CoNLL" in message
    command = re.search(r"\(a link will do: (ln -s .*)\)$", message)
    assert command
    subprocess.run(command[1], shell=True, check=True)
    assert word in TaggedTexts(train="a.csv.conll", held_out=0.1).read().train.table["tokens"][4]
    write("b.csv", 'text,label\n"a"b c,1\n\nb c,2\nc,1\nd,2\n')
    assert "CoNLL" not in refusal(TaggedTexts(train="b.csv"))


def test_words_that_are_numbered() -> None:
    write("a.conll", "# source\n" + conll("\t", 0, 1, 3, 2, numbered=True))
    message = refusal(TaggedTexts(train="a.conll"))
    found = re.search("--data.tokens ([a-z_0-9]+) --data.tags ([a-z_0-9]+)", message)
    assert found
    read = TaggedTexts(train="a.conll", eval="a.conll", tokens=found[1], tags=found[2]).read()
    assert read.train.table["tokens"][0] == ["EU", "rejects", "Ada"]
    assert "B-ORG" in read.labels
    fields = [f"{number}\t{word}\t{word}\t{tag}" + "\t_" * 6 for number, (word, tag, _) in enumerate(WORDS, start=1)]
    write("a.conllu", ("\n".join(["1-2\tx" + "\t_" * 8, *fields, "3.1\ty" + "\t_" * 8]) + "\n\n") * 4)
    message = refusal(TaggedTexts(train="a.conllu"))
    assert "--data.tokens column_2 --data.tags column_4" in message
    read = TaggedTexts(train="a.conllu", eval="a.conllu", tokens="column_2", tags="column_4").read()
    assert read.train.table["tokens"][0] == ["EU", "rejects", "Ada"]
    assert "CoNLL-U, 8 lines of ranges or empty words left out" in read.summary["data"]


# --- two files


def pair_files(place: str, ending: str = "") -> None:
    for side in ("train", "dev"):
        for language in ("de", "en"):
            write(f"{place}/{side}.{language}{ending}", f"{language} {side} 1\n{language} {side} 2\n")


@pytest.mark.parametrize("ending", ["", ".txt"])
def test_two_files_in_a_folder_and_in_an_archive(ending: str) -> None:
    pair_files("d", ending)
    with zipfile.ZipFile("d.zip", "w") as target:
        target.writestr("README", "x")
        for path in sorted(Path("d").iterdir()):
            target.write(path, f"x/{path.name}")
    for place in ({"name": "d"}, {"train": "d"}, {"train": "d.zip"}, {"name": "d.zip"}):
        read = TranslationPairs(source_language="de", target_language="en", **place).read(nowhere)
        assert read.train.table["source"][:] == ["de train 1", "de train 2"]
        assert read.evaluate.table["target"][:] == ["en dev 1", "en dev 2"]
    for first in (f"d/train.en{ending}", f"d.zip/x/train.en{ending}"):
        message = refusal(TranslationPairs(train=first))
        assert "such as --data.source_language en --data.target_language de" in message
    write(f"d/other.de{ending}", "x\n")
    write(f"d/train.2.de{ending}", "x\n")
    message = refusal(TranslationPairs(name="d", source_language="de", target_language="en"))
    assert message.endswith(f"such as --data.train train.2.de{ending}")


def test_no_files_are_looked_for_where_none_are_named() -> None:
    write("train.source", "x\n")
    write("train.target", "y\n")
    with pytest.raises(AssertionError, match="not the embedded data"):
        TextPairs().read(nowhere)
    write("t.de.txt", "de\ten\n" + "a\tb\n" * 3)
    tabbed = TranslationPairs(train="t.de.txt", source_language="de", target_language="en", held_out=0.4)
    assert len(tabbed.read(nowhere).train) == 2


# --- conversations


def chats(**row: Any) -> None:
    write("a.jsonl", "".join(json.dumps({**row, "number": number}) + "\n" for number in range(3)))


USER, GOOD, BAD = (
    {"role": role, "content": content} for role, content in (("user", "q"), ("assistant", "g"), ("assistant", "b"))
)


def test_who_speaks_is_told() -> None:
    for messages, told in (
        ([USER, GOOD], None),
        ([{"from": "human", "value": "q"}, {"from": "gpt", "value": "g"}], "gpt -> assistant, human -> user"),
        (
            [{"from": "human", "value": "q"}, GOOD],
            "messages by 'role': assistant -> assistant; by 'from': human -> user",
        ),
    ):
        chats(conversations=messages)
        read = Conversations(train="a.jsonl", eval="a.jsonl").read()
        assert next(read.train.batches())[0] == [USER, GOOD]
        assert (told or "") in read.summary.get("speakers", "")
        assert ("speakers" in read.summary) == (told is not None)


def test_messages_that_a_table_has_as_json() -> None:
    cell = json.dumps([USER, GOOD]).replace('"', '""')
    write("a.csv", f'messages\n"{cell}"\n')
    assert next(Conversations(train="a.csv", eval="a.csv").read().train.batches()) == [[USER, GOOD]]


def test_alpaca_with_earlier_turns() -> None:
    chats(instruction="i", input="", output="g", system="s", history=[["h", "a"]])
    read = Conversations(train="a.jsonl", eval="a.jsonl").read()
    assert [entry["content"] for entry in next(read.train.batches())[0]] == ["s", "i", "g"]
    assert read.summary["not read"].endswith("--data.history history")
    read = Conversations(train="a.jsonl", eval="a.jsonl", history="history").read()
    assert [entry["content"] for entry in next(read.train.batches())[0]] == ["s", "h", "a", "i", "g"]
    assert "not read" not in read.summary
    chats(instruction="i", input="c", output="g", history=["h"])
    assert "whose history is no list of pairs" in refusal(Conversations(train="a.jsonl", history="history"))
    assert "did you mean 'history'?" in refusal(Conversations(train="a.jsonl", history="histroy"))


# --- preferences


def test_prompts_in_several_columns() -> None:
    def pair(**settings: Any) -> Any:
        read = PreferenceData(train="a.jsonl", eval="a.jsonl", **settings).read()
        return next(pairs_of(read.train.table)), read.summary

    chats(instruction="i", input="c", chosen="g", rejected="b")
    found, summary = pair()
    assert found == ("i\n\nc", "g", "b")
    assert summary["columns"].startswith("context 'input', prompt 'instruction'")
    assert pair(prompt="instruction")[0] == ("i", "g", "b")
    chats(prompt="q", system="s", chosen="g", rejected="b")
    found, summary = pair()
    assert found == ("q", "g", "b")
    assert summary["not read"].endswith("--data.system system")
    found, summary = pair(system="system")
    assert found == ([{"role": "system", "content": "s"}, USER], GOOD, BAD)
    assert "not read" not in summary
    sides = {"chosen": {"from": "gpt", "value": "g"}, "rejected": {"from": "gpt", "value": "b"}}
    chats(conversations=[{"from": "human", "value": "q"}], system="s", **sides)
    assert pair(system="system")[0] == ([{"role": "system", "content": "s"}, USER], GOOD, BAD)
    chats(chosen="g", rejected="b", system="s")
    assert "there is no column with one" in refusal(PreferenceData(train="a.jsonl", system="system"))


# --- what predictions are asked for


def test_rows_to_predict_are_found_like_those_to_train_on() -> None:
    import openpyxl

    write("rows.csv", "text,n\na,1\nb,\n")
    book = openpyxl.Workbook()
    for row in (["text", "n"], ["a", 1], ["b", None]):
        book["Sheet"].append(row)
    book.save("a.xlsx")
    book.create_sheet("more")["A1"] = "x"
    book.save("b.xlsx")
    with zipfile.ZipFile("a.zip", "w") as target:
        target.write("rows.csv")
        target.write("a.xlsx")
    write("a.json", json.dumps({"rows": [{"text": "a", "n": "1"}, {"text": "b", "n": None}]}))
    expected = [{"text": "a", "n": "1"}, {"text": "b", "n": None}]
    for name in ("rows.csv", "a.xlsx", "b.xlsx/Sheet", "a.zip/rows.csv", "a.json", "a.json/rows"):
        file = InputFile(Path(name))
        file.check_header()
        assert [*file.rows()] == expected, name
    for name, match in (
        ("b.xlsx", "name the one that is meant, such as b.xlsx/Sheet"),
        ("a.zip/c.csv", "a.zip has no file 'c.csv'"),
        ("rows.csv/x", "rows.csv is a file without parts"),
    ):
        with pytest.raises(UserError, match=match):
            next(InputFile(Path(name)).rows())
    write("texts/1.txt", "One.")
    write("texts/2.txt", "")
    write("texts/._1.txt", b"\0\5\x16\7")
    write("texts/.ipynb_checkpoints/1.txt", "One, before.")
    Path("texts/again").symlink_to(".")
    assert [*InputFile(Path("texts")).rows()] == [{"file": "1.txt", "text": "One."}, {"file": "2.txt", "text": None}]
