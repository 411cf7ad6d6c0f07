"""Every architecture that the documentation names, tiny, through the recipes that take it: what becomes of each."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VOCABULARY = 400
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 140,
    "pad_token_id": 0,
}
PAIR = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "max_position_embeddings": 140,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
VISION = {"image_size": 32, "patch_size": 8, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
CAUSAL = {**TEXT, "bos_token_id": 1, "eos_token_id": 2, "num_key_value_heads": 2, "head_dim": 8}


@dataclass(frozen=True)
class Family:
    name: str
    config: str
    sizes: dict[str, Any]
    recipes: str


ENC = "classify tag answer language embed"
S2S = "summarize translate"
CAU = "chat language prefer classify"
IMG = "classify_images"

FAMILIES = [
    Family("BERT", "BertConfig", TEXT, ENC),
    Family("RoBERTa", "RobertaConfig", TEXT, ENC),
    Family("XLM-RoBERTa", "XLMRobertaConfig", TEXT, ENC),
    Family("DistilBERT", "DistilBertConfig", {"vocab_size": VOCABULARY, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 16, "max_position_embeddings": 140, "pad_token_id": 0}, ENC),
    Family("ALBERT", "AlbertConfig", {**TEXT, "embedding_size": 16}, ENC),
    Family("ELECTRA", "ElectraConfig", {**TEXT, "embedding_size": 16}, ENC),
    Family("DeBERTa", "DebertaConfig", {**TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, ENC),
    Family("DeBERTa-v2", "DebertaV2Config", {**TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "share_att_key": True, "position_biased_input": False}, ENC),
    Family("MPNet", "MPNetConfig", TEXT, ENC),
    Family("ModernBERT", "ModernBertConfig", {**TEXT, "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}, ENC),
    Family("XLNet", "XLNetConfig", {"vocab_size": VOCABULARY, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 16}, ENC),
    Family("ESM", "EsmConfig", {**TEXT, "mask_token_id": 3, "position_embedding_type": "rotary"}, ENC),
    Family("Longformer", "LongformerConfig", {**TEXT, "attention_window": 8}, ENC),
    Family("BigBird", "BigBirdConfig", {**TEXT, "block_size": 4}, ENC),
    Family("FNet", "FNetConfig", TEXT, ENC),
    Family("CamemBERT", "CamembertConfig", TEXT, ENC),
    Family("Funnel", "FunnelConfig", {"vocab_size": VOCABULARY, "block_sizes": [1, 1], "num_decoder_layers": 1, "d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 16}, ENC),
    Family("NomicBERT", "NomicBertConfig", TEXT, ENC),
    Family("EuroBERT", "EuroBertConfig", {**TEXT, "num_key_value_heads": 2}, ENC),
    Family("XLM", "XLMConfig", {"vocab_size": VOCABULARY, "emb_dim": 16, "n_layers": 2, "n_heads": 2, "max_position_embeddings": 140, "n_langs": 1}, ENC),
    Family("SqueezeBERT", "SqueezeBertConfig", {**TEXT, "embedding_size": 16, "q_groups": 1, "k_groups": 1, "v_groups": 1, "intermediate_groups": 1, "output_groups": 1}, ENC),
    Family("MobileBERT", "MobileBertConfig", {**TEXT, "embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16}, ENC),
    Family("I-BERT", "IBertConfig", TEXT, ENC),
    Family("RemBERT", "RemBertConfig", {**TEXT, "input_embedding_size": 16, "output_embedding_size": 16}, ENC),
    Family("Nystromformer", "NystromformerConfig", TEXT, ENC),
    Family("CANINE", "CanineConfig", {**TEXT, "num_hash_buckets": 64}, ENC),
    Family("ConvBERT", "ConvBertConfig", {**TEXT, "embedding_size": 16}, ENC),
    Family("GPT-2", "GPT2Config", {"vocab_size": VOCABULARY, "n_positions": 140, "n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 1, "eos_token_id": 2}, CAU + " tag answer embed"),
    Family("GPT-Neo", "GPTNeoConfig", {"vocab_size": VOCABULARY, "max_position_embeddings": 140, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]], "bos_token_id": 1, "eos_token_id": 2}, CAU),
    Family("GPT-NeoX", "GPTNeoXConfig", CAUSAL, CAU),
    Family("GPT-J", "GPTJConfig", {"vocab_size": VOCABULARY, "n_positions": 140, "n_embd": 16, "n_layer": 2, "n_head": 2, "rotary_dim": 4, "bos_token_id": 1, "eos_token_id": 2}, CAU),
    Family("OPT", "OPTConfig", {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "ffn_dim": 16, "num_attention_heads": 2, "max_position_embeddings": 140, "word_embed_proj_dim": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}, CAU),
    Family("Llama", "LlamaConfig", CAUSAL, CAU + " embed tag"),
    Family("Mistral", "MistralConfig", CAUSAL, CAU + " embed"),
    Family("Qwen2", "Qwen2Config", CAUSAL, CAU + " embed"),
    Family("Qwen3", "Qwen3Config", CAUSAL, CAU + " embed"),
    Family("Gemma", "GemmaConfig", CAUSAL, CAU),
    Family("Gemma 2", "Gemma2Config", CAUSAL, CAU),
    Family("Gemma 3", "Gemma3TextConfig", CAUSAL, CAU),
    Family("Phi", "PhiConfig", CAUSAL, CAU),
    Family("Phi-3", "Phi3Config", {**CAUSAL, "pad_token_id": 0}, CAU),
    Family("Falcon", "FalconConfig", {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "bos_token_id": 1, "eos_token_id": 2}, CAU),
    Family("BLOOM", "BloomConfig", {"vocab_size": VOCABULARY, "hidden_size": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 1, "eos_token_id": 2}, CAU),
    Family("MPT", "MptConfig", {"vocab_size": VOCABULARY, "d_model": 16, "n_heads": 2, "n_layers": 2, "max_seq_len": 140, "expansion_ratio": 1}, CAU),
    Family("StableLM", "StableLmConfig", CAUSAL, CAU),
    Family("Mamba", "MambaConfig", {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}, CAU),
    Family("Mamba 2", "Mamba2Config", {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4, "num_heads": 4, "head_dim": 8, "n_groups": 1, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}, CAU),
    Family("Mixtral", "MixtralConfig", {**CAUSAL, "num_local_experts": 4, "num_experts_per_tok": 2}, CAU),
    Family("OLMoE", "OlmoeConfig", {**CAUSAL, "num_experts": 4, "num_experts_per_tok": 2}, CAU),
    Family("OLMo 2", "Olmo2Config", CAUSAL, CAU),
    Family("Qwen3-MoE", "Qwen3MoeConfig", {**CAUSAL, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}, CAU),
    Family("SmolLM3", "SmolLM3Config", CAUSAL, CAU),
    Family("Granite", "GraniteConfig", CAUSAL, CAU),
    Family("Cohere", "CohereConfig", CAUSAL, CAU),
    Family("T5", "T5Config", {"vocab_size": VOCABULARY, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 2}, S2S + " classify embed"),
    Family("mT5", "MT5Config", {"vocab_size": VOCABULARY, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 2}, S2S),
    Family("LongT5", "LongT5Config", {"vocab_size": VOCABULARY, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2, "local_radius": 4, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 2}, S2S),
    Family("Switch Transformers", "SwitchTransformersConfig", {"vocab_size": VOCABULARY, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "num_decoder_layers": 2, "num_heads": 2, "num_experts": 2, "expert_capacity": 64, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 2}, S2S),
    Family("BART", "BartConfig", PAIR, S2S + " classify answer"),
    Family("mBART", "MBartConfig", PAIR, S2S),
    Family("Marian", "MarianConfig", {**PAIR, "forced_eos_token_id": 2}, S2S),
    Family("Pegasus", "PegasusConfig", PAIR, S2S),
    Family("PEGASUS-X", "PegasusXConfig", {**PAIR, "block_size": 8, "num_global_tokens": 4}, S2S),
    Family("LED", "LEDConfig", {**PAIR, "attention_window": 8, "max_encoder_position_embeddings": 140, "max_decoder_position_embeddings": 140}, S2S),
    Family("M2M100", "M2M100Config", PAIR, S2S),
    Family("BlenderBot", "BlenderbotConfig", PAIR, S2S),
    Family("ProphetNet", "ProphetNetConfig", {"vocab_size": VOCABULARY, "hidden_size": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "num_encoder_layers": 2, "num_decoder_layers": 2, "num_encoder_attention_heads": 2, "num_decoder_attention_heads": 2, "max_position_embeddings": 140, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "ngram": 2}, S2S),
    Family("BigBird-Pegasus", "BigBirdPegasusConfig", {**PAIR, "block_size": 4}, S2S),
    Family("ViT", "ViTConfig", VISION, IMG),
    Family("DeiT", "DeiTConfig", VISION, IMG),
    Family("Swin", "SwinConfig", {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}, IMG),
    Family("Swin v2", "Swinv2Config", {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}, IMG),
    Family("ConvNeXt", "ConvNextConfig", {"image_size": 32, "hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}, IMG),
    Family("ConvNeXt V2", "ConvNextV2Config", {"image_size": 32, "hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}, IMG),
    Family("ResNet", "ResNetConfig", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}, IMG),
    Family("RegNet", "RegNetConfig", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "groups_width": 8}, IMG),
    Family("BEiT", "BeitConfig", {**VISION, "use_mask_token": True}, IMG),
    Family("Data2Vec (images)", "Data2VecVisionConfig", {**VISION, "use_mask_token": True}, IMG),
    Family("DINOv2", "Dinov2Config", VISION, IMG),
    Family("DINOv2 with registers", "Dinov2WithRegistersConfig", VISION, IMG),
    Family("DINOv3", "DINOv3ViTConfig", VISION, IMG),
    Family("SigLIP", "SiglipConfig", {"vision_config": VISION, "text_config": {**TEXT, "max_position_embeddings": 16}}, IMG),
    Family("SigLIP 2", "Siglip2Config", {"vision_config": {**VISION, "num_patches": 16}, "text_config": {**TEXT, "max_position_embeddings": 16}}, IMG),
    Family("CLIP", "CLIPConfig", {"vision_config": VISION, "text_config": {**TEXT, "max_position_embeddings": 16}, "projection_dim": 16}, IMG + " embed classify"),
    Family("MobileNetV2", "MobileNetV2Config", {"image_size": 32, "depth_multiplier": 0.25, "finegrained_output": False}, IMG),
    Family("MobileNetV1", "MobileNetV1Config", {"image_size": 32, "depth_multiplier": 0.25}, IMG),
    Family("EfficientNet", "EfficientNetConfig", {"image_size": 32, "width_coefficient": 0.1, "depth_coefficient": 0.1, "hidden_dim": 128}, IMG),
    Family("MobileViT", "MobileViTConfig", {"image_size": 32, "hidden_sizes": [8, 12, 16], "neck_hidden_sizes": [8, 8, 8, 8, 8, 8, 8], "num_attention_heads": 2}, IMG),
    Family("LeViT", "LevitConfig", {"image_size": 32, "hidden_sizes": [16, 16, 16], "num_attention_heads": [2, 2, 2], "depths": [1, 1, 1], "key_dim": [8, 8, 8]}, IMG),
    Family("PVT", "PvtConfig", {"image_size": 32, "hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 1, 1]}, IMG),
    Family("SegFormer", "SegformerConfig", {"image_size": 32, "hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 1, 1]}, IMG),
    Family("ViT-MSN", "ViTMSNConfig", VISION, IMG),
    Family("ImageGPT", "ImageGPTConfig", {"vocab_size": 33, "n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2}, IMG),
    Family("I-JEPA", "IJepaConfig", VISION, IMG),
    Family("Hiera", "HieraConfig", {"image_size": [32, 32], "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "masked_unit_size": [2, 2], "patch_stride": [4, 4]}, IMG),
    Family("FocalNet", "FocalNetConfig", {"image_size": 32, "embed_dim": 8, "depths": [1, 1], "hidden_sizes": [8, 16], "focal_levels": [1, 1], "focal_windows": [3, 3]}, IMG),
    Family("PoolFormer", "PoolFormerConfig", {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]}, IMG),
    Family("CvT", "CvtConfig", {"embed_dim": [8, 8, 8], "num_heads": [1, 1, 1], "depth": [1, 1, 1]}, IMG),
]
