"""Architectures of Transformers, each tiny, through the recipes: what becomes of them, on one process and on two.

    python tests/helpers/model_table.py > docs/models.md

Each model is built with new weights, saved as a user's folder, and read back by the recipe, which trains it for one
step, evaluates it once and saves it. `tests/models/test_model_table.py` does the same and holds the page against it.
"""

import gc
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from changed_flags import changed
from recipe_layouts import config_class, load_recipe, small_arguments

Sizes = dict[str, Any]
WORDS, LENGTH, SIDE = 300, 260, 32
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
TEXT = {**SMALL, "vocab_size": WORDS, "max_position_embeddings": LENGTH, "pad_token_id": 0}
ENDS = {"bos_token_id": 1, "eos_token_id": 2}
CAUSAL = {**TEXT, **ENDS, "num_key_value_heads": 2, "head_dim": 8}
EXPERTS = {**CAUSAL, "num_experts_per_tok": 2}
GPT = {"vocab_size": WORDS, "n_positions": LENGTH, "n_embd": 16, "n_layer": 2, "n_head": 2, **ENDS}
STATES = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4, "pad_token_id": 0, **ENDS}
BEGINS = {"pad_token_id": 0, **ENDS, "decoder_start_token_id": 2}
LAYERS = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("layers", 2), ("ffn_dim", 16))}
HEADS = {f"{side}_attention_heads": 2 for side in ("encoder", "decoder")}
BOTH = {"vocab_size": WORDS, "d_model": 16, **LAYERS, **HEADS, "max_position_embeddings": LENGTH, **BEGINS}
T5 = {"vocab_size": WORDS, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2, **BEGINS}
IMAGES = {**SMALL, "image_size": SIDE, "patch_size": 8}
STAGES = {"image_size": SIDE, "hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}
WINDOWS = {"image_size": SIDE, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}
FOUR = {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 1, 1]}


@dataclass(frozen=True)
class Row:
    """An architecture, and the recipes that it is given to."""

    name: str
    """As the documentation writes it."""
    config: str
    """The class of its configuration in Transformers."""
    recipes: str
    sizes: Sizes


ENCODING = "classify tag answer language embed"
SEEING = "classify_images"

