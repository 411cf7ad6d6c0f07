"""No step of any recipe makes the host wait for a GPU, or mixes tensors of both: seen on a stand-in for a device.

`standin_device.py` says what that does not see. Everything is walked once, by `device_walk.py` in a process of its own.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from device_walk import MORE, ONCE, OPTIMIZERS, WALKED
from launching import ROOT, python

# Who may make the host wait, in an evaluation alone, and why.
MAY_WAIT = {
    "toolkit/evaluation.py score_batch": "the losses of batches are added up on the host, in float64",
    "toolkit/evaluation_scores.py to_host": "predictions go to the host, where the metrics are",
    "recipes/tag.py predict": "likewise: those of the words alone",
    "toolkit/losses.py class_probabilities": "what a reader sees goes to the host, after the last evaluation",
    "toolkit/losses.py mean_losses": "likewise",
    "toolkit/tasks/sft/replies.py predict": "where each prompt ends decides what is generated from",
    "toolkit/tasks/sft/replies.py generated_replies": "Transformers asks after each token whether all texts have ended",
    "toolkit/tasks/seq2seq/generation.py generated_texts": "likewise",
    "toolkit/evaluation.py generate": "likewise, and whether those of other processes have",
}
# Who of Transformers makes the host wait in a forward pass, whatever it is given; docs/parallelism.md says so too.
FAMILIES_THAT_WAIT = {
    "canine": "transformers/masking_utils.py _ignore_bidirectional_mask_sdpa",
    "falcon": "transformers/models/falcon/modeling_falcon.py _split_heads",
    "lfm2": "transformers/masking_utils.py create_recurrent_attention_mask",
}
LAYOUTS = [f"{name} {shard_map}" for name in WALKED for shard_map in ("whole", *MORE.get(name, ()))]
LAYOUTS += [f"{name} {shard_map}" for name in OPTIMIZERS for shard_map in ("whole", "sharded")]
COPY, VALUE, MASK, MIXED = (
    "a copy that is waited for",
    "a value that the host has to know",
    "a mask as an index",
    "tensors of host and device together",
)
# What the walk has to say where it is as it once was: of what, and where it was asked for.
NOTICED = {
    "norm stacked with the loss": (MIXED, "toolkit/loop.py train_step"),
    "loss of what a mask selects": (MASK, "toolkit/loop.py run_one_by_one"),
    "look at an encoder's mask": (VALUE, "toolkit/losses.py output_of"),
    "look at a causal mask": (VALUE, "toolkit/vocabulary_loss.py run_layers"),
    "pageable batches": ("a copy from pageable memory", "toolkit/distributed/runtime.py to_device"),
    "order sent by a copy": (COPY, "toolkit/grad_cache.py gradients_of"),
    "pageable checkpoint": (COPY, "toolkit/checkpoint/staging.py take"),
}
OPERATIONS = {
    "item": VALUE,
    "bool": VALUE,
    "float": VALUE,
    "tolist": COPY,
    "cpu": COPY,
    "nonzero": VALUE,
    "unique": VALUE,
    "masked_select": VALUE,
    "select by a mask": MASK,
    "put by a mask": MASK,
    "repeat_interleave": VALUE,
    "repeat_interleave, size known": None,
    "equal": VALUE,
    "tensor": COPY,
    "to": COPY,
    "to, not waited for": "a copy from pageable memory",
    "to, pinned and not waited for": None,
    "to, pinned": COPY,
    "into pinned memory": None,
    "into pageable memory": "a copy into pageable memory",
    "index by a tensor of the device": None,
    "index by a tensor of the host": "an index on the host",
    "index by numbers": None,
    "add a number": None,
    "add a lone number of the host": None,
    "add a row of the host": MIXED,
    "stack with the host": MIXED,
    "cat with the host": MIXED,
    "made on the device": None,
    "where": None,
    "softmax, loss and gradient": None,
}


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the walk wrote down."""
    folder = tmp_path_factory.mktemp("walk")
    output = folder / "walked.json"
    done = python(
        ROOT / "tests" / "helpers" / "device_walk.py", str(output), str(folder), timeout=400, CUDA_VISIBLE_DEVICES=""
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(Path(output).read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", LAYOUTS)
def test_no_step_waits_and_an_evaluation_only_where_it_may(walked: dict[str, Any], name: str) -> None:
    assert [
        fault for fault in walked["faults"][name] if fault[0] not in (VALUE, COPY) or fault[3] not in MAY_WAIT
    ] == []


def test_whoever_may_wait_does(walked: dict[str, Any]) -> None:
    """Else the list would come to hold what is long mended."""
    assert {own for faults in walked["faults"].values() for *_, own in faults} == set(MAY_WAIT)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_stand_in_computes_what_the_cpu_does(walked: dict[str, Any], name: str) -> None:
    """So it went where a training goes."""
    expected = walked["losses"][f"{name.split()[0]} cpu"]
    assert walked["losses"][name] == pytest.approx(expected, rel=1e-12)
    assert len(set(expected)) == 3


@pytest.mark.parametrize("what", ONCE)
def test_what_was_wrong_once_is_noticed(walked: dict[str, Any], what: str) -> None:
    assert NOTICED[what] in {(fault, own) for fault, _, _, own in walked["once"][what]}


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_stand_in_judges_operations(walked: dict[str, Any], name: str) -> None:
    assert walked["operations"][name] == ([OPERATIONS[name]] if OPERATIONS[name] else [])
    assert walked["operations"].keys() == OPERATIONS.keys()


def test_an_offloaded_model_that_another_process_built_lies_where_torch_wants_it(walked: dict[str, Any]) -> None:
    assert walked["built elsewhere"] == {"parameters": ["cpu"], "buffers": ["standin"]}
    refused = walked["once"]["shards of an offloaded model on the device"]
    assert refused.startswith("FSDP parameters should be materialized on CPU when enabling CPU offloading")


def test_models_of_other_families_wait_only_where_it_is_known(walked: dict[str, Any]) -> None:
    waiting = {name: [FAMILIES_THAT_WAIT[name]] if name in FAMILIES_THAT_WAIT else [] for name in walked["families"]}
    assert walked["families"] == waiting
    assert waiting.keys() > FAMILIES_THAT_WAIT.keys()
