"""Small models of Transformers' families with new weights, in float64, with dropout wherever they can have any."""

from typing import Any

import torch

WORDS, WIDTH, LONGEST = 60, 32, 64
SIZES = {
    **{"vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"intermediate_size": 48, "max_position_embeddings": LONGEST, "num_key_value_heads": 2, "head_dim": 8},
    **{"n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": LONGEST, "n_inner": None},
    **{"dim": WIDTH, "n_heads": 4, "n_layers": 2, "hidden_dim": 48, "embedding_size": 16},
    **{"d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "word_embed_proj_dim": WIDTH, "ffn_dim": 48},
    **{"d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "query_pre_attn_scalar": 8},
    **{"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "cls_token_id": 0, "sep_token_id": 2},
    **{"local_attention": 6, "global_attn_every_n_layers": 2},
}
WINDOWS = {"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 1}
SEE_A_WINDOW = ("gemma3_text", "mistral", "qwen2", "qwen3", "smollm3", "starcoder2")
OF_ONE_GROUP = ("gpt_neox", "phi", "stablelm")


def small_config(kind: str, dropout: float = 0.1, **changes: Any) -> Any:
    """Return the settings of a small model of a kind; some look no further than a window, most share keys by heads."""
    from transformers import AutoConfig

    usual = AutoConfig.for_model(kind).to_dict()
    sizes = {**SIZES, **WINDOWS} if kind in SEE_A_WINDOW else dict(SIZES)
    if kind in OF_ONE_GROUP:
        sizes["num_key_value_heads"] = 4
    known = {name: size for name, size in sizes.items() if name in usual}
    drops = {
        name: dropout
        for name, value in usual.items()
        if "drop" in name and "layer" not in name and (value is None or type(value) in (int, float))
    }
    return AutoConfig.for_model(kind, **{**known, **drops, **changes})


def small_model(kind: str, auto: str = "AutoModel", **changes: Any) -> Any:
    """Return a small model of a kind, with the head that a class of Transformers gives it."""
    import transformers

    torch.manual_seed(0)
    return getattr(transformers, auto).from_config(small_config(kind, **changes)).double()


def has_head(kind: str, auto: str) -> bool:
    """Return whether Transformers has such a model."""
    import transformers

    return type(small_config(kind)) in getattr(transformers, auto)._model_mapping