ROWS = [
    Row("BERT", "BertConfig", f"{ENCODING} chat", TEXT),
    Row("RoBERTa", "RobertaConfig", "classify tag embed", TEXT),
    Row("XLM-RoBERTa", "XLMRobertaConfig", "classify language", TEXT),
    Row(
        "DistilBERT",
        "DistilBertConfig",
        "classify answer",
        {"vocab_size": WORDS, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 16, "pad_token_id": 0},
    ),
    Row(
        "FlauBERT",
        "FlaubertConfig",
        "classify",
        {
            "vocab_size": WORDS,
            "emb_dim": 16,
            "n_layers": 2,
            "n_heads": 2,
            "max_position_embeddings": LENGTH,
            "pad_index": 0,
        },
    ),
    Row("ALBERT", "AlbertConfig", "classify", {**TEXT, "embedding_size": 16}),
    Row("ELECTRA", "ElectraConfig", "classify tag", {**TEXT, "embedding_size": 16}),
    Row(
        "DeBERTa-v2",
        "DebertaV2Config",
        "classify tag answer",
        {
            **TEXT,
            "relative_attention": True,
            "pos_att_type": ["c2p", "p2c"],
            "share_att_key": True,
            "position_biased_input": False,
        },
    ),
    Row("MPNet", "MPNetConfig", "embed language", TEXT),
    Row("ModernBERT", "ModernBertConfig", ENCODING, {**TEXT, **ENDS, "cls_token_id": 1, "sep_token_id": 2}),
    Row(
        "XLNet",
        "XLNetConfig",
        "classify answer language",
        {"vocab_size": WORDS, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 16, "pad_token_id": 0},
    ),
    Row(
        "ESM",
        "EsmConfig",
        "classify tag answer language",
        {**TEXT, "mask_token_id": 3, "position_embedding_type": "rotary"},
    ),
    Row("Longformer", "LongformerConfig", ENCODING, {**TEXT, "attention_window": 8, "sep_token_id": 2}),
    Row("BigBird", "BigBirdConfig", "classify answer", {**TEXT, "block_size": 4}),
    Row("FNet", "FNetConfig", "classify tag", TEXT),
    Row("CamemBERT", "CamembertConfig", "tag", TEXT),
    Row(
        "Funnel",
        "FunnelConfig",
        "classify tag embed",
        {"vocab_size": WORDS, "block_sizes": [1, 1], "d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 16},
    ),
    Row("CANINE", "CanineConfig", "classify tag", {**TEXT, "num_hash_buckets": 64}),
    Row("EuroBERT", "EuroBertConfig", "classify", {**TEXT, **ENDS, "num_key_value_heads": 2}),
    Row("NomicBERT", "NomicBertConfig", "embed", TEXT),
    Row("GPT-2", "GPT2Config", "chat language classify tag", GPT),
    Row(
        "GPT-NeoX",
        "GPTNeoXConfig",
        "chat language",
        CAUSAL,
    ),
    Row(
        "OPT",
        "OPTConfig",
        "chat classify",
        {
            "vocab_size": WORDS,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "ffn_dim": 16,
            "num_attention_heads": 2,
            "max_position_embeddings": LENGTH,
            "word_embed_proj_dim": 16,
            "pad_token_id": 0,
            **ENDS,
        },
    ),
    Row("Llama", "LlamaConfig", "chat language prefer classify embed tag summarize", CAUSAL),
    Row("Mistral", "MistralConfig", "chat prefer", CAUSAL),
    Row("Qwen2", "Qwen2Config", "chat embed", CAUSAL),
    Row("Qwen3", "Qwen3Config", "chat prefer classify", CAUSAL),
    Row("Gemma", "GemmaConfig", "chat", CAUSAL),
    Row("Gemma 2", "Gemma2Config", "language", CAUSAL),
    Row("Gemma 3", "Gemma3TextConfig", "chat", CAUSAL),
    Row("Phi", "PhiConfig", "language", CAUSAL),
    Row("Phi-3", "Phi3Config", "chat", CAUSAL),
    Row(
        "Falcon",
        "FalconConfig",
        "chat classify",
        {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, **ENDS},
    ),
    Row(
        "BLOOM",
        "BloomConfig",
        "language classify",
        {"vocab_size": WORDS, "hidden_size": 16, "n_layer": 2, "n_head": 2, **ENDS},
    ),
    Row(
        "MPT",
        "MptConfig",
        "chat",
        {
            "vocab_size": WORDS,
            "d_model": 16,
            "n_heads": 2,
            "n_layers": 2,
            "max_seq_len": LENGTH,
            "expansion_ratio": 1,
            **ENDS,
        },
    ),
    Row("StableLM", "StableLmConfig", "chat", CAUSAL),
    Row("LFM2", "Lfm2Config", "chat", CAUSAL),
    Row(
        "Qwen3-Next",
        "Qwen3NextConfig",
        "chat",
        {
            **EXPERTS,
            **{"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
            **{f"linear_{part}": 2 for part in ("num_key_heads", "num_value_heads")},
            **{f"linear_{part}_head_dim": 8 for part in ("key", "value")},
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
    Row("Mamba", "MambaConfig", "chat language classify", STATES),
    Row("Mamba 2", "Mamba2Config", "language", {**STATES, "num_heads": 4, "head_dim": 8, "n_groups": 1}),
    Row("Mixtral", "MixtralConfig", "chat language", {**EXPERTS, "num_local_experts": 4}),
    Row("OLMoE", "OlmoeConfig", "chat", {**EXPERTS, "num_experts": 4}),
    Row("Qwen3-MoE", "Qwen3MoeConfig", "prefer", {**EXPERTS, "num_experts": 4, "moe_intermediate_size": 16}),
    Row("T5", "T5Config", "summarize translate classify embed chat", T5),
    Row("mT5", "MT5Config", "translate", T5),
    Row("LongT5", "LongT5Config", "summarize", {**T5, "local_radius": 4}),
    Row(
        "Switch Transformers",
        "SwitchTransformersConfig",
        "summarize",
        {
            **T5,
            "num_sparse_encoder_layers": 1,
            "num_sparse_decoder_layers": 1,
            "num_decoder_layers": 2,
            "num_experts": 2,
        },
    ),
    Row("BART", "BartConfig", "summarize translate classify answer chat", BOTH),
    Row("mBART", "MBartConfig", "translate", BOTH),
    Row("Marian", "MarianConfig", "summarize translate", BOTH),
    Row("Pegasus", "PegasusConfig", "summarize translate", BOTH),
    Row(
        "LED",
        "LEDConfig",
        "summarize",
        {
            **BOTH,
            "attention_window": 8,
            "max_encoder_position_embeddings": LENGTH,
            "max_decoder_position_embeddings": LENGTH,
        },
    ),
    Row("M2M100 (NLLB)", "M2M100Config", "translate", {**BOTH, "encoder_layerdrop": 0.5, "decoder_layerdrop": 0.5}),
    Row("Blenderbot", "BlenderbotConfig", "summarize", BOTH),
    Row(
        "ProphetNet",
        "ProphetNetConfig",
        "summarize",
        {
            "vocab_size": WORDS,
            "hidden_size": 16,
            "encoder_ffn_dim": 16,
            "decoder_ffn_dim": 16,
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
            "num_encoder_attention_heads": 2,
            "num_decoder_attention_heads": 2,
            "max_position_embeddings": LENGTH,
            **BEGINS,
        },
    ),
    Row("ViT", "ViTConfig", SEEING, IMAGES),
    Row("DeiT", "DeiTConfig", SEEING, IMAGES),
    Row("Swin", "SwinConfig", SEEING, {**WINDOWS, "patch_size": 4}),
    Row("Swin v2", "Swinv2Config", SEEING, {**WINDOWS, "patch_size": 4}),
    Row("ConvNeXt", "ConvNextConfig", SEEING, STAGES),
    Row("ConvNeXt V2", "ConvNextV2Config", SEEING, STAGES),
    Row(
        "ResNet",
        "ResNetConfig",
        SEEING,
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
    ),
    Row("BEiT", "BeitConfig", SEEING, {**IMAGES, "use_mask_token": True}),
    Row("DINOv2", "Dinov2Config", SEEING, IMAGES),
    Row("DINOv2 with registers", "Dinov2WithRegistersConfig", SEEING, IMAGES),
    Row("SigLIP", "SiglipConfig", SEEING, {"vision_config": IMAGES, "text_config": TEXT}),
    Row("CLIP", "CLIPConfig", f"{SEEING} embed", {"vision_config": IMAGES, "text_config": TEXT, "projection_dim": 16}),
    Row("MobileNetV2", "MobileNetV2Config", SEEING, {"image_size": SIDE, "depth_multiplier": 0.25}),
    Row(
        "EfficientNet",
        "EfficientNetConfig",
        SEEING,
        {"image_size": SIDE, "width_coefficient": 0.1, "depth_coefficient": 0.1, "hidden_dim": 128},
    ),
    Row(
        "MobileViT",
        "MobileViTConfig",
        SEEING,
        {
            "image_size": SIDE,
            "hidden_sizes": [8, 12, 16],
            "neck_hidden_sizes": [8, 8, 8, 8, 8, 8, 8],
            "num_attention_heads": 2,
        },
    ),
    Row("PVT", "PvtConfig", SEEING, {**FOUR, "image_size": SIDE}),
    Row("SegFormer", "SegformerConfig", SEEING, {**FOUR, "image_size": SIDE}),
    Row("ImageGPT", "ImageGPTConfig", SEEING, {**GPT, "vocab_size": 33, "n_positions": 64}),
]

# As such a folder is found on the hub: with the head that it was trained with before.
ENCODERS = ("AutoModelForMaskedLM", "AutoModelForSeq2SeqLM", "AutoModelForCausalLM", "AutoModel")
SAVED_AS = {
    "embed": ("AutoModel",),
    "chat": ("AutoModelForSeq2SeqLM", "AutoModelForCausalLM"),
    "prefer": ("AutoModelForCausalLM",),
    "summarize": ("AutoModelForSeq2SeqLM", "AutoModelForCausalLM"),
    "translate": ("AutoModelForSeq2SeqLM",),
    "classify_images": ("AutoModelForImageClassification",),
}
LIMITS = {
    "batch norm": "batch norm: its statistics are those of each micro-batch",
    "padding": "what it makes of a text depends on the padding beside it",
    "experts": "mixture of experts: the loss that would balance them is left out",
    "capacity": "its experts take so many tokens and leave the others",
    "layer drop": "the model leaves out layers at random, which is switched off",
}
"""What the plan says of such a model, by the name of the line, and in the page."""
DIFFERENT = ("batch norm", "padding", "capacity")
"""Those with which numbers differ between topologies."""


@dataclass(frozen=True)
class Job:
    """A recipe, with the flags of one step on a model."""

    name: str
    """Of the architecture."""
    recipe: str
    flags: list[str]


@dataclass(frozen=True)
class Outcome:
    """What became of a job."""

    said: str
    """"trained", or why it was refused."""
    unused: tuple[str, ...] = ()
    """The parts of the model that were frozen because the task leaves them unused."""
    numbers: tuple[float, ...] = ()
    """Loss and gradient norm of the step, and what the evaluation gave."""
    limits: tuple[str, ...] = ()
    """The lines of the plan on what limits the numbers, by their names."""


def jobs(folder: Path, rows: Iterable[Row] = tuple(ROWS)) -> Iterator[Job]:
    """Save every model, and yield what is to be done with it."""
    data: dict[str, list[str]] = {}
    for row in rows:
        for recipe in row.recipes.split():
            place = folder / f"{row.config}-{recipe}"
            save(row, recipe, place)
            if recipe not in data:
                data[recipe] = small_arguments(recipe, folder / recipe)
            own = ("--model.name", str(place), "--model.dtype", "float32", "--steps", "1", "--evaluate.every", "1")
            run = ("--threads", "1", "--output", str(folder / "run"))
            more = {"language": ("--objective", "auto"), "classify_images": ("--data.size", str(SIDE))}
            flags = changed(data[recipe], *own, *run, *more.get(recipe, ()))
            # Numbers are compared.
            yield Job(row.name, recipe, changed(flags, "--model.dropout", "0" if has_dropout(row) else "null"))


def save(row: Row, recipe: str, folder: Path) -> None:
    """Save a model with new weights, as it could be found on the hub."""
    import torch
    import transformers

    settings = getattr(transformers, row.config)(**row.sizes)
    for auto in SAVED_AS.get(recipe, ENCODERS):
        kinds = getattr(transformers, auto)._model_mapping
        if type(settings) in kinds:
            kind = kinds[type(settings)]
            break
    torch.manual_seed(0)
    (kind[0] if isinstance(kind, tuple) else kind)(settings).save_pretrained(folder)
    if recipe != "classify_images":
        # XLNet reads a text by its last token.
        tokenizer(recipe, "left" if row.name == "XLNet" else "right").save_pretrained(folder)
        return
    size, half = {"height": SIDE, "width": SIDE}, [0.5, 0.5, 0.5]
    processor = {"image_processor_type": "ViTImageProcessor", "size": size, "image_mean": half, "image_std": half}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor), encoding="utf-8")


def has_dropout(row: Row) -> bool:
    """Return whether a configuration names a dropout."""
    import transformers

    from toolkit.errors import UserError
    from toolkit.models.changes import set_dropout

    try:
        set_dropout(getattr(transformers, row.config)(**row.sizes), 0.0)
    except UserError:
        return False
    return True


def tokenizer(recipe: str, padding_side: str) -> Any:
    """Return a byte-level tokenizer without any merges; pairs are framed as RoBERTa's are."""
    from small_chat import CHATML
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "mask_token": "<mask>"}
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=recipe == "tag")
    backend.decoder = decoders.ByteLevel()
    names = [*special.values(), "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        [], trainers.BpeTrainer(special_tokens=names, initial_alphabet=alphabet, show_progress=False)
    )
    if recipe not in ("chat", "prefer"):
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
        )
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=LENGTH - 4,
        padding_side=padding_side,
        cls_token="<s>",
        sep_token="</s>",
        **special,
    )
    made.chat_template = CHATML
    return made


