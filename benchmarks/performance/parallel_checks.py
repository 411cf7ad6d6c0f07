"""What torch really allocates and sends on a CPU, for the formulas of `parallel_costs.py`, with a small Llama.

Each function returns figures by name. Those of several processes are what process 0 saw; all run over gloo.
"""

import json
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from toolkit.config.schema import Config
from toolkit.distributed.tensor_parallel import split_layers
from toolkit.distributed.zero_launch import Zero, engine_settings

Figures = dict[str, float]
PROCESSES = 2
BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def small(**sizes: int) -> LlamaForCausalLM:
    """Return a Llama with new weights, in float32."""
    torch.manual_seed(0)
    shape = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "vocab_size": 512} | sizes
    return LlamaForCausalLM(LlamaConfig(**shape, num_attention_heads=4, use_cache=False, attn_implementation="sdpa"))


def backward(model: torch.nn.Module) -> None:
    """Run one small batch forward and backward."""
    ids = torch.arange(32).reshape(2, 16) % 64
    model(ids, labels=ids).loss.backward()


def whole(model: torch.nn.Module) -> int:
    """Return the number of parameters, parts in other processes included."""
    return sum(parameter.numel() for parameter in model.parameters())


def allocated(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes that these tensors have allocated in this process; what they share counts once."""
    storages = [local_of(tensor).untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this process holds of a tensor."""
    local: torch.Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local


def state_of(model: torch.nn.Module) -> Figures:
    """Return the bytes per parameter of weights, gradients and AdamW's state, after a step."""
    # A group for each kind: fused AdamW refuses tensors beside parts of tensors.
    split, plain = [], []
    for parameter in model.parameters():
        (split if isinstance(parameter, DTensor) else plain).append(parameter)
    optimizer = torch.optim.AdamW([{"params": group} for group in (split, plain) if group], fused=True)
    backward(model)
    optimizer.step()
    parts = {
        "weights": model.parameters(),
        "gradients": [p.grad for p in model.parameters() if p.grad is not None],
        "optimizer": [value for state in optimizer.state.values() for value in state.values()],
    }
    return {name: allocated(tensors) / whole(model) for name, tensors in parts.items()}


def one_process() -> Figures:
    """Return what one process holds per parameter."""
    return state_of(small())


def kept(model: LlamaForCausalLM, tokens: int, bf16: bool) -> tuple[float, float]:
    """Return the bytes that are kept for the backward pass, and those of the weights' bf16 copies among them."""
    weights = {tensor.untyped_storage().data_ptr() for tensor in map(local_of, model.parameters())}
    shapes = {frozenset(parameter.shape) for parameter in model.model.layers.parameters() if parameter.dim() == 2}
    activations: dict[int, int] = {}
    copies: dict[int, int] = {}
    alive = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        alive.append(tensor)
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kind = copies if tensor.dim() == 2 and frozenset(tensor.shape) in shapes else activations
            kind[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids = torch.zeros((2, tokens // 2), dtype=torch.long)
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16),
    ):
        model(ids)
    return sum(activations.values()), sum(copies.values())


def layer_keeps(bf16: bool, checkpointed: bool, shard: bool = False) -> float:
    """Return the bytes that one more layer keeps per token."""
    found = []
    for layers in (2, 4):
        model = small(num_hidden_layers=layers).train()
        if checkpointed:
            model.activation_checkpointing_enable()
        if shard:
            model = sharded(model, BF16)
        found.append(kept(model, 512, bf16)[0])
    return (found[1] - found[0]) / 2 / 512


def copy_of_weights() -> float:
    """Return the bytes per parameter of the linear layers that autocast's copies of them take."""
    model = small().train()
    linear = sum(p.numel() for p in model.model.layers.parameters() if p.dim() == 2)
    return kept(model, 512, bf16=True)[1] / linear


def loss_peak() -> float:
    """Return the bytes per token and word of the vocabulary that logits and loss take at most, forward and backward."""
    tokens, vocabulary = 256, 8192
    head, hidden = torch.nn.Linear(32, vocabulary, bias=False), torch.randn(tokens, 32)
    labels = torch.randint(vocabulary, (tokens,))

    def loss() -> torch.Tensor:
        # As in a recipe, the logits are let go when their loss is known.
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = head(hidden).float()
        return torch.nn.functional.cross_entropy(logits, labels, reduction="sum")

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        loss().backward()
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak / tokens / vocabulary


def data_parallel() -> Figures:
    """Return what DDP holds and sends, on two processes: as torch does by itself, and with gradients as views."""
    apart = held_and_sent(DistributedDataParallel(small()))
    together = held_and_sent(DistributedDataParallel(small(), gradient_as_bucket_view=True))
    return {**together, "gradients and buckets, apart": apart["gradients and buckets"]}


def held_and_sent(model: DistributedDataParallel) -> Figures:
    """Return the bytes per parameter that DDP holds, and what it adds up in a step of two micro-batches."""
    gradient_bytes = 0
    buckets: list[torch.Tensor] = []

    def count(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        nonlocal gradient_bytes
        buffer = bucket.buffer()
        gradient_bytes += buffer.nbytes
        buckets.append(buffer)
        return dist.all_reduce(buffer, async_op=True).get_future().then(lambda sum_: sum_.value()[0] / PROCESSES)

    model.register_comm_hook(None, count)
    with model.no_sync():
        backward(model)
    figures = state_of(model)
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    both = allocated([*gradients, *buckets]) / whole(model)
    return {**figures, "gradients and buckets": both, "reduced": gradient_bytes / whole(model)}


def sharded(model: LlamaForCausalLM, policy: MixedPrecisionPolicy, reshard: bool = True) -> LlamaForCausalLM:
    """Shard a model over both processes in Accelerate's units: layers, embedding, norm and head, the rest."""
    mesh = init_device_mesh("cpu", (PROCESSES,))
    for part in (*model.model.layers, model.model.embed_tokens):
        fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard([model.model.norm, model.lm_head], mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


# The names of the two collectives that FSDP2 calls, in torch 2.13 and before.
GATHERS = ("all_gather_single", "all_gather_into_tensor")
REDUCES = ("reduce_scatter_single", "reduce_scatter_tensor")


@contextmanager
def counted_sharding() -> Iterator[Figures]:
    """Count the bytes of all-gathers (their result) and of reduce-scatters (what they are given)."""
    found = {"gathered": 0.0, "reduced": 0.0}

    def counting(collective: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def called(*tensors: torch.Tensor, **others: Any) -> Any:
            named = [value for value in others.values() if isinstance(value, torch.Tensor)]
            found[kind] += max(tensor.nbytes for tensor in (*tensors, *named) if isinstance(tensor, torch.Tensor))
            return collective(*tensors, **others)

        return called

    own = {name: getattr(dist, name) for name in (*GATHERS, *REDUCES) if hasattr(dist, name)}
    for name, collective in own.items():
        setattr(dist, name, counting(collective, "gathered" if name in GATHERS else "reduced"))
    try:
        yield found
    finally:
        for name, collective in own.items():
            setattr(dist, name, collective)


def holds_whole(unit: Any) -> bool:
    """Return whether a layer's weights are gathered, or on their way."""
    # A storage of no bytes is one that has been given back.
    outputs = [output for parameter in unit.fsdp_params for output in parameter.all_gather_outputs]
    return unit._all_gather_result is not None or any(output.untyped_storage().nbytes() for output in outputs)


def fully_sharded() -> Figures:
    """Return what FSDP2 holds and sends on two processes, under bf16 with float32 reduction."""
    figures = state_of(sharded(small(), BF16))
    model = sharded(small(), BF16)
    size = whole(model)
    units = [part._get_fsdp_state()._fsdp_param_group for part in model.model.layers]
    most = 0

    def look(*_: object) -> None:
        nonlocal most
        most = max(most, sum(holds_whole(unit) for unit in units))

    for layer in model.model.layers:
        layer.self_attn.register_forward_hook(look)
        layer.self_attn.register_full_backward_hook(look)
    model.set_requires_gradient_sync(False)
    with counted_sharding() as first:
        backward(model)
    groups = [state._fsdp_param_group for state in model._get_fsdp_state()._state_ctx.all_states]
    waiting = [p.unsharded_accumulated_grad for group in groups if group for p in group.fsdp_params]
    figures["waiting"] = allocated(gradient for gradient in waiting if gradient is not None) / size
    model.set_requires_gradient_sync(True)
    with counted_sharding() as last:
        backward(model)
    figures |= {"layers at once": most, "gathered, first micro-batch": first["gathered"] / size}
    figures |= {
        "reduced, first micro-batch": first["reduced"] / size,
        "reduced, last micro-batch": last["reduced"] / size,
    }
    with counted_sharding() as kept_whole:
        backward(sharded(small(), BF16, reshard=False))
    for name, checkpointed in (("a layer keeps", False), ("a checkpointed layer keeps", True)):
        figures[name] = layer_keeps(bf16=True, checkpointed=checkpointed, shard=True)
    return {**figures, "gathered without resharding": kept_whole["gathered"] / size}


def zero(stage: int, bf16: bool) -> Figures:
    """Return what DeepSpeed holds under a stage of ZeRO on two processes, in bytes per parameter, as the toolkit sets
    it up."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    import deepspeed

    model = small()
    size = whole(model)
    settings = engine_settings(Zero(stage, precision="bf16" if bf16 else "no"), Config(), PROCESSES, on_cpu=True)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with redirect_stdout(sys.stderr):  # it tells of its operators
        engine = deepspeed.initialize(model=model, optimizer=optimizer, config=settings, dist_init_required=False)[0]
    inner, ids = engine.optimizer, torch.arange(32).reshape(2, 16) % 64
    figures: Figures = {}
    # In the second step AdamW has its averages.
    for _ in range(2):
        for last in (False, True):
            engine.set_gradient_accumulation_boundary(is_boundary=last)
            engine.backward(engine(ids, labels=ids).loss)
            if not last:
                waiting = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
                figures["whole gradients that wait after the first of 2"] = allocated(waiting) / size
        gradients = [inner.grad_partitions_flat_buffer] if stage == 3 else [*inner.averaged_gradients.values()]
        held = [part for parts in gradients for part in (parts if isinstance(parts, list) else [parts])]
        figures["gradients after the last of 2 micro-batches"] = allocated(held) / size
        engine.step()
    rows = inner.fp32_partitioned_groups_flat if stage == 3 else inner.single_partition_of_fp32_groups
    averages = [value for state in inner.optimizer.state.values() for value in state.values()]
    figures |= {"master weights": allocated(rows) / size, "AdamW": allocated(averages) / size}
    figures["weights"] = allocated(model.parameters()) / size
    if stage == 3:
        figures["weights gathered, of a small model"] = figures["weights"]
        figures["weights"] = allocated(parameter.ds_tensor for parameter in model.parameters()) / size
        figures["reduce bucket, GB"] = allocated(bucket.buffer for bucket in inner.ipg_buckets.values()) / 1e9
    return figures


class Collectives(TorchDispatchMode):
    """Counts all-reduces, and the bytes of what they add up."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: list[int] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            # What it sends is seen when it has been taken apart.
            return NotImplemented
        if "all_reduce" in str(function):
            self.bytes.append(args[0].nbytes)
        return function(*args, **(kwargs or {}))


def tensor_parallel() -> Figures:
    """Return what a model that is split by its plan holds, and what a layer sends, on two processes, under bf16."""
    mesh = init_device_mesh("cpu", (PROCESSES,), mesh_dim_names=("tp",))
    found: dict[int, tuple[list[int], list[int]]] = {}
    for layers in (2, 3):
        model = small(num_hidden_layers=layers).train()
        split_layers(model, mesh["tp"])
        ids = torch.zeros((2, 16), dtype=torch.long)
        with Collectives() as forward, torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(ids).logits.float().sum()
        with Collectives() as back:
            loss.backward()
        found[layers] = (forward.bytes, back.bytes)
    model = small()
    split_layers(model, mesh["tp"])
    figures = state_of(model)
    numbers = 32 * 128
    for place, name in enumerate(("forward", "backward")):
        figures[f"all-reduces of a layer, {name}"] = len(found[3][place]) - len(found[2][place])
        figures[f"bytes per number, {name}"] = (sum(found[3][place]) - sum(found[2][place])) / numbers
    return figures


def in_processes(check: Callable[[], Figures]) -> Figures:
    """Run a check in two processes and return what process 0 found."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(one_of_several, (folder, check), nprocs=PROCESSES)
        figures: Figures = json.loads((Path(folder) / "figures.json").read_text(encoding="utf-8"))
        return figures


def one_of_several(rank: int, folder: str, check: Callable[[], Figures]) -> None:
    """Be one of the processes of a check."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # Transformers looks here for what it splits over.
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(PROCESSES),
        "LOCAL_WORLD_SIZE": str(PROCESSES),
    }
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=PROCESSES)
    figures = check()
    if rank == 0:
        (Path(folder) / "figures.json").write_text(json.dumps(figures), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()
