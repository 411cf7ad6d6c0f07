"""What each way to spread a model costs, as formulas: bytes of memory per GPU and bytes that are sent.

`parallel_memory.py` checks them against what torch really allocates and sends, and prints the tables of
docs/parallelism.md; the head comments of accelerate_configs/ hold the same figures, and a test compares both. A GB is
10^9 bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass

from toolkit.models.spread import balanced

GB = 1e9
WEIGHT, GRADIENT, ADAMW = 4, 4, 8
"""Bytes per parameter: what is trained is kept in float32, also under bf16, and AdamW keeps two float32 averages."""
STATE = WEIGHT + GRADIENT + ADAMW
HALF, FULL = 2, 4
"""Bytes of a bf16 and of a float32 number."""


@dataclass(frozen=True)
class Shape:
    """A decoder of the Llama family; the number of parameters is the round one that its name says."""

    parameters: float
    hidden: int
    mlp: int
    layers: int
    key_value: int
    vocabulary: int = 32_000

    @property
    def layer(self) -> int:
        """Parameters of one layer: what FSDP2 gathers at once."""
        return 2 * self.hidden * (self.hidden + self.key_value) + 3 * self.hidden * self.mlp

    @property
    def head(self) -> int:
        """Parameters of the output head."""
        return self.vocabulary * self.hidden


SHAPES = {
    "125M": Shape(125e6, 768, 2048, 12, 768),
    "1B": Shape(1e9, 2048, 5632, 22, 256),
    "7B": Shape(7e9, 4096, 11008, 32, 4096),
    "13B": Shape(13e9, 5120, 13824, 40, 5120),
    "70B": Shape(70e9, 8192, 28672, 80, 1024),
}


def state(shape: Shape, shard: int = 1, tensor: int = 1) -> float:
    """Return the bytes of weights, gradients and AdamW's averages in one process."""
    return STATE * shape.parameters / shard / tensor


def spread_state(shape: Shape, devices: int) -> float:
    """Return the bytes of weights, gradients and AdamW's averages on the fullest GPU of one process.

    Whole layers lie on one GPU, and embedding and head on the first.
    """
    outside = 2 * shape.head
    layer = (shape.parameters - outside) / shape.layers
    places = balanced([round(STATE * layer)] * shape.layers, round(STATE * outside), devices)
    loads = [STATE * layer * places.count(device) for device in range(devices)]
    return max(loads[0] + STATE * outside, *loads[1:])


def spread_sends(shape: Shape, tokens: int) -> float:
    """Return the bytes per micro-batch and GPU of layers that are spread: float32 hidden states on to the next GPU,
    and their gradients back to the one before."""
    return 2 * FULL * tokens * shape.hidden


def working_copy(shape: Shape, tensor: int = 1) -> float:
    """Return the bytes of the bf16 weights that autocast keeps from the forward to the end of the backward pass."""
    return HALF * shape.parameters / tensor


def gathered(shape: Shape, weight: int = HALF, tensor: int = 1) -> float:
    """Return the bytes that FSDP2 holds whole for a moment, at the place where it is most.

    In the middle of the backward pass: two layers (one in use, the next one on its way), the gradients of one in the
    type of the pass, and their float32 copy that is reduced. At its start: the head with its gradients, and one layer.
    """
    middle = 2 * weight * shape.layer + (weight + FULL) * shape.layer
    start = (2 * weight + FULL) * shape.head + weight * shape.layer
    return max(middle, start) / tensor


def waiting(shape: Shape, tensor: int = 1) -> float:
    """Return the bytes of the whole float32 gradients that wait in each process if a step has several micro-batches."""
    return FULL * shape.parameters / tensor


MASTER = 4
"""Bytes per parameter of the float32 weights that DeepSpeed's ZeRO steps, beside those that the model computes with."""
REDUCE_BUCKET = FULL * 5e8
"""Bytes of the buffer in which ZeRO collects gradients: 500 million float32 numbers, however small the model."""
LIVE = 1e9
"""Weights that ZeRO 3 keeps gathered at most (`stage3_max_live_parameters`); a smaller model stays whole for a step."""


def zero_state(shape: Shape, stage: int, shard: int, weight: int = HALF) -> float:
    """Return the bytes of weights, master weights, gradients and AdamW's averages in one process under ZeRO.

    Stage 1 holds its weights in float32 under bf16 too, as distributed data parallel does.
    """
    weight = FULL if stage == 1 else weight
    cut = MASTER + GRADIENT + ADAMW + (weight if stage == 3 else 0)
    return shape.parameters * (cut / shard + (weight if stage < 3 else 0))