def walk(todo: Iterable[Job]) -> dict[str, Outcome]:
    """Carry out all jobs in this process, together with those that it was started with."""
    from toolkit.distributed.start_runtime import start_runtime
    from toolkit.errors import UserError

    found: dict[str, Outcome] = {}
    runtime: Any = None
    for job in todo:
        recipe = load_recipe(job.recipe)
        config = parsed(recipe, job)
        runtime = runtime or start_runtime(config)
        try:
            found[f"{job.name} {job.recipe}"] = carry_out(recipe, config, runtime)
        except UserError as error:
            model = str(config.model.name)
            found[f"{job.name} {job.recipe}"] = Outcome("; ".join(error.problems).replace(model, "<model>"))
        runtime.accelerator.free_memory()
        gc.freeze()
    if runtime is not None and runtime.size > 1:
        runtime.close()
    return found


def parsed(recipe: Any, job: Job) -> Any:
    """Return the settings of a job."""
    from toolkit.config.parser import parse

    return parse(config_class(recipe), "", job.flags)


def carry_out(recipe: Any, config: Any, runtime: Any) -> Outcome:
    """Train one step, evaluate, save, and read back what was saved."""
    from toolkit.loop import train
    from toolkit.prepare import prepare, whole_model
    from toolkit.printed_plan import parts_of, plan
    from toolkit.rehearsal.end_of_run import RunFacts, results_for_export

    task = runtime.together(lambda: recipe.task(config))
    training = prepare(task, config, runtime)
    summary = plan(training)
    training.output.rows = []
    last = train(training)
    row = training.output.rows[-1]
    numbers = (row.loss, row.gradient_norm, *last.metrics.values())
    module = whole_model(training)
    if runtime.is_main:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place, "model")
            folder.mkdir()
            task.export(module, folder, results_for_export(task, config, RunFacts(last, 1)))
            read_back(folder)
    parts = parts_of(module, training.unused) if runtime.is_main else ()
    return Outcome("trained", tuple(parts), numbers, tuple(name for name in LIMITS if name in summary))


