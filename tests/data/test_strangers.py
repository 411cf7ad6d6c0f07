"""Data as strangers lay it out: what is read of it, or the message that says what to do instead.

Each row of a table is a file and what becomes of it; nothing is trained.
"""

import gzip
import io
import json
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from table_reading import here, write  # noqa: F401

from toolkit.config.parser import parse
from toolkit.config.schema import Config
from toolkit.data.config import DataConfig
from toolkit.errors import UserError
from toolkit.tasks.dpo.data import PreferenceData
from toolkit.tasks.dpo.rows import pairs_of
from toolkit.tasks.image_classification.data import LabelledImages
from toolkit.tasks.language_modeling.data import Documents
from toolkit.tasks.sentence_embedding.data import EmbeddingData
from toolkit.tasks.seq2seq.data import TextPairs, TranslationPairs
from toolkit.tasks.sft.data import Conversations
from toolkit.tasks.text_classification.data import LabelledTexts
from toolkit.tasks.token_classification.data import TaggedTexts
from toolkit.tasks.token_classification.files import read_tag_files


def workbook(*names: str) -> bytes:
    """Return a zip archive with files of these names."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in names:
            archive.writestr(name, "<xml/>")
    return packed.getvalue()


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def nowhere() -> Any:
    raise AssertionError("not the embedded data")


REVIEWS = "A dull film.\t0\nA film like no other, they say.\t1\nWell, well.\t0\n"
MRPC = '\ufeffQuality\t#1 ID\t#1 String\r\n1\t70\tHe said "no.\r\n0\t71\t"Yes," she said.\r\n'
NEWS = (
    '"3","Oil falls","Prices, again, are lower."\n"1","Talks end","Nobody has won."\n"3","Oil rises","Prices are up."\n'
)
STSB = 'main\t2\t5.0\tA man, in a hat, walks.\tA man walks.\nmain\t3\t2.5\t"A girl runs.\tA cat, maybe.\n'
BOOK, OLD_BOOK = workbook("[Content_Types].xml", "xl/workbook.xml"), b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500)

TABLES: dict[str, tuple[str, str | bytes, list[str] | bool | None, dict[str, list[Any]]]] = {
    # Files without a header: no row is lost, and columns have their types.
    "names given": (
        "a.tsv",
        REVIEWS,
        ["text", "label"],
        {"text": [line.split("\t")[0] for line in REVIEWS.splitlines()], "label": [0, 1, 0]},
    ),
    "no names": ("a.csv", "a b,1\nc d,2\n", False, {"column 1": ["a b", "c d"], "column 2": [1, 2]}),
    "one row": ("a.csv", "a b,1\n", ["text", "label"], {"text": ["a b"], "label": [1]}),
    "names that look like data, confirmed": (
        "a.csv",
        "text,2019\na,1\nb,2\n",
        True,
        {"text": ["a", "b"], "2019": [1, 2]},
    ),
    "tabs in a csv, commas in its texts": (
        "sts.csv",
        STSB,
        ["genre", "id", "score", "one", "two"],
        {
            "genre": ["main"] * 2,
            "id": [2, 3],
            "score": [5.0, 2.5],
            "one": ["A man, in a hat, walks.", '"A girl runs.'],
            "two": ["A man walks.", "A cat, maybe."],
        },
    ),
    "semicolons, commas in the texts": (
        "a.csv",
        "Gut, sehr;1\nNaja;2\n",
        ["text", "label"],
        {"text": ["Gut, sehr", "Naja"], "label": [1, 2]},
    ),
    # Names of files that say nothing, or something else.
    "MRPC": (
        "msr_paraphrase_train.txt",
        MRPC,
        None,
        {"Quality": [1, 0], "#1 ID": [70, 71], "#1 String": ['He said "no.', '"Yes," she said.']},
    ),
    "tabs, no ending": (
        "SMSSpamCollection",
        "ham\tGo on\nspam\tWin\nham\tOk\n",
        ["label", "text"],
        {"label": ["ham", "spam", "ham"], "text": ["Go on", "Win", "Ok"]},
    ),
    "json lines": ("rows.data", lines({"text": "a"}, {"text": "b"}), None, {"text": ["a", "b"]}),
    "json lines in a txt": ("rows.txt", lines({"text": "a"}, {"text": "b"}), None, {"text": ["a", "b"]}),
    "json": ("rows.data", '[\n {"text": "a"}]', None, {"text": ["a"]}),
    "json with a list inside": ("rows.data", '{"version": 1, "data": [{"text": "a"}]}', None, {"text": ["a"]}),
    "gzip": ("rows.data.gz", gzip.compress(b"text\tlabel\na\t1\n", mtime=0), None, {"text": ["a"], "label": [1]}),
    "gzip that is not called so": (
        "rows.csv",
        gzip.compress(b"text,label\na,1\n", mtime=0),
        None,
        {"text": ["a"], "label": [1]},
    ),
}

REFUSED: dict[str, tuple[str, str | bytes, list[str] | bool | None, list[str]]] = {
    "a number over numbers": (
        "a.tsv",
        REVIEWS,
        None,
        [
            "a.tsv, line 1 looks like data",
            "('A dull film.', '0'): '0' is a number, as are all below it",
            '--data.header "[text, label]"',
            "'column 1' to 'column 2' with --data.header false",
            "--data.header true",
        ],
    ),
    "AG news": ("a.csv", NEWS, None, ["'3' is a number", '--data.header "[label, column 2, text]"']),
    "a label that comes again": (
        "a.tsv",
        "ham\tGo\nspam\tWin\nham\tOk\n",
        None,
        ["'ham' stands in 1 more row of its column", '"[label, text]"'],
    ),
    "decimal commas": ("a.csv", "Ware kam an;3,5\nWare fehlt;1,0\n", None, ["'3,5' is a number"]),
    "long cells are shortened": ("a.csv", "x" * 500 + ",7\n" + "y,8\n" * 2, None, ["('" + "x" * 37 + "...', '7')"]),
    "a name twice": (
        "a.csv",
        "good,good\nbad,bad\n",
        None,
        ["the header has 'good' more than once", "--data.header false"],
    ),
    "too few names": (
        "a.tsv",
        REVIEWS,
        ["text"],
        ["has 2 fields ('A dull film.', '0'), but data.header has 1 names (text)"],
    ),
    "names there and denied": (
        "a.csv",
        "body,stars\na,1\nb,2\n",
        False,
        ["looks like the names of the columns ('body', 'stars')", "leave data.header out"],
    ),
    "the very names": ("a.csv", "text,label\na,x\nb,y\n", ["text", "label"], ["'text' would be learned from"]),
    "no csv": (
        "a.jsonl",
        lines({"text": "a"}),
        False,
        ["data.header is given, but no csv, tsv or Excel file was read"],
    ),
    "TREC": (
        "train_5500.label",
        "DESC:manner How did serfdom end ?\nENTY:cremat What films ?\n" * 3,
        None,
        [
            "has the ending .label; read are .csv",
            "'DESC:manner How did serfdom end ?'",
            "if each line is a label, a space and a text, say so with",
            '--data.header "[label, text]"',
        ],
    ),
    "a txt without tabs": (
        "a.txt",
        "text,label\na,1\n",
        None,
        ["a.txt is a text without tabs", "ln -s a.txt a.txt.csv"],
    ),
    "blank lines": ("a.data", "\n\n", None, ["nothing but blank lines"]),
    "Excel": ("a.xlsx", BOOK, None, ["a.xlsx is no readable Excel workbook", "save it again"]),
    "binary Excel": ("a.xlsb", workbook("xl/workbook.bin"), None, ["a.xlsb is a binary Excel workbook"]),
    "older Excel": ("a.xls", OLD_BOOK, None, ["a.xls is an Excel workbook", 'save it as ".xlsx"']),
    "older Excel called csv": ("a.csv", OLD_BOOK, None, ["a.csv is an Excel workbook"]),
    "OpenDocument": ("a.csv", workbook("mimetype", "content.xml"), None, ["an OpenDocument file"]),
    "Git LFS": (
        "a.parquet",
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        None,
        ["pointer in Git LFS", "git lfs pull"],
    ),
    "half a character": (
        "a.jsonl",
        '{"t": "a"}\n\n{"t": "\\ud83d"}\n',
        None,
        ["a.jsonl, line 3, column 't': a text with half a character"],
    ),
    "half a character in a key": (
        "a.jsonl",
        '{"t": "a"}\n{"\\ud83d": "a"}\n',
        None,
        ["a.jsonl, line 2: the key '\\ud83d' has half a character"],
    ),
}


@pytest.mark.parametrize("case", TABLES)
def test_tables_that_are_read(case: str) -> None:
    name, content, header, expected = TABLES[case]
    write(name, content)
    assert DataConfig(train=name, header=header).tables(nowhere).train.to_dict() == expected


@pytest.mark.parametrize("case", REFUSED)
def test_tables_that_are_refused(case: str) -> None:
    name, content, header, parts = REFUSED[case]
    write(name, content)
    with pytest.raises(UserError) as caught:
        DataConfig(train=name, header=header).tables(nowhere)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        "text,label\na,1\nb,0\n",
        "text,label\na,x\nb,y\na,x\n",
        "text,2019\na,1\nb,2\n".replace("text", "id").replace("a,", "1,").replace("b,", "2,"),  # a word over numbers
        ",text,label\n0,a,x\n1,b,x\n",  # the index of pandas
        "0,1\na b,0\nc d,1\n",  # columns that pandas numbered
        ",0,1\n0,a b,0\n1,c d,1\n",
        "text,label,0,1,2\na b,x,.5,.5,.5\nc d,y,.5,.5,.5\n",
        "How satisfied are you with our service?,Any other comments you have?\nvery,no\nnot,yes\n",
        "text,note,\na,b,c\nd,e,f\n",
        "word,meaning\n" + "".join(f"word{n},x{n}\n" for n in range(50)) + "word,a sign\n",  # by chance, once
        "text\n" + "one\n" * 3,
    ],
)
def test_headers_are_taken_for_what_they_are(content: str) -> None:
    write("a.csv", content)
    assert len(DataConfig(train="a.csv").tables(nowhere).train) == len(content.splitlines()) - 1


def refusal(read: Callable[[], Any]) -> str:
    """Return the message about data that can't be used."""
    with pytest.raises(UserError) as caught:
        read()
    return str(caught.value)


