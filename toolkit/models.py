"""Models and tokenizers of Hugging Face Transformers: the embedded one, a local folder, or a hub id."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from toolkit.cache import digest_of, once_per_machine
from toolkit.errors import UserError

EMBEDDED = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": 512,
    "classifier_pooling": "mean",
}
"""The embedded encoder: a ModernBERT that learns in a minute on two cores. It has no dropout unless that is asked for, so
that its numbers are the same on any topology. (A BERT of this size, which reads the first token alone, reached 0.71 where
this one, which averages over the tokens, reached 0.85.)"""

VOCABULARY = 4096
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
NAMED = 5


@dataclass(frozen=True)
class EncoderConfig:
    name: str | None = None
    """A local model folder or a hub id; null is the embedded model, a small transformer with new weights."""
    revision: str | None = None
    """The branch, tag or commit of a hub id."""
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"
    """How the weights are kept; mixed precision is a matter of the launch configuration."""
    dropout: float | None = None
    """The probability of every dropout layer; null keeps the model's own."""

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the values, a sentence each."""
        if self.revision is not None and self.name is None:
            yield f"model.revision is {self.revision!r}, but the embedded model has no revisions; give model.name too"
        if self.dropout is not None and not 0 <= self.dropout < 1:
            yield f"model.dropout is {self.dropout}; it must be at least 0 and below 1"


def tokenizer(config: EncoderConfig, texts: Iterable[str], key: str) -> Any:
    """Return the model's tokenizer; for the embedded model a byte-level BPE, trained on `texts` once per machine.

    Args:
        config: names the model.
        texts: what the embedded model's tokenizer is trained on; not read for another model.
        key: a digest of the texts.

    Raises:
        UserError: the model's folder or hub id brings no tokenizer.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if config.name is None:
        folder = once_per_machine(
            "tokenizer", digest_of("bpe 2", VOCABULARY, key), lambda at: train_tokenizer(texts, at)
        )
        return PreTrainedTokenizerFast.from_pretrained(folder)
    try:
        loaded = AutoTokenizer.from_pretrained(config.name, revision=config.revision)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(cannot_load("tokenizer", config, error)) from None
    # Without a vocabulary file Transformers makes a tokenizer of the special tokens alone, to which every word is unknown.
    if len(loaded) <= len(set(loaded.all_special_ids)):
        raise UserError(cannot_load("tokenizer", config, ValueError("there is no vocabulary, such as tokenizer.json")))
    return loaded


