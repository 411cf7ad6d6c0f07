"""Every recipe for `gpu.py`: as it is, or, where packages are missing, its loss and collation on samples made here.

The samples are rows of random tokens. What is put together here is what each recipe puts together in its `task`: what
is a lambda there is one here.
"""

import importlib.util
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from toolkit import Task, TaskData
from toolkit.losses import NOT_COUNTED, counted, logits_of, summed_cross_entropy
from toolkit.models.tiny import causal, encoder, image_classifier, seq2seq
from toolkit.task import GlobalBatchLoss
from toolkit.tasks.dpo.models import PolicyAndReference
from toolkit.tasks.dpo.tokens import PairIds
from toolkit.tasks.dpo.tokens import pad_pairs as pad_preferences
from toolkit.tasks.image_classification.processor import stack_images
from toolkit.tasks.language_modeling.blocks import pad_blocks
from toolkit.tasks.question_answering.answers import span_loss
from toolkit.tasks.question_answering.windows import pad_windows
from toolkit.tasks.sentence_embedding.losses import in_batch_loss
from toolkit.tasks.sentence_embedding.models import embed
from toolkit.tasks.sentence_embedding.texts import pad_sides
from toolkit.tasks.seq2seq.models import target_logits
from toolkit.tasks.seq2seq.pairs import pad_pairs
from toolkit.tasks.sft.tokens import pad_conversations
from toolkit.tasks.text_classification.texts import pad_texts
from toolkit.tasks.token_classification.windows import pad_words
from toolkit.vocabulary_loss import causal_scores

ROOT = Path(__file__).parents[1]
NEEDED = ("datasets", "evaluate", "sklearn", "PIL")
VOCABULARY, CLASSES, LONGEST, PIXELS = 256, 3, 48, 8
sys.path.append(str(ROOT / "tests" / "helpers"))

from recipe_layouts import RECIPES as RECIPES  # noqa: E402 (found only from here on)
from recipe_layouts import config_class, load_recipe, small_arguments  # noqa: E402


class Samples:
    """Samples that follow from their ids, of different lengths."""

    def __init__(self, make: Callable[[random.Random, int], Any], count: int = 10_000) -> None:
        self.make = make
        self.count = count

    def __len__(self) -> int:
        return self.count

    def lengths(self, ids: np.ndarray) -> np.ndarray:
        """Return the lengths."""
        return LONGEST // 2 + np.asarray(ids) * 7919 % (LONGEST // 2 + 1)

    def fetch(self, ids: Sequence[int]) -> list[Any]:
        """Return the samples with these ids."""
        lengths = self.lengths(np.asarray(ids)).tolist()
        return [self.make(random.Random(number), length) for number, length in zip(ids, lengths, strict=True)]

    def digest(self) -> str:
        """Return what the content follows from."""
        return "random tokens"