def test_first_rows_that_only_a_recipe_can_tell_from_names() -> None:
    # Nothing in the file contradicts these names: the message comes where no column is found.
    write("fra.txt", "Go.\tVa !\tCC-BY\nHi.\tSalut !\tCC\n")
    for data, flag in (
        (TranslationPairs(train="fra.txt"), "--data.source"),
        (TextPairs(train="fra.txt"), "--data.target"),
    ):
        message = refusal(lambda data=data: data.read(nowhere))
        assert flag in message
        assert "if these are the first row of data because the file has no header" in message
    named = TranslationPairs(train="fra.txt", header=["en", "fr", "licence"], source="en", target="fr", held_out=0.5)
    assert sorted(named.read(nowhere).training_texts()) in (["Go.", "Va !"], ["Hi.", "Salut !"])
    write("lines.csv", "The first sentence of a text.\nThe second one.\n")
    assert "--data.header false" in refusal(Documents(train="lines.csv").read)
    write("words.tsv", "Ada\tB-x\nran\tO\n\nBea\tB-x\nran\tO\n")
    assert "looks like data" in (message := refusal(TaggedTexts(train="words.tsv").read))
    assert "a CoNLL file, with a word and its tag on each line, has the ending .conll" in message


@dataclass(frozen=True)
class Run(Config):
    data: DataConfig = DataConfig()


