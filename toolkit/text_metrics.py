"""Metrics of generated texts, each against one or several references, computed by the packages that define them."""

from collections.abc import Sequence

from toolkit.errors import require
from toolkit.metrics import Scores, Undefined
from toolkit.task import Metric


def rouge(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
    """Return the mean F-measures of ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004), without stemming.

    Of several references the one with the best F-measure counts, for each measure by itself. The words are what
    rouge-score finds: runs of the letters a to z and of digits, so texts in other scripts all score 0.
    """
    scoring = require("rouge_score.rouge_scorer", "summarize", "ROUGE")
    kinds = ["rouge1", "rouge2", "rougeL"]
    scorer = scoring.RougeScorer(kinds, use_stemmer=False)
    found = [scorer.score_multi(list(several), text) for text, several in zip(predictions, references, strict=True)]
    return {kind: sum(scores[kind].fmeasure for scores in found) / len(found) for kind in kinds}


def bleu(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
    """Return BLEU (Papineni et al. 2002) and chrF (Popović 2015) of the corpus, with sacrebleu's own settings."""
    sacrebleu = require("sacrebleu", "translate", "BLEU")
    texts, streams = for_sacrebleu(predictions, references)
    return {
        "bleu": sacrebleu.BLEU().corpus_score(texts, streams).score,
        "chrf": sacrebleu.CHRF().corpus_score(texts, streams).score,
    }


def edits(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
    """Return the translation edit rate (Snover et al. 2006; lower is better) and chrF++ (Popović 2017) of the corpus,
    with sacrebleu's own settings."""
    sacrebleu = require("sacrebleu", "translate", "TER")
    texts, streams = for_sacrebleu(predictions, references)
    return {
        "ter": sacrebleu.TER().corpus_score(texts, streams).score,
        "chrf++": sacrebleu.CHRF(word_order=2).corpus_score(texts, streams).score,
    }


def for_sacrebleu(
    predictions: Sequence[str], references: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str | None]]]:
    """Return the texts, and the first references of all of them, then the second ones, as sacrebleu takes them; None is
    for texts that have fewer."""
    most = max(map(len, references))
    streams = [[several[place] if place < len(several) else None for several in references] for place in range(most)]
    return list(predictions), streams


def rouge_by_lines(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
    """Return ROUGE-Lsum, ROUGE-L of summaries whose sentences stand on a line each; see `rouge`."""
    scoring = require("rouge_score.rouge_scorer", "summarize", "ROUGE")
    scorer = scoring.RougeScorer(["rougeLsum"], use_stemmer=False)
    found = [scorer.score_multi(list(several), text) for text, several in zip(predictions, references, strict=True)]
    return {"rougeLsum": sum(scores["rougeLsum"].fmeasure for scores in found) / len(found)}


def lengths(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
    """Return the words that were written for each word of a reference (of several the first)."""
    wanted = sum(len(several[0].split()) for several in references)
    written = sum(len(text.split()) for text in predictions)
    return {"length_ratio": written / wanted if wanted else Undefined("the references have no words")}


def named_text_metrics() -> dict[str, Metric]:
    """Return the metrics that `evaluate.metrics` can name, of texts with one or several references each."""
    return {
        **dict.fromkeys(("rouge1", "rouge2", "rougeL"), rouge),
        "rougeLsum": rouge_by_lines,
        **dict.fromkeys(("bleu", "chrf"), bleu),
        **dict.fromkeys(("chrf++", "ter"), edits),
        "exact_match": exact_match,
        "length_ratio": lengths,
    }


def exact_match(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
    """Return the share of texts that equal one of their references, but for white space around them."""
    right = [
        text.strip() in {reference.strip() for reference in several}
        for text, several in zip(predictions, references, strict=True)
    ]
    return {"exact_match": sum(right) / len(right)}