def train_tokenizer(texts: Iterable[str], folder: Path) -> None:
    """Train a byte-level BPE on texts and save it in a folder. Costs about a second for 2 MB."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokens = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokens.normalizer = normalizers.NFC()
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokens.train_from_iterator(texts, trainer)
    ids = {name: tokens.token_to_id(name) for name in ("[CLS]", "[SEP]")}
    tokens.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=list(ids.items())
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokens,
        model_max_length=EMBEDDED["max_position_embeddings"],
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(folder)


def saved_labels(config: EncoderConfig) -> list[str] | None:
    """Return the label names of the model's head in the order of their ids, or None if it has no head that was named.

    A number stands for the label of a regression: the list is empty then.

    Raises:
        UserError: the model is not to be had, or is of a kind that can't classify texts.
    """
    if config.name is None:
        return None
    settings = model_settings(config)
    # Here, before data and tokenizer are read: what they lack is then no riddle.
    check_architecture(config, settings)
    architectures = settings.architectures or []
    if not any(name.endswith("ForSequenceClassification") for name in architectures):
        return None
    if settings.problem_type == "regression":
        return []
    names = [settings.id2label[number] for number in sorted(settings.id2label)]
    return None if names == [f"LABEL_{number}" for number in range(len(names))] else names


def model_settings(config: EncoderConfig) -> Any:
    """Return the Transformers configuration of a model folder or hub id.

    Raises:
        UserError: it is not to be had, or not a model.
    """
    from transformers import AutoConfig

    assert config.name is not None
    folder = Path(config.name)
    if folder.is_file() or (
        not folder.exists() and (config.name.startswith((".", "/", "~")) or config.name.count("/") > 1)
    ):
        raise UserError(
            f"model.name is {config.name!r}, which is no folder; give a model folder or a hub id (owner/name)"
        )
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise UserError(
            f"the model folder {config.name} has no config.json; give the folder that `save_pretrained` wrote"
        )
    try:
        return AutoConfig.from_pretrained(config.name, revision=config.revision)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(cannot_load("configuration", config, error)) from None


def sequence_classifier(
    config: EncoderConfig, labels: Sequence[str], kind: str, vocabulary: int, trained_head: bool = False
) -> torch.nn.Module:
    """Return an encoder with a classification head.

    Args:
        config: which one.
        labels: the label names in the order of their ids; empty for regression.
        kind: single, multi or regression.
        vocabulary: the number of tokens that the tokenizer knows.
        trained_head: the head has to come with the weights, as it does when nothing is trained.

    Raises:
        UserError: the folder or id holds no such model, no weights in a safe format, or weights of another one.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForSequenceClassification, ModernBertConfig

    names = list(labels) or ["value"]
    head = {
        "num_labels": len(names),
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": {
            "single": "single_label_classification",
            "multi": "multi_label_classification",
            "regression": "regression",
        }[kind],
    }
    dtype = getattr(torch, config.dtype)
    if config.name is None:
        special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
        settings = ModernBertConfig(vocab_size=vocabulary, **special, **EMBEDDED, **head)
        set_dropout(settings, config.dropout)
        module: torch.nn.Module = AutoModelForSequenceClassification.from_config(settings)
        return module.to(dtype)
    settings = model_settings(config)
    check_architecture(config, settings)
    if vocabulary > settings.vocab_size:
        raise UserError(
            f"the tokenizer of {config.name} knows {vocabulary} tokens, but the model only {settings.vocab_size}; "
            "they do not belong together: give a folder in which both were saved together"
        )
    settings.update(head)
    set_dropout(settings, config.dropout)
    try:
        module, info = AutoModelForSequenceClassification.from_pretrained(
            config.name,
            config=settings,
            revision=config.revision,
            dtype=dtype,
            # Pickled weights are not read: a pickle can run code.
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UserError(cannot_load("weights", config, error)) from None
    check_weights(config, module, info, trained_head)
    return module


def check_architecture(config: EncoderConfig, settings: Any) -> None:
    """Refuse a model that Transformers has no sequence classification head for."""
    from transformers import AutoModelForSequenceClassification

    if type(settings) not in AutoModelForSequenceClassification._model_mapping:
        raise UserError(
            f"model.name is {config.name!r}, a {settings.model_type} model, which can't classify texts; "
            "give an encoder or another model that Transformers has a sequence classification head for"
        )


def check_weights(config: EncoderConfig, module: torch.nn.Module, info: dict[str, Any], trained_head: bool) -> None:
    """Refuse weights that leave the encoder itself, or a head that has to be trained already, with new numbers.

    A pooler counts as part of the head: models that were trained on masked words alone come without one.
    """
    base = str(getattr(module, "base_model_prefix", ""))
    strange = sorted(
        {str(key[0] if isinstance(key, tuple) else key) for key in (*info["missing_keys"], *info["mismatched_keys"])}
    )
    in_base = [key for key in strange if key.startswith(f"{base}.") and ".pooler." not in key]
    if in_base:
        named = ", ".join(in_base[:NAMED]) + (f" and {len(in_base) - NAMED} more" if len(in_base) > NAMED else "")
        raise UserError(
            f"the weights in {config.name} do not fit its config.json (architecture {type(module).__name__}): "
            f"{named} missing or of another size; the folder mixes two models or is incomplete: save or download it again"
        )
    if trained_head and strange:
        raise UserError(
            f"{config.name} has no trained classification head ({', '.join(strange[:NAMED])}), so there is nothing to evaluate; "
            "name a model that was saved after training, such as runs/classify/model"
        )


def set_dropout(settings: Any, probability: float | None) -> None:
    """Set every dropout probability of a Transformers configuration.

    Raises:
        UserError: the configuration has none to set.
    """
    if probability is None:
        return
    # `classifier_dropout` and the like are null where they follow another one.
    keys = [
        k
        for k, v in settings.to_dict().items()
        if "drop" in k and "layer" not in k and (v is None or isinstance(v, float | int))
    ]
    if not keys:
        raise UserError(
            f"model.dropout is {probability}, but a {settings.model_type} model has no dropout; leave it out"
        )
    for key in keys:
        setattr(settings, key, probability)


def cannot_load(part: str, config: EncoderConfig, error: Exception) -> str:
    """Say why a part of a model could not be loaded, and what to do."""
    name = str(config.name)
    folder = Path(name)
    if folder.is_dir():
        files = sorted(entry.name for entry in folder.iterdir())
        shown = ", ".join(files[:8]) + (", ..." if len(files) > 8 else "") if files else "nothing"
        if part == "weights" and not list(folder.glob("*.safetensors")):
            pickled = [file for file in files if file.endswith((".bin", ".pt", ".pth", ".ckpt"))]
            what = (
                f"only pickled weights ({pickled[0]}), which are not read because a pickle can run code; save them with "
                "`save_pretrained` (safetensors)"
                if pickled
                else f"no weights (model.safetensors); it holds {shown}"
            )
            return f"the model folder {name} has {what}"
        return f"the model folder {name} has no {part} that can be read ({first_line(error)}); it holds {shown}: save or download it again"
    return (
        f"model.name is {name!r}: there is no such folder, and the hub gave no {part} for it ({first_line(error)}). "
        "Check the spelling and the network (HF_HUB_OFFLINE=1 forbids it), log in with `hf auth login` if it is private, "
        "or give a local folder"
    )


def first_line(error: Exception) -> str:
    """Return the first line of an error of a library; of those that are meant for programmers with their type."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    return f"{type(error).__name__}: {line}" if isinstance(error, KeyError | TypeError | AttributeError) else line