@pytest.mark.parametrize("content", [REVIEWS, NEWS, STSB, "ham\tGo\nspam\tWin\nham\tOk\n", "a;1,5\nb;2,5\n"])
def test_the_setting_that_a_message_gives_loses_no_row(content: str) -> None:
    write("a.csv", content)
    message = refusal(lambda: DataConfig(train="a.csv").tables(nowhere))
    flags = [*re.findall(r'--data.header "([^"]+)"', message), *re.findall("--data.header (false)", message)]
    assert len(flags) == 2
    for flag in flags:
        data = parse(Run, "", ["--data.train", "a.csv", "--data.header", flag]).data
        assert len(data.tables(nowhere).train) == len(content.splitlines())


def test_header_where_nothing_has_one() -> None:
    write("d/train.jsonl", lines({"text": "a", "label": 1}))
    write("a.words", "Ada B-x\nran O\n")
    assert "data.header is given, but no csv, tsv or Excel file was read" in refusal(
        lambda: DataConfig(name="d", header=False).tables(nowhere)
    )
    assert "data.header is given, but of the files some are read as CoNLL" in refusal(
        lambda: read_tag_files(TaggedTexts(train="a.words", header=False))
    )
    assert "data.header is given, but acme/reviews is a data set of the hub" in refusal(
        lambda: DataConfig(name="acme/reviews", header=False).tables(nowhere)
    )
    import datasets
    from PIL import Image

    datasets.Dataset.from_dict({"text": ["a"]}).save_to_disk("saved")
    assert "but saved is a saved data set" in refusal(lambda: DataConfig(name="saved", header=True).tables(nowhere))
    for name in ("a", "b"):
        Path(f"images/{name}").mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(f"images/{name}/1.png")
    assert "the images are in folders" in refusal(LabelledImages(name="images", header=["image", "label"]).read)
    for header, part in (([], "without any"), (["a", " "], "an empty name"), (["a", "a"], "names a more than once")):
        assert any(part in problem for problem in DataConfig(train="x.csv", header=header).problems())
    assert list(DataConfig(header=False).problems()) == [
        "data.header is given, but no file is; give data.train or data.name too"
    ]