def read_back(folder: Path) -> None:
    """Load what was saved with the class that it names."""
    import transformers

    (kind,) = transformers.AutoConfig.from_pretrained(folder).architectures
    _, info = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"], info["missing_keys"]
    assert not info["mismatched_keys"], info["mismatched_keys"]


def page(found: Mapping[str, Outcome]) -> str:
    """Return docs/models.md."""
    lines = []
    for row in ROWS:
        together: dict[Outcome, list[str]] = {}
        for recipe in row.recipes.split():
            outcome = found[f"{row.name} {recipe}"]
            together.setdefault(replace(outcome, numbers=()), []).append(f"`{recipe}`")
        for outcome, recipes in together.items():
            told = outcome.said if outcome.said == "trained" else f"refused: {outcome.said}"
            unused = (
                f"; frozen, since unused: {', '.join(f'`{part}`' for part in outcome.unused)}" if outcome.unused else ""
            )
            limits = "".join(f"; {LIMITS[name]}" for name in outcome.limits)
            lines.append(f"| {row.name} | {', '.join(recipes)} | {told}{unused}{limits} |")
    trained, refused = (sum((o.said == "trained") == wanted for o in found.values()) for wanted in (True, False))
    return PAGE.format(pairs=len(found), kinds=len(ROWS), trained=trained, refused=refused, lines="\n".join(lines))


