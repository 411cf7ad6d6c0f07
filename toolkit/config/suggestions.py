"""Which setting a name that is not known was probably meant to be, or what is done here instead."""

import json
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

ACCUMULATION = (
    "batch.size is what one step takes over all processes, batch.micro at most what one process runs at once, and "
    "accumulation follows from the two"
)
PRECISION = (
    "mixed precision is the launcher's: mixed_precision in the launch file, or `accelerate launch --mixed_precision "
    "{}` before the recipe (model.dtype is the type of the weights)"
)
BF16, FP16 = PRECISION.format("bf16"), PRECISION.format("fp16")
PROCESSES = (
    "how many processes there are, and where, is the launcher's, which tells each one its rank: `accelerate launch "
    "--config_file accelerate_configs/X.yaml --num_processes N` before the recipe"
)
SPREAD = (
    "how a model is spread is the launcher's: `accelerate launch --config_file` with one of accelerate_configs/, such "
    "as fsdp2_one_node.yaml, before the recipe"
)
DEVICE = (
    "the device is the launcher's: `accelerate launch --config_file` with one of accelerate_configs/, such as "
    "cpu.yaml, before the recipe"
)

# What Transformers' Trainer, TRL, torchtune, Lightning and the launcher call it, the names that a newcomer types first,
# by the field that it is here, or by what is done here instead.
CALLED_ELSEWHERE = {
    "batch.balance": "group_by_length train_sampling_strategy",
    "batch.micro": "auto_find_batch_size auto_scale_batch_size",
    "batch.micro_tokens": "max_tokens max_tokens_per_batch",
    "batch.eval": "per_device_eval_batch_size eval_batch_size",
    "batch.size": "batch batch_size train_batch_size global_batch_size",
    "checkpoint.best": "metric_for_best_model monitor",
    "checkpoint.every": "save_steps save_strategy every_n_train_steps checkpointing_steps",
    "checkpoint.keep": "save_total_limit save_top_k",
    "data.block": "block_size max_seq_length max_seq_len max_length",
    "data.config": "dataset_config_name dataset_config",
    "data.eval": "validation_file eval_file test_file val_file validation_data eval_dataset validation valid val test "
    "dev eval validation_dir",
    "data.held_out": "validation_split_percentage validation_split val_size val_set_size test_size",
    "data.label": "label_column label_column_name",
    "data.mask": "mlm_probability",
    "data.max_length": "max_seq_length max_seq_len max_source_length model_max_length block_size cutoff_len",
    "data.max_rows": "max_train_samples max_samples max_eval_samples max_train_rows num_train_samples",
    "data.name": "dataset_name dataset dataset_path",
    "data.prefix": "source_prefix",
    "data.source": "source_column text_column text_column_name",
    "data.stride": "doc_stride",
    "data.tags": "label_column label_column_name",
    "data.target": "summary_column target_column",
    "data.text": "text_column text_column_name dataset_text_field",
    "data.tokens": "text_column text_column_name",
    "data.train": "data train_file train_path train_data train_dataset data_files train_dir",
    "data.weight": "sample_weight sample_weights weight_column",
    "data.workers": "num_workers dataloader_num_workers preprocessing_num_workers",
    "epochs": "num_epochs num_train_epochs max_epochs",
    "evaluate.every": "eval_steps eval_strategy evaluation_strategy val_check_interval",
    "evaluate.only": "do_eval",
    "evaluate.patience": "early_stopping early_stopping_patience patience",
    "export": "use_ema save_ema",
    "log.every": "logging_steps logging_strategy log_every_n_steps",
    "loss.class_weights": "class_weight pos_weight weighted_loss label_weights",
    "loss.focal": "focal_loss focal_gamma gamma",
    "loss.label_smoothing": "label_smoothing_factor smoothing",
    "model.attention": "attn_implementation",
    "model.checkpoint_activations": "gradient_checkpointing enable_activation_checkpointing activation_checkpointing",
    "model.device_map": "device_map model_parallel naive_pipeline",
    "model.dtype": "torch_dtype dtype",
    "model.lora.alpha": "lora_alpha",
    "model.lora.bits": "load_in_4bit load_in_8bit",
    "model.lora.dropout": "lora_dropout",
    "model.lora.rank": "lora lora_rank lora_r use_lora use_peft peft",
    "model.lora.targets": "lora_target_modules lora_target target_modules",
    "model.name": "model model_name_or_path model_name model_path base_model tokenizer_name tokenizer",
    "optim.average": "ema ema_decay ema_beta weight_averaging",
    "optim.betas": "adam_beta1 adam_beta2",
    "optim.clip": "max_grad_norm gradient_clip_val clip_grad_norm",
    "optim.eps": "adam_epsilon",
    "optim.floor": "min_lr min_lr_rate min_lr_ratio",
    "optim.layer_decay": "layer_lr_decay layerwise_lr_decay llrd",
    "optim.lr": "learning_rate",
    "optim.name": "optim optimizer",
    "optim.restarts": "num_cycles",
    "optim.schedule": "lr_scheduler_type lr_scheduler",
    "optim.warmup": "warmup_ratio warmup_steps num_warmup_steps",
    "output": "output_dir save_dir default_root_dir logging_dir",
    "resume": "resume_from_checkpoint ckpt_path",
    "seed": "data_seed random_seed",
    "steps": "max_steps max_train_steps",
    "timeout.rendezvous": "meeting rdzv_timeout",
    "track.run_name": "wandb_run_name wandb_name experiment_name",
    "track.project": "wandb_project project_name tracker_project_name",
    "track.to": "report_to log_with use_wandb with_tracking logger loggers tracker trackers",
    "the recipe trains and evaluates without being told to": "do_train",
    "that is the default: model/ holds the weights of the best evaluation, which checkpoint.best chooses (--export "
    "last saves the last ones)": "load_best_model_at_end",
    "nothing is overwritten: give another --output": "overwrite_output_dir",
    "no code from a hub is run": "trust_remote_code",
    "contrast.scale is one over it: --contrast.scale 20 is a temperature of 0.05": "temperature",
    "`toolkit predict RUN FILE --output OUT` predicts the rows of a file after the training": "do_predict",
    "a launch file is the launcher's: `accelerate launch --config_file FILE` before the recipe": "config_file",
    "a run sends nothing to anybody; afterwards: toolkit push RUN owner/name": "push_to_hub hub_model_id hub_token "
    "hub_private_repo hub_strategy push_to_hub_model_id",
    ACCUMULATION: "gradient_accumulation_steps accumulate_grad_batches per_device_train_batch_size "
    "per_gpu_train_batch_size",
    BF16: "mixed_precision bf16 precision amp",
    FP16: "fp16 fp16_opt_level fp16_full_eval",
    PROCESSES: "num_processes num_machines machine_rank main_process_ip main_process_port multi_gpu gpu_ids "
    "nproc_per_node nnodes num_nodes devices n_gpu gpus world_size local_rank",
    SPREAD: "deepspeed deepspeed_config deepspeed_config_file zero_stage use_deepspeed fsdp fsdp_config use_fsdp "
    "strategy",
    DEVICE: "use_cpu no_cuda cpu device accelerator",
}