def test_a_word_that_is_no_file_may_be_a_data_set_of_the_hub() -> None:
    write("reviews.csv")
    for name in ("imdb", "acme/reviews"):
        assert refusal(lambda name=name: DataConfig(train=name).tables(nowhere)).endswith(
            f"of the hub, give --data.name {name}"
        )
    for train in ("imdb.csv", "review", "./imdb"):
        assert "--data.name" not in refusal(lambda train=train: DataConfig(train=train).tables(nowhere))


# --- numbers with decimal commas

PRICES = "text;price\n" + "".join(f"Ware {n};{n},{n % 2}\n" for n in range(9))


def test_decimal_commas_are_asked_about_and_read() -> None:
    write("a.csv", PRICES)
    write("whole.csv", PRICES.replace(",0", ""))
    for name in ("a.csv", "whole.csv"):
        message = refusal(LabelledTexts(train=name).read)
        assert "training data: the label column 'price' holds numbers with a comma, such as '" in message
        assert "--data.kind regression, --data.kind single or --data.separator ," in message
        texts = LabelledTexts(train=name, kind="regression").read()
        found = np.concatenate([texts.train.labels.values, texts.evaluate.labels.values])
        assert sorted(found) == [n + n % 2 / 10 for n in range(9)]
        assert texts.summary["labels"].endswith("; read with decimal commas")
        assert "decimal" not in LabelledTexts(train=name, separator=",", drop_invalid=True).read().summary["labels"]
    write("points.csv", PRICES.replace(",", "."))
    texts = LabelledTexts(train="points.csv").read()
    assert (texts.kind, "decimal" in texts.summary["labels"]) == ("regression", False)


def test_commas_that_may_divide_thousands_are_not_guessed() -> None:
    write("a.csv", "text;price\n" + "".join(f"Ware {n};{n + 1},250\n" for n in range(9)))
    assert "such as '1,250'" in refusal(LabelledTexts(train="a.csv").read)
    assert "'1,250', which may be 1250 or 1.250; write them without a comma" in refusal(
        LabelledTexts(train="a.csv", kind="regression").read
    )
    write("mixed.csv", PRICES + "Ware;viel\n")
    assert "not a finite number" in refusal(LabelledTexts(train="mixed.csv", kind="regression").read)