def zero_bucket(shape: Shape) -> float:
    """Return the bytes of ZeRO's reduce bucket, the same for every model."""
    return REDUCE_BUCKET


def zero_gathered(shape: Shape, weight: int = HALF) -> float:
    """Return the bytes of the weights that ZeRO 3 holds whole at most, unless the launch file says another number."""
    return weight * min(shape.parameters, LIVE)


def zero_host(shape: Shape, weight: int = HALF) -> float:
    """Return the bytes that all processes of a machine keep on the host when ZeRO 3 offloads optimizer and weights."""
    return (weight + MASTER + GRADIENT + ADAMW) * shape.parameters


def activations(shape: Shape, tokens: int, checkpointed: bool, tensor: int = 1, sharded: bool = False) -> float:
    """Return the bytes that the layers keep for the backward pass of a micro-batch of so many tokens, under bf16.

    What a layer splits is divided by `tensor`; its input and the two normalisations are whole in each process. Under
    autocast what passes from layer to layer is float32; FSDP2 turns the input of each layer into bf16.
    """
    passed = HALF if sharded else FULL
    whole = (16 if sharded else 26) * shape.hidden
    parts = 8 * shape.mlp + 4 * shape.hidden + 4 * shape.key_value
    layer = whole + parts / tensor
    return tokens * (shape.layers * passed * shape.hidden + layer if checkpointed else shape.layers * layer)


def logits(shape: Shape, tokens: int) -> float:
    """Return the bytes at the loss: float32 logits, their logarithmic softmax and the gradient, for each word."""
    return 12 * tokens * shape.vocabulary


def all_reduce(sent: float, processes: int) -> float:
    """Return the bytes that each process sends when a ring adds up so many bytes."""
    return 2 * (processes - 1) / processes * sent


def gather_or_scatter(whole: float, processes: int) -> float:
    """Return the bytes that each process sends in an all-gather or a reduce-scatter of so many bytes in all."""
    return (processes - 1) / processes * whole


def ddp_sends(shape: Shape, processes: int) -> float:
    """Return the bytes per step and process, whatever the number of micro-batches."""
    return all_reduce(GRADIENT * shape.parameters, processes)


def fsdp2_sends(shape: Shape, shard: int, micro_batches: int = 1, reshard: bool = True, weight: int = HALF) -> float:
    """Return the bytes per step and process: weights in every micro-batch, gradients once per step."""
    gathers = micro_batches * (2 if reshard else 1)
    return gather_or_scatter((gathers * weight + GRADIENT) * shape.parameters, shard)


def zero_sends(shape: Shape, stage: int, shard: int, micro_batches: int = 1, weight: int = HALF) -> float:
    """Return the bytes per step and process under ZeRO, for a model of which stage 3 keeps little gathered.

    Stage 1 adds the gradients up in the last micro-batch, stage 2 in each, both with an all-reduce, although a process
    needs a part of the sum; stage 3 scatters them. After the step stages 1 and 2 gather the weights; stage 3 gathers
    them in the forward and in the backward pass.
    """
    weight = FULL if stage == 1 else weight
    if stage == 3:
        return gather_or_scatter(micro_batches * (2 * weight + GRADIENT) * shape.parameters, shard)
    sums = micro_batches if stage == 2 else 1
    gradients = all_reduce(sums * GRADIENT * shape.parameters, shard)
    return gradients + gather_or_scatter(weight * shape.parameters, shard)


def hybrid_sends_between(shape: Shape, shard: int, replicate: int) -> float:
    """Return the bytes per step and process that go from one copy of the model to another."""
    return all_reduce(GRADIENT * shape.parameters / shard, replicate)


FORWARD_REDUCES, BACKWARD_REDUCES = 2, 5
"""All-reduces of a split layer: after attention and MLP, and one for the input of each of q, k, v, gate and up."""


def tensor_sends(shape: Shape, tensor: int, tokens: int, checkpointed: bool = False) -> float:
    """Return the bytes that the layers send per micro-batch of so many tokens and process, under bf16.

    What is added up in the forward pass is bf16, what is added up in the backward pass float32: the input of a layer
    is.
    """
    forward = HALF * FORWARD_REDUCES * (2 if checkpointed else 1)
    return shape.layers * all_reduce((forward + FULL * BACKWARD_REDUCES) * tokens * shape.hidden, tensor)


