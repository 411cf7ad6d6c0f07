"""Translations: languages within a column, BLEU and chrF, the embedded dates, and what can be wrong with languages."""

import datetime
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from changed_flags import changed
from recipe_layouts import load_recipe
from small_translate import arguments, rows, write
from trial import Outcome, run_here

from toolkit.sample_data.dates import FORMATS, written, written_dates
from toolkit.tasks.seq2seq.data import TranslationPairs
from toolkit.text_metrics import bleu

PREDICTED = ["The house is very small today.", "It rains in the night", "A cat!", "She reads a long book there"]
SEVERAL = [
    ["The house is quite small today.", "The house is very small now."],
    ["It is raining at night", "It rains in the night", "At night it rains"],
    ["A dog!"],
    ["She reads a long letter here", "There she reads a long book"],
]


@pytest.fixture(scope="module")
def translate() -> ModuleType:
    return load_recipe("translate")


def run(translate: ModuleType, folder: Path, *words: str) -> Outcome:
    folder.mkdir(exist_ok=True)
    flags = changed(arguments(folder), "--threads", "1", *words)
    return run_here(translate.Translate, translate.task, flags, folder / "run")


def test_languages_within_a_column_and_the_copy_as_baseline(translate: ModuleType, tmp_path: Path) -> None:
    done = run(translate, tmp_path, "--generate.beams", "2").done()
    done.says("source 'en' in 'translation', target 'de' in 'translation'")
    shown = [json.loads(line) for line in (done.folder / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]
    expected = [row["translation"] for row in rows(11, first=37)]
    assert [row["source"] for row in shown] == [pair["en"] for pair in expected]
    assert [row["references"] for row in shown] == [[pair["de"]] for pair in expected]
    copied = bleu([row["source"] for row in shown], [row["references"] for row in shown])
    assert copied["chrf"] > 0
    assert done.record["baseline"] == {**copied, "exact_match": 0.0}
    assert set(done.record["metrics"]) == {"loss", "bleu", "chrf", "exact_match"}
    assert json.loads((done.folder / "model" / "generation_config.json").read_text())["num_beams"] == 2


def test_bleu_and_chrf_are_those_of_sacrebleu() -> None:
    import sacrebleu

    found = bleu(PREDICTED, SEVERAL)
    streams: Any = [[references[k] if k < len(references) else None for references in SEVERAL] for k in range(3)]
    assert found["bleu"] == sacrebleu.corpus_bleu(PREDICTED, streams).score
    assert found["chrf"] == sacrebleu.corpus_chrf(PREDICTED, streams).score
    assert 20 < found["bleu"] < 100
    # A reference that is left out changes the score; one that is there twice does not.
    assert bleu(PREDICTED, [several[:1] for several in SEVERAL])["bleu"] < found["bleu"]
    assert bleu(PREDICTED, [[*several, several[0]] for several in SEVERAL]) == pytest.approx(found)
    one = bleu(PREDICTED, [several[:1] for several in SEVERAL])
    assert one["bleu"] == sacrebleu.corpus_bleu(PREDICTED, [[several[0] for several in SEVERAL]]).score


def test_languages_may_be_columns(translate: ModuleType, tmp_path: Path) -> None:
    path = write(tmp_path / "flat.jsonl", [{"en": f"word {n}", "de": f"Wort {n}", "id": n} for n in range(10)])
    data = TranslationPairs(train=path, source_language="de", target_language="en")
    pairs = data.read(translate.corpus)
    assert pairs.train.table[0]["source"].startswith("Wort")
    assert pairs.references[0][0].startswith("word")
    assert pairs.copies() == [references[0].replace("word", "Wort") for references in pairs.references]


def test_what_is_wrong_with_languages_is_told(translate: ModuleType, tmp_path: Path) -> None:
    other = ["--data.source_language", "fr", "--data.target_language", "it"]
    run(translate, tmp_path / "one", *other).refused(
        "data.source_language is 'fr'", "data.target_language is 'it'", "the column 'translation' holds 'en', 'de'"
    )
    path = write(tmp_path / "train.jsonl", rows(9))
    refused = run_here(translate.Translate, translate.task, ["--data.train", path], tmp_path / "two")
    refused.refused("holds the languages 'en', 'de'", "--data.source_language")
    same = run(translate, tmp_path / "three", "--data.target_language", "en", "--data.source", "translation")
    same.told("are both 'en'", "leave data.source and data.target out")
    alone = ["--data.train", path, "--data.source_language", "en"]
    run_here(translate.Translate, translate.task, alone, tmp_path / "four").told("give both, or neither")
    empty = write(tmp_path / "empty.jsonl", [*rows(9), {"translation": {"en": "red", "de": ""}}, {"translation": None}])
    run(translate, tmp_path / "five", "--data.train", empty).refused("2 rows (numbers 10, 11")


def test_dates_are_written_in_twelve_ways_and_no_date_is_in_both_parts() -> None:
    date = datetime.date(2021, 3, 7)
    assert [written(date, layout) for layout in FORMATS] == [
        *("7 March 2021", "March 7, 2021", "7 Mar 2021", "Mar 7, 2021", "Sunday, 7 March 2021", "Sun Mar 7 2021"),
        *("the 7th of March 2021", "March 7th, 2021", "07-Mar-2021", "07.03.2021", "03/07/2021", "2021/03/07"),
    ]
    days = {1: "1st", 2: "2nd", 3: "3rd", 11: "11th", 12: "12th", 13: "13th", 21: "21st", 22: "22nd", 30: "30th"}
    assert [written(date.replace(day=day), "{day}{ending}") for day in days] == list(days.values())
    train, held_out = written_dates()
    assert (len(train), len(held_out)) == (20_000, 300)
    targets = [row["target"] for row in train + held_out]
    assert len(set(targets)) == 20_300
    assert min(targets) < "1900-02" < "2099-11" < max(targets)