def test_scores_with_decimal_commas_and_pairs_of_equal_texts() -> None:
    rows = [
        (f"A man {n}", f"A man {n}" if n % 3 == 0 else f"A cat {n}", "5,0" if n % 3 == 0 else f"1,{n}")
        for n in range(9)
    ]
    write("a.csv", "sentence1;sentence2;score\n" + "".join(";".join(row) + "\n" for row in rows))
    texts = EmbeddingData(train="a.csv", eval="a.csv").read()
    assert texts.train.scores is not None
    assert sorted(texts.train.scores * 5) == pytest.approx(sorted(float(score.replace(",", ".")) for *_, score in rows))
    assert texts.summary["scores"].endswith("; read with decimal commas")
    # Without a score such a pair says nothing, and a search would find it whatever the model.
    write("b.csv", "anchor,positive\n" + "".join(f"{one},{two}\n" for one, two, _ in rows))
    assert "hold the same text, from which nothing can be learned, in 3 rows" in refusal(
        EmbeddingData(train="b.csv").read
    )


# --- conversations and preferences

ASKED, ANSWERED = {"from": "human", "value": "2 and 2?"}, {"from": "gpt", "value": "4"}
USER, GOOD = {"role": "user", "content": "2 and 2?"}, {"role": "assistant", "content": "4"}
BAD = {"role": "assistant", "content": "5"}

CHATS: dict[str, list[dict[str, Any]]] = {
    "parts with value": [
        {**message, "content": [{"type": "text", "value": message["content"]}]} for message in (USER, GOOD)
    ],
    "parts with text": [
        {**message, "content": [{"type": "text", "text": message["content"]}]} for message in (USER, GOOD)
    ],
    "from and value, in parts": [
        {**entry, "value": [{"type": "text", "value": entry["value"]}]} for entry in (ASKED, ANSWERED)
    ],
}
PAIRS: dict[str, dict[str, Any]] = {
    "from and value": {"chosen": [ASKED, ANSWERED], "rejected": [ASKED, {"from": "gpt", "value": "5"}]},
    "a conversation and two messages": {
        "conversations": [ASKED],
        "chosen": ANSWERED,
        "rejected": {"from": "gpt", "value": "5"},
    },
    "messages and two messages": {"messages": [USER], "chosen": GOOD, "rejected": BAD},
    "a conversation and two texts": {"conversations": [ASKED], "chosen": "4", "rejected": "5"},
    "a text and two messages": {"prompt": "2 and 2?", "chosen": GOOD, "rejected": BAD},
    "one message and two texts": {"prompt": USER, "chosen": "4", "rejected": "5"},
    "a conversation repeated next to it": {"messages": [USER, GOOD], "chosen": [USER, GOOD], "rejected": [USER, BAD]},
}


@pytest.mark.parametrize("case", CHATS)
def test_layouts_of_conversations(case: str) -> None:
    write("a.jsonl", lines({"messages": CHATS[case]}, {"messages": CHATS[case]}))
    assert next(Conversations(train="a.jsonl").read().train.batches()) == [[USER, GOOD]]


@pytest.mark.parametrize("case", PAIRS)
def test_layouts_of_preferences(case: str) -> None:
    write("a.jsonl", lines(PAIRS[case]))
    read = PreferenceData(train="a.jsonl", eval="a.jsonl").read()
    assert list(pairs_of(read.train.table)) == [([USER], GOOD, BAD)]
    assert set(read.train.texts()) == {"2 and 2?", "4", "5"}
    assert read.layout == "messages"


def test_conversations_and_preferences_that_are_refused() -> None:
    called = [USER, {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]}, GOOD]
    write("a.jsonl", lines({"messages": [USER, GOOD]}, {"messages": called}))
    assert "1 row (number 2, counted from 1 after any head line) with calls of tools, which are not read" in refusal(
        Conversations(train="a.jsonl").read
    )
    parts = [
        {**USER, "content": [{"type": "text", "text": "a"}]},
        {**GOOD, "content": [{"type": "text", "words": "4"}]},
    ]
    write("b.jsonl", lines({"messages": parts}))
    assert "where a message of the assistant is empty" in refusal(Conversations(train="b.jsonl").read)
    write("c.jsonl", lines({"conversations": [ASKED, ANSWERED], "chosen": "4", "rejected": "5"}))
    assert (
        "1 row (number 1, counted from 1 after any head line) whose prompt ends with a message of the assistant"
        in refusal(PreferenceData(train="c.jsonl").read)
    )
    write("d.jsonl", lines({"prompt": "a", "chosen": {"text": "b"}, "rejected": {"text": "c"}}))
    assert "lists of messages (or one message each)" in refusal(PreferenceData(train="d.jsonl").read)


