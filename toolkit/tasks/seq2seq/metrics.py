"""Metrics of generated texts, each against one or several references, computed by the packages that define them."""

from collections.abc import Sequence

from toolkit.errors import require

Scores = dict[str, float]


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
    most = max(map(len, references))
    # sacrebleu takes the first references of all texts, then the second ones; None is for texts that have fewer.
    streams = [[several[place] if place < len(several) else None for several in references] for place in range(most)]
    texts = list(predictions)
    return {
        "bleu": sacrebleu.BLEU().corpus_score(texts, streams).score,
        "chrf": sacrebleu.CHRF().corpus_score(texts, streams).score,
    }


def exact_match(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
    """Return the share of texts that equal one of their references, but for white space around them."""
    right = [
        text.strip() in {reference.strip() for reference in several}
        for text, several in zip(predictions, references, strict=True)
    ]
    return {"exact_match": sum(right) / len(right)}