PAGE = """# Which models train

The recipes take models of Transformers as they are found: a folder that `save_pretrained` wrote, or a hub id. This page
is printed by a program that tries it:

```bash
python tests/helpers/model_table.py > docs/models.md
```

{pairs} pairs of {kinds} architectures and the ten recipes. Each model is tiny, with new weights, and is saved and read
back as a user's folder; then the recipe trains it for one step, evaluates it, saves it, and the saved folder is loaded
again. {trained} of the pairs train, {refused} are refused before anything is trained, by the sentence here.
`python -m pytest tests/models/test_model_table.py` holds it, and runs the same pairs on two processes: with the loss,
gradient norm and metrics of one, to rounding, unless the page says what they depend on. An architecture that does not
stand here may train as well; none is named anywhere else in this documentation.

**Unused.** A task may leave a part of a model without a gradient: a pooler, the token that stands for a mask, a
table of positions that is computed and not learnt. Such parameters are frozen before the first step, in all
processes alike, and named in the plan (`frozen`). What somebody must have meant to train is refused instead:
parameters of a network of your own, a head, some layers of a stack, or more than half of a model.

| architecture | recipe | what becomes of it |
| --- | --- | --- |
{lines}
"""


def main(arguments: Sequence[str]) -> None:
    """Walk through the jobs in a file, as one of several processes, and write what became of them; or print a page."""
    if arguments:
        todo, output = map(Path, arguments)
        found = walk(Job(**job) for job in json.loads(todo.read_text(encoding="utf-8")))
        if os.environ.get("RANK", "0") == "0":
            output.write_text(json.dumps({name: asdict(outcome) for name, outcome in found.items()}), encoding="utf-8")
        return
    with tempfile.TemporaryDirectory() as folder:
        cache = {"HF_HOME": "hub", "FINETUNE_TOOLKIT_CACHE": "cache"}
        os.environ |= {"HF_HUB_OFFLINE": "1", **{name: str(Path(folder, place)) for name, place in cache.items()}}
        print(page(walk(jobs(Path(folder, "models")))), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
