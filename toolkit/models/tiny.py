"""The embedded models: small ones with new weights that learn in a minute on two cores, and need no network.

Each function returns the Transformers configuration of one; sizes and token ids are those of the embedded tokenizers.
None has dropout unless that is asked for, so that its numbers are the same on any topology.
"""

from typing import Any

from toolkit.models.tokenizer import CAUSAL, ENCODER, SEQ2SEQ

COARSE, FINE = 32, 16
"""Images of fewer pixels a side are divided into smaller patches, so that something is left to convolve."""


def encoder(vocabulary: int, **settings: Any) -> Any:
    """Return a ModernBERT. (A BERT of this size, which reads the first token alone, reached 0.71 where this one, which
    averages over the tokens, reached 0.85.)"""
    from transformers import ModernBertConfig

    pad, _, begin, end, _ = range(len(ENCODER.special))
    sizes = {
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 256,
        "max_position_embeddings": ENCODER.max_length,
        "classifier_pooling": "mean",
    }
    ids = {"pad_token_id": pad, "bos_token_id": begin, "eos_token_id": end, "cls_token_id": begin, "sep_token_id": end}
    return ModernBertConfig(**{"vocab_size": vocabulary, **sizes, **ids, **settings})


def causal(vocabulary: int, **settings: Any) -> Any:
    """Return a Llama."""
    from transformers import LlamaConfig

    pad, end = range(len(CAUSAL.special))
    sizes = {
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 384,
        "max_position_embeddings": CAUSAL.max_length,
        "tie_word_embeddings": True,
    }
    ids = {"pad_token_id": pad, "bos_token_id": None, "eos_token_id": end}
    return LlamaConfig(**{"vocab_size": vocabulary, **sizes, **ids, **settings})


def seq2seq(vocabulary: int, **settings: Any) -> Any:
    """Return a T5."""
    from transformers import T5Config

    pad, end, _ = range(len(SEQ2SEQ.special))
    sizes = {
        "d_model": 128,
        "d_kv": 32,
        "d_ff": 384,
        "num_layers": 2,
        "num_decoder_layers": 2,
        "num_heads": 4,
        "dropout_rate": 0.0,
        "feed_forward_proj": "gated-gelu",
    }
    ids = {"pad_token_id": pad, "eos_token_id": end, "decoder_start_token_id": pad}
    return T5Config(**{"vocab_size": vocabulary, **sizes, **ids, **settings})


def image_classifier(size: int, **settings: Any) -> Any:
    """Return a ConvNeXt (arXiv 2201.03545) for images of `size` x `size` pixels; it has no batch norm."""
    from transformers import ConvNextConfig

    small = size < COARSE
    sizes = {
        "image_size": size,
        "patch_size": 1 if size < FINE else 2 if small else 4,
        "num_stages": 2 if small else 3,
        "hidden_sizes": [32, 64] if small else [32, 64, 128],
        "depths": [1, 1] if small else [2, 2, 2],
        # The usual 1e-6 is meant for deep networks and long training: with it these blocks barely begin to learn.
        "layer_scale_init_value": 1.0,
    }
    return ConvNextConfig(**{**sizes, **settings})