def missing() -> list[str]:
    """Return which packages a recipe needs that are not installed."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def as_it_is(name: str, folder: Path) -> Task:
    """Return the task of a recipe, on the small data that the tests have for it."""
    from toolkit.config.parser import parse

    recipe = load_recipe(name)
    flags = [*small_arguments(name, folder / name), "--output", str(folder / "run")]
    config: Any = parse(config_class(recipe), "", [flag.replace("float64", "float32") for flag in flags])
    task: Task = recipe.task(config)
    return task


def made_here(name: str) -> Task:
    """Return a task with the loss and the collation of a recipe, on samples made here."""
    import transformers

    chat, classify, prefer, tag = map(load_recipe, ("chat", "classify", "prefer", "tag"))
    tokens: Any = SimpleNamespace(
        pad_token_id=0, eos_token_id=1, pad_token_type_id=0, padding_side="right", model_input_names=["input_ids"]
    )

    def row(generator: random.Random, length: int) -> list[int]:
        return generator.choices(range(5, VOCABULARY), k=length)

    def text(generator: random.Random, length: int) -> dict[str, Any]:
        return {"text": {"input_ids": row(generator, length)}, "label": generator.randrange(CLASSES)}

    def model(auto: str, config: Any) -> Callable[[Any], torch.nn.Module]:
        return lambda runtime: getattr(transformers, auto).from_config(config)

    def classify_texts() -> Task:
        kind = classify.KINDS["single"]
        return Task(
            model("AutoModelForSequenceClassification", encoder(VOCABULARY, num_labels=CLASSES)),
            TaskData(train=Samples(text)),
            pad_texts(tokens, "single"),
            lambda batch: batch["labels"].numel(),
            lambda model, batch: kind.loss(logits_of(model, batch), batch["labels"]),
        )

    def tag_words() -> Task:
        def sample(generator: random.Random, length: int) -> dict[str, Any]:
            labels = [generator.choice([NOT_COUNTED, 0, 1, 2]) for _ in range(length - 1)]
            return {"input_ids": row(generator, length), "labels": [1, *labels]}

        return Task(
            model("AutoModelForTokenClassification", encoder(VOCABULARY, num_labels=CLASSES)),
            TaskData(train=Samples(sample)),
            pad_words(plain_tokenizer()),
            lambda batch: counted(batch["labels"]),
            tag.loss,
        )

    def answer_questions() -> Task:
        def sample(generator: random.Random, length: int) -> dict[str, Any]:
            return {"input_ids": row(generator, length), "context": (8, length - 1), "labels": (9, 11)}

        return Task(
            model("AutoModelForQuestionAnswering", encoder(VOCABULARY)),
            TaskData(train=Samples(sample)),
            pad_windows(tokens),
            lambda batch: len(batch["labels"]),
            span_loss,
        )

    def rewrite() -> Task:
        def sample(generator: random.Random, length: int) -> dict[str, Any]:
            sides = {"source": length, "target": length // 3}
            return {name: {"input_ids": row(generator, size)} for name, size in sides.items()}

        seq = model("AutoModelForSeq2SeqLM", seq2seq(VOCABULARY))
        return Task(
            seq,
            TaskData(train=Samples(sample)),
            pad_pairs(tokens),
            lambda batch: counted(batch["labels"]),
            lambda model, batch: summed_cross_entropy(target_logits(model, batch), batch["labels"]),
        )

    def continue_texts() -> Task:
        def sample(generator: random.Random, length: int) -> dict[str, Any]:
            ids = np.array(row(generator, length + 1))
            return {"input_ids": ids[:-1], "labels": ids[1:]}

        return Task(
            model("AutoModelForCausalLM", causal(VOCABULARY)),
            TaskData(train=Samples(sample)),
            pad_blocks(tokens),
            lambda batch: counted(batch["labels"]),
            lambda model, batch: causal_scores(model, batch).losses.sum(),
        )

    def reply() -> Task:
        def sample(generator: random.Random, length: int) -> dict[str, Any]:
            ids = row(generator, length)
            return {"input_ids": ids, "labels": [NOT_COUNTED] * 8 + ids[8:12] + [NOT_COUNTED] * 4 + ids[16:]}

        return Task(
            model("AutoModelForCausalLM", causal(VOCABULARY)),
            TaskData(train=Samples(sample)),
            pad_conversations,
            lambda batch: counted(batch["labels"][:, 1:]),
            chat.loss,
        )

    def choose() -> Task:
        def sample(generator: random.Random, length: int) -> PairIds:
            return PairIds(row(generator, length // 2), row(generator, length // 2), row(generator, length // 3))

        dpo = prefer.DpoConfig(likelihood=0.1)
        policy = model("AutoModelForCausalLM", causal(VOCABULARY))
        return Task(
            lambda runtime: PolicyAndReference(policy(runtime)),
            TaskData(train=Samples(sample)),
            pad_preferences(tokens),
            lambda batch: len(batch["input_ids"]) // 2,
            lambda model, batch: prefer.dpo_loss(*prefer.rewards(model, batch, dpo.beta), dpo),
        )

    def make_vectors() -> Task:
        def sample(generator: random.Random, length: int) -> dict[str, Any]:
            sides = {"anchor": length, "positive": 9}
            texts = {name: {"input_ids": row(generator, size)} for name, size in sides.items()}
            return {**texts, "identities": [generator.randrange(10**6) for _ in sides]}

        joint = GlobalBatchLoss(
            embed=lambda model, batch: embed(model, batch, "mean"),
            loss=in_batch_loss,
            extra=lambda batch: batch["identities"],
        )
        read = model("AutoModel", encoder(VOCABULARY))
        return Task(
            read, TaskData(train=Samples(sample)), pad_sides(tokens), lambda batch: len(batch["identities"]), joint
        )

    def classify_images() -> Task:
        def sample(generator: random.Random, length: int) -> dict[str, Any]:
            pixels = np.random.default_rng(length).random((3, PIXELS, PIXELS), dtype=np.float32)
            return {"pixels": pixels, "label": generator.randrange(CLASSES)}

        return Task(
            model("AutoModelForImageClassification", image_classifier(PIXELS, num_labels=CLASSES)),
            TaskData(train=Samples(sample)),
            stack_images("float32"),
            lambda batch: len(batch["labels"]),
            lambda model, batch: summed_cross_entropy(logits_of(model, batch), batch["labels"]),
        )

    made = {
        "answer": answer_questions,
        "chat": reply,
        "classify": classify_texts,
        "classify_images": classify_images,
        "embed": make_vectors,
        "language": continue_texts,
        "prefer": choose,
        "summarize": rewrite,
        "tag": tag_words,
        "translate": rewrite,
    }
    return made[name]()


def plain_tokenizer() -> Any:
    """Return a tokenizer that knows its padding token; Transformers' own collation wants a whole one."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1}, unk_token="[UNK]")),
        pad_token="[PAD]",
        unk_token="[UNK]",
    )