# --- files that belong together line by line, and documents


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_for_each_language(packed: bool) -> None:
    for name, text in (
        ("train.en", "One\nTwo\n"),
        ("train.de", "Eins\r\nZwei"),
        ("dev.en", "Three\n"),
        ("dev.de", "Drei\n"),
    ):
        write(f"{name}.gz" if packed else name, gzip.compress(text.encode()) if packed else text)
    ending = ".gz" if packed else ""
    for settings in (
        {"source_language": "en", "target_language": "de"},
        {"source": "en", "target": "de"},
    ):
        read = TranslationPairs(train=f"train.de{ending}", eval=f"dev.en{ending}", **settings).read(nowhere)
        assert read.train.table.to_dict() == {
            "source": ["One", "Two"],
            "target": ["Eins", "Zwei"],
            "references": [["Eins"], ["Zwei"]],
        }
        assert read.evaluate.table["source"][:] == ["Three"]
        train, dev = (f"{name}.en{ending} and {name}.de{ending}, line by line" for name in ("train", "dev"))
        assert read.summary["data"] == f"{train}; evaluation: {dev}"
        assert len(read.files) == 4
    write("news.fr", lines({"source": "a", "target": "b"}) * 2)
    write("news.de", "")
    assert len(TextPairs(train="news.fr", held_out=0.5).read(nowhere).train) == 1
    assert "--data.source_language en --data.target_language de" in refusal(
        lambda: TranslationPairs(train=f"train.en{ending}").read(nowhere)
    )
    write(f"train.de{ending}", gzip.compress(b"Eins\n", mtime=0) if packed else "Eins\n")
    german = TranslationPairs(train=f"train.en{ending}", source_language="en", target_language="de")
    assert "has 2 lines and" in refusal(lambda: german.read(nowhere))
    french = TranslationPairs(train=f"train.en{ending}", source_language="en", target_language="fr")
    assert "beside it there is no train.fr and no train.fr.gz" in refusal(lambda: french.read(nowhere))


def test_two_files_are_named_by_their_endings() -> None:
    write("train.source", "One\n\nThree\n")
    write("train.target", "1\n2\n3\n")
    assert "in 1 row (number 2," in refusal(lambda: TextPairs(train="train.source").read(nowhere))
    read = TextPairs(train="train.target", eval="train.source", drop_invalid=True).read(nowhere)
    assert [*read.training_texts()] == ["One", "Three", "1", "3"]
    assert "data.header is given, but train.source is read line by line" in refusal(
        lambda: TextPairs(train="train.source", header=True).read(nowhere)
    )
    assert "data.eval 'dev.csv' is no file that ends with .source or .target" in refusal(
        lambda: TextPairs(train="train.source", eval="dev.csv").read(nowhere)
    )


def test_documents_of_any_ending() -> None:
    for name, content in (
        ("wiki.train.raw", b"One\ttab.\nTwo lines.\n"),
        ("train.en.gz", gzip.compress(b"One\ttab.\nTwo lines.\n", mtime=0)),
        ("book.txt", b"One\ttab.\nTwo lines.\n"),
    ):
        write(name, content)
        read = Documents(train=name, held_out=0.5).read()
        assert [*read.training_texts(), *read.evaluate.texts()] == ["One\ttab.\n", "Two lines.\n"]
        assert ("read as a text" in read.summary["data"]) == (name != "book.txt")
    write("rows.data", lines({"text": "One."}, {"text": "Two."}))
    assert "2 documents" in Documents(train="rows.data").read().summary["held out"]
    write("a.words", "Ada B-x\nran O\n\nBea B-x\n")
    write("b.txt", "Ada B-x\nran O\n")
    tagged = TaggedTexts(train="a.words", eval="b.txt").read()
    assert (len(tagged.train), len(tagged.evaluate)) == (2, 1)
    write("words.xlsx", BOOK)
    assert "is no readable Excel workbook" in refusal(Documents(train="words.xlsx").read)
    write("words.words", BOOK)
    assert "words.words is an Excel workbook; give a text file" in refusal(TaggedTexts(train="words.words").read)