# The values of others, by the value that is meant here.
VALUES_ELSEWHERE = {
    "adamw": "adam adamw_torch adamw_torch_fused adamw_hf adamw_bnb_8bit",
    "auto": "true",
    "bfloat16": "bf16",
    "causal": "clm causal_lm",
    "cosine": "cosine_with_restarts cosine_with_warmup cosine_annealing",
    "constant": "constant_with_warmup",
    "flash_attention_2": "flash flash_attn flash_attention flash2",
    "float32": "fp32 float single",
    "linear": "linear_with_warmup",
    "masked": "mlm masked_lm",
    "positives": "pairs triplets triplet",
    "scores": "sts similarity",
}


def show(value: Any) -> str:
    """Return a value as a user would write it, on one line of bearable length."""
    if isinstance(value, str):
        text = value if value and value.isprintable() and value == value.strip() else repr(value)
    else:
        try:
            text = json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError):
            text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def nearest(given: str, names: Iterable[str]) -> list[str]:
    """Return the valid dotted names that a mistyped one may have meant, the likeliest first, at most three."""
    names = list(names)
    wanted = given.lower().replace("-", "_").strip("_")
    last = wanted.rpartition(".")[2]
    section = wanted[: -len(last)] if last else wanted
    inside = [name for name in names if section and name.startswith(section)]
    lasts = list(dict.fromkeys(name.rpartition(".")[2] for name in names if name not in inside))
    rules = (
        [name for name in names if name.replace(".", "_") == wanted.replace(".", "_")],
        [name for name in names if last in CALLED_ELSEWHERE.get(name, "").split()],
        [name for name in names if name.rpartition(".")[2] == last],
        # Where the section exists only the last part can be wrong; the part they share would make all its names near.
        [section + found for found in get_close_matches(last, [name[len(section) :] for name in inside], 1, 0.6)],
        get_close_matches(wanted, [name for name in names if name not in inside], 1, 0.7),
        [name for name in names if name.rpartition(".")[2] in get_close_matches(last, lasts, 1, 0.7)],
    )
    return next((found[:3] for found in rules if found), [])


def is_called_elsewhere(given: str, name: str) -> bool:
    """Return whether others call a setting so."""
    return given.rpartition(".")[2] in CALLED_ELSEWHERE.get(name, "").split()


def nearest_value(given: str, values: Iterable[str]) -> str | None:
    """Return the value that a mistyped one, or that of another program, may have meant."""
    values = list(values)
    called = [value for value in values if given.lower() in VALUES_ELSEWHERE.get(value, "").split()]
    return next(iter([*called, *nearest(given, values)]), None)


def suggestion(given: str, names: Iterable[str], dashes: str = "") -> str:
    """Return the end of a sentence about an unknown name: what it means here, the nearest ones, or where all are."""
    names = list(names)
    last = given.lower().replace("-", "_").rpartition(".")[2]
    is_field = any(name.rpartition(".")[2] == last for name in names)
    meanings = [meaning for meaning, others in CALLED_ELSEWHERE.items() if " " in meaning and last in others.split()]
    # A sentence that begins with a setting is for the recipes that have it.
    meanings = [meaning for meaning in meanings if "." not in meaning.split()[0] or meaning.split()[0] in names]
    if meanings and not is_field:
        return meanings[0]
    if found := nearest(given, names):
        return f"did you mean {' or '.join(dashes + name for name in found)}?"
    section = given.partition(".")[0]
    if inside := [dashes + name for name in names if name.startswith(section + ".")]:
        return f"{section} has {', '.join(inside)}"
    return "--help lists every name"