def figure(number: float) -> str:
    """Return a number of GB in at most three digits, as the tables write it."""
    giga = number / GB
    if giga >= 99.5:
        return f"{giga:,.0f}"
    return f"{giga:.1f}" if giga >= 9.95 else f"{giga:.2f}"


def lines(rows: dict[str, list[float]]) -> list[str]:
    """Return the table of a launch file: a line for each row, a column for each size of model."""
    width = max(len("GB"), *(len(name) for name in rows))
    head = f"{'GB':{width}}" + "".join(f"{name:>7}" for name in SHAPES)
    return [head, *(f"{name:{width}}" + "".join(f"{figure(n):>7}" for n in row) for name, row in rows.items())]


def each(function: Callable[..., float], **arguments: int) -> list[float]:
    """Return what a function says for every size of model."""
    return [function(shape, **arguments) for shape in SHAPES.values()]


def launch_file_table(file: str) -> list[str]:
    """Return the lines on memory that the head comment of a file of accelerate_configs/ holds."""
    one = {"weights, gradients, AdamW": each(state)}
    copies = {"bf16 copy of the weights": each(working_copy)}
    layers = {"layers gathered, at most": each(gathered)}
    wait = {"more than one micro-batch": each(waiting)}

    def sharded(*sizes: int, tensor: int = 1) -> dict[str, list[float]]:
        return {f"state, {size * tensor} processes": each(state, shard=size, tensor=tensor) for size in sizes}

    full = {"layers gathered, at most": each(gathered, weight=FULL)}
    bucket = {"reduce bucket": each(zero_bucket)}

    def zero(stage: int, *sizes: int, weight: int = HALF) -> dict[str, list[float]]:
        rows = {f"state, {n} processes": each(zero_state, stage=stage, shard=n, weight=weight) for n in sizes}
        if stage == 3:
            rows["weights gathered, at most"] = each(zero_gathered, weight=weight)
        return {**rows, **bucket, **(wait if stage == 1 else {})}

    def zero_offloaded(weight: int = HALF) -> dict[str, list[float]]:
        return {
            "host memory, whole machine": each(zero_host, weight=weight),
            "weights gathered, at most": each(zero_gathered, weight=weight),
            **bucket,
        }

    tables = {
        "cpu": one,
        "cpu_several_nodes": one,
        "one_gpu": {**one, **copies},
        "ddp_one_node": {**one, **copies},
        "ddp_several_nodes": {**one, **copies},
        "fsdp2_one_node": {**sharded(2, 4, 8), **layers, **wait},
        "fsdp2_checkpointing": {**sharded(2, 4, 8), **layers, **wait},
        "fsdp2_hybrid_several_nodes": {"state, 8 GPUs a machine": each(state, shard=8), **layers, **wait},
        "fsdp2_cpu_offload": {
            "host memory, whole machine": each(state),
            "GPU: layers gathered": each(gathered),
            "GPU: several micro-batches": each(waiting),
        },
        "tensor_one_node": {
            **{f"state, {size} GPUs": each(state, tensor=size) for size in (2, 4, 8)},
            "bf16 copy, 8 GPUs": each(working_copy, tensor=8),
        },
        "tensor_and_data_one_node": {
            "state, 8 GPUs as 4 x 2": each(state, shard=4, tensor=2),
            "layers gathered, at most": each(gathered, tensor=2),
            "more than one micro-batch": each(waiting, tensor=2),
        },
        **{f"deepspeed_zero{stage}": zero(stage, 2, 4, 8) for stage in (1, 2, 3)},
        "deepspeed_zero3_offload": zero_offloaded(),
        **{f"cpu_deepspeed_zero{stage}": zero(stage, 2, weight=FULL) for stage in (1, 2, 3)},
        "cpu_deepspeed_zero3_offload": zero_offloaded(FULL),
        "cpu_fsdp2": {**sharded(2), **full, **wait},
        "cpu_fsdp2_hybrid": {"state, shards of 2": each(state, shard=2), **full, **wait},
        "cpu_tensor": {"state, 2 processes": each(state, tensor=2)},
        "cpu_tensor_and_data": {
            "state, 2 x 2 processes": each(state, shard=2, tensor=2),
            "layers gathered, at most": each(gathered, weight=FULL, tensor=2),
            "more than one micro-batch": each(waiting, tensor=2),
        },
    }
    return lines(tables[file])
