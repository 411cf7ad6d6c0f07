"""The embedded corpus: what is in it, that it is always the same, and that it is read once."""

from collections import Counter
from pathlib import Path

import pytest

from toolkit.sample_data import docstrings as corpus


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FINETUNE_TOOLKIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        first = corpus.docstrings()
        patch.setattr(corpus, "read_library", lambda library: pytest.fail("the library was read again"))
        assert corpus.docstrings() == first
    return first


def test_the_corpus_is_large_enough_and_no_class_is_small(rows: list[dict[str, str]]) -> None:
    counts = Counter(row["label"] for row in rows)
    # Versions of Python differ: 3.12 has no distutils, some systems no tkinter and no idlelib.
    assert len(rows) > 2000
    assert len(counts) >= 10
    assert min(counts.values()) >= corpus.LEAST_COUNT
    assert {"asyncio", "email", "logging", "unittest"} <= set(counts)
    assert max(counts.values()) / len(rows) < 0.3  # the majority baseline is far from a good model
    assert not {"test", "site-packages", "idle_test"} & set(counts)


def test_every_text_is_there_once_and_says_something(rows: list[dict[str, str]]) -> None:
    texts = [row["text"] for row in rows]
    assert len(set(texts)) == len(texts)
    assert min(map(len, texts)) >= corpus.LEAST_LENGTH
    assert all(set(row) == {"text", "label"} for row in rows)


def test_the_cache_holds_json_lines(
    rows: list[dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINETUNE_TOOLKIT_CACHE", str(tmp_path))
    monkeypatch.setattr(
        corpus, "read_library", lambda library: [(f"the docstring number {i:04d}", "a") for i in range(100)]
    )
    assert corpus.docstrings()[3] == {"text": "the docstring number 0003", "label": "a"}
    assert [path.name for path in (tmp_path / "corpus").rglob("*") if path.suffix == ".jsonl"] == ["rows.jsonl"]


def test_docstrings_of_modules_classes_and_functions_are_read_in_order(tmp_path: Path) -> None:
    (tmp_path / "package" / "tests").mkdir(parents=True)
    (tmp_path / "package" / "inner.py").write_text(
        '"""Of the module."""\n'
        "if True:\n"
        "    class A:\n"
        '        """Of a class."""\n'
        "        async def f(self):\n"
        '            """Of a method."""\n'
        "            def g():\n"
        '                """Of an inner function."""\n'
        "def h():\n"
        '    "Of a function."\n'
        "def without():\n"
        "    return 'no docstring'\n"
    )
    (tmp_path / "package" / "tests" / "test_inner.py").write_text('"""Of a test."""')
    (tmp_path / "alone.py").write_text('"""Of a module by itself."""')
    (tmp_path / "broken.py").write_text("def (:")
    assert list(corpus.read_library(tmp_path)) == [
        ("Of a module by itself.", "alone"),
        ("Of the module.", "package"),
        ("Of a class.", "package"),
        ("Of a method.", "package"),
        ("Of an inner function.", "package"),
        ("Of a function.", "package"),
    ]


def test_short_texts_repeated_texts_and_rare_packages_are_left_out() -> None:
    many = [(f"a docstring that is long enough {i}", "large") for i in range(corpus.LEAST_COUNT)]
    found = [("x" * (corpus.LEAST_LENGTH - 1), "large"), *many, many[0], (many[1][0], "other"), ("y" * 99, "small")]
    found.append(("a lone surrogate is no text: \ud800", "large"))
    assert corpus.selected(iter(found)) == [{"text": text, "label": "large"} for text, _ in many]
