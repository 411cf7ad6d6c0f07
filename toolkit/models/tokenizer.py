"""Tokenizers: that of a model folder or hub id, or one that is trained on the data for an embedded model."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from toolkit.config.model import ModelConfig
from toolkit.data.cache import digest_of, once_per_machine
from toolkit.errors import UserError
from toolkit.models.errors import cannot_load
from toolkit.models.lora import base_of

COUNTED_FROM_PADDING = frozenset(
    {"camembert", "data2vec-text", "esm", "ibert", "longformer", "luke", "mpnet", "roberta", "roberta-prelayernorm"}
    | {"xlm-roberta", "xlm-roberta-xl", "xmod"}
)
"""Kinds of models that need some of their positions for padding."""
DISTANCES = frozenset({"t5", "mt5", "umt5"})
"""Kinds of models that name a number of positions, but have none: they look at distances."""


@dataclass(frozen=True)
class EmbeddedTokenizer:
    """A byte-level BPE, as it is trained for an embedded model."""

    special: Mapping[str, str]
    """Special tokens by their role, in the order of their ids: {"pad_token": "[PAD]", ...}."""
    single: str
    """How a text is framed, in the words of `tokenizers.processors.TemplateProcessing`."""
    pair: str | None = None
    """How two texts are."""
    vocabulary: int = 4096
    """Tokens, special ones included."""
    max_length: int = 512
    """The longest text that the embedded model takes, in tokens."""
    more_tokens: tuple[str, ...] = ()
    """Further tokens that are never split, such as the marks of a chat template."""
    prefix_space: bool = False
    """Whether a text's first word is tokenized as one within a text; needed where texts come as lists of words."""
    chat_template: str | None = None
    """How a conversation becomes a text (Jinja)."""
    inputs: tuple[str, ...] = field(default=("input_ids", "attention_mask"))
    """What the tokenizer returns."""


ENCODER = EmbeddedTokenizer(
    special={
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    },
    single="[CLS] $A [SEP]",
    pair="[CLS] $A [SEP] $B [SEP]",
)
CAUSAL = EmbeddedTokenizer(special={"pad_token": "<pad>", "eos_token": "<end>"}, single="$A")
SEQ2SEQ = EmbeddedTokenizer(
    special={"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}, single="$A </s>", pair="$A </s> $B </s>"
)


def tokenizer(config: ModelConfig, texts: Iterable[str], key: str, embedded: EmbeddedTokenizer = ENCODER) -> Any:
    """Return the model's tokenizer; for an embedded model one that is trained on `texts`, once per machine.

    Args:
        config: names the model.
        texts: what the embedded model's tokenizer is trained on; not read for another model.
        key: a digest of the texts.
        embedded: what the embedded model's tokenizer is like.

    Raises:
        UserError: the model's folder or hub id brings no tokenizer.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if config.name is None:
        folder = once_per_machine(
            "tokenizer", digest_of("bpe 3", asdict(embedded), key), lambda at: train_tokenizer(texts, at, embedded)
        )
        return PreTrainedTokenizerFast.from_pretrained(folder)
    try:
        loaded = AutoTokenizer.from_pretrained(config.name, revision=config.revision)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(cannot_load("tokenizer", config, error)) from None
    if (positions := longest_input(config)) is not None:
        loaded.model_max_length = min(loaded.model_max_length, positions)
    # Without a vocabulary file Transformers makes a tokenizer of special tokens alone, to which every word is unknown.
    if len(loaded) <= len(set(loaded.all_special_ids)):
        raise UserError(cannot_load("tokenizer", config, ValueError("there is no vocabulary, such as tokenizer.json")))
    return loaded


def longest_input(config: ModelConfig) -> int | None:
    """Return how many tokens a model has positions for; None if it knows no limit, or is not to be had.

    Many tokenizers do not say it (their limit is 10**30), and a longer input ends in an error of torch during the run.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        base, _ = base_of(config, only=False)
        settings = AutoConfig.from_pretrained(base.name, revision=base.revision).get_text_config()
    except (OSError, ValueError, KeyError, StrictDataclassError, UserError):
        return None  # loading the model reports it
    positions = getattr(settings, "max_position_embeddings", None)
    looks_at_distances = settings.model_type in DISTANCES or getattr(settings, "position_biased_input", True) is False
    if looks_at_distances or not isinstance(positions, int) or positions <= 0:
        return None
    # In RoBERTa and its kin positions are counted from the padding token's id on.
    return positions - settings.pad_token_id - 1 if settings.model_type in COUNTED_FROM_PADDING else positions


def train_tokenizer(texts: Iterable[str], folder: Path, embedded: EmbeddedTokenizer) -> None:
    """Train a byte-level BPE on texts and save it in a folder. Costs about a second for 2 MB."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokens = Tokenizer(models.BPE(unk_token=embedded.special.get("unk_token")))
    tokens.normalizer = normalizers.NFC()
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=embedded.prefix_space)
    tokens.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=embedded.vocabulary,
        special_tokens=[*embedded.special.values(), *embedded.more_tokens],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokens.train_from_iterator(texts, trainer)
    named = {name for name in (*embedded.special.values(), *embedded.more_tokens) if name in embedded.single}
    if named:
        tokens.post_processor = processors.TemplateProcessing(
            single=embedded.single,
            pair=embedded.pair,
            special_tokens=[(name, tokens.token_to_id(name)) for name in sorted(named)],
        )
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokens,
        model_max_length=embedded.max_length,
        model_input_names=list(embedded.inputs),
        **embedded.special,
    )
    wrapped.chat_template = embedded.chat_template
    wrapped.save_pretrained(folder)
