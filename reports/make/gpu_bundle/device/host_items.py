"""How long does the host take for each operator, wrapper and update of a training loop?

Tensors are so small that the device ends each kernel before the host has queued the next, so the
time of the host is the time of a loop. Each row is a name, how many of its kind one repetition
holds, and seconds per repetition, forward and backward apart; backward is None where there is none.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from reports.make.gpu_bundle.device.memory_items import wait
from reports.make.gpu_bundle.device.network import Layer
from reports.make.gpu_bundle.device.training_runs import Network, TrainingRun

_ROWS, _WIDTH, _HEADS = 16, 64, 4
_IN_A_ROW = 40
_REPETITIONS = 9
_PARAMETERS = 200

Function = Callable[[Tensor], Tensor]
TINY = Network("tiny", 1, _WIDTH, _HEADS, 2, 96, 256)
TINY_GPT = Network("tiny-gpt", 1, _WIDTH, _HEADS, _HEADS, 256, 256, is_llama=False)
TINY_EXPERTS = Network("tiny-experts", 1, _WIDTH, _HEADS, 2, 96, 256, experts=4, top_k=2)


class HostCase(NamedTuple):
    """What is called in a row.

    Attributes:
        name: Of the row.
        make: One callable that takes and returns a tensor (1, rows, width); called for each link
            of the row, so that each has weights of its own.
        autocast: Whether all runs under autocast, its cache emptied after each repetition.
    """

    name: str
    make: Callable[[], Function]
    autocast: bool = False


class _Identity(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class _Wrapped(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        """The same rows, in a module of their own."""
        return rows + 1.0


def _heads(rows: Tensor) -> Tensor:
    return rows.view(*rows.shape[:-1], _HEADS, -1).transpose(1, 2)


def _there_and_back(rows: Tensor) -> Tensor:
    return _heads(rows).transpose(1, 2).flatten(2)


def _attention(rows: Tensor) -> Tensor:
    heads = _heads(rows)
    context = functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    return context.transpose(1, 2).flatten(2)


def _gathered(rows: Tensor) -> Tensor:
    return rows[:, torch.zeros(_ROWS, dtype=torch.long, device=rows.device)]


def _added_at(rows: Tensor) -> Tensor:
    places = torch.zeros(_ROWS, dtype=torch.long, device=rows.device)
    return torch.zeros_like(rows).index_add(1, places, rows)


def _through_float(rows: Tensor) -> Tensor:
    other = torch.bfloat16 if rows.dtype == torch.float32 else torch.float32
    return rows.to(other)


def _again(rows: Tensor, *, reentrant: bool) -> Tensor:
    found: Tensor = checkpoint(lambda x: x + 1.0, rows, use_reentrant=reentrant)
    return found


def _kept_on_host(rows: Tensor) -> Tensor:
    with torch.autograd.graph.save_on_cpu(pin_memory=rows.device.type == "cuda"):
        return functional.silu(rows)


def _llama(network: Network, **options: Any) -> Function:
    return Layer(TrainingRun("tiny", network, _ROWS, **options))


def _checkpointed(network: Network) -> Function:
    layer = _llama(network)
    return lambda rows: checkpoint(layer, rows, use_reentrant=False)


OPERATORS = (
    HostCase("sum", lambda: lambda rows: rows + 1.0),
    HostCase("sum of two", lambda: lambda rows: rows + rows),
    HostCase("product of two", lambda: lambda rows: rows * rows),
    HostCase("silu", lambda: functional.silu),
    HostCase("gelu", lambda: functional.gelu),
    HostCase("softmax", lambda: lambda rows: rows.softmax(-1)),
    HostCase("view and transpose back", lambda: _there_and_back),
    HostCase("halves and back", lambda: lambda rows: torch.cat(rows.chunk(2, -1), -1)),
    HostCase("cast", lambda: _through_float),
    HostCase("dropout", lambda: lambda rows: functional.dropout(rows, 0.1)),
    HostCase("rows by index", lambda: _gathered),
    HostCase("rows added by index", lambda: _added_at),
    HostCase("linear", lambda: nn.Linear(_WIDTH, _WIDTH, bias=False)),
    HostCase("linear with bias", lambda: nn.Linear(_WIDTH, _WIDTH)),
    HostCase("rms norm", lambda: nn.RMSNorm(_WIDTH, eps=1e-5)),
    HostCase("layer norm", lambda: nn.LayerNorm(_WIDTH)),
    HostCase("attention with views", lambda: _attention),
    HostCase("linear under autocast", lambda: nn.Linear(_WIDTH, _WIDTH, bias=False), True),
    HostCase("rms norm under autocast", lambda: nn.RMSNorm(_WIDTH, eps=1e-5), True),
    HostCase("layer norm under autocast", lambda: nn.LayerNorm(_WIDTH), True),
    HostCase("sum in a module", _Wrapped),
    HostCase("autograd function", lambda: _Identity.apply),
    HostCase("sum computed again", lambda: lambda rows: _again(rows, reentrant=False)),
    HostCase("sum computed again, reentrant", lambda: lambda rows: _again(rows, reentrant=True)),
    HostCase("silu kept on the host", lambda: _kept_on_host),
    HostCase("layer of llama", lambda: _llama(TINY)),
    HostCase("layer of llama under autocast", lambda: _llama(TINY), True),
    HostCase("layer of llama computed again", lambda: _checkpointed(TINY)),
    HostCase("layer of gpt", lambda: _llama(TINY_GPT)),
    HostCase("layer of gpt under autocast", lambda: _llama(TINY_GPT), True),
    HostCase("layer of experts", lambda: _llama(TINY_EXPERTS)),
    HostCase("layer of grouped experts", lambda: _llama(TINY_EXPERTS, is_grouped=True)),
)  # fmt: skip


def operators_item(device: torch.device, width: int) -> dict[str, Any]:
    """Operators in a row, forward and backward."""
    del width
    return {"columns": COLUMNS, "rows": [_row(case, device) for case in OPERATORS]}


COLUMNS = ("name", "count", "forward_s", "backward_s")


def _row(case: HostCase, device: torch.device) -> list[Any]:
    try:
        with torch.device(device):
            links = [case.make() for _ in range(_IN_A_ROW)]
        return [case.name, _IN_A_ROW, *_chain_s(links, device, autocast=case.autocast)]
    except Exception as error:  # the next row must be measured whatever this one met
        return [case.name, 0, f"{type(error).__name__}: {error}"[:200], None]


def _chain_s(
    links: Sequence[Function], device: torch.device, *, autocast: bool = False, warm: int = 3
) -> tuple[list[float], list[float]]:
    forward_s: list[float] = []
    backward_s: list[float] = []
    for repetition in range(warm + _REPETITIONS):
        rows = torch.ones(1, _ROWS, _WIDTH, device=device, requires_grad=True)
        for link in links:
            if isinstance(link, nn.Module):
                link.zero_grad()
        wait(device)
        begun = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            found = rows
            for link in links:
                found = link(found)
        middle = time.perf_counter()
        total = found.float().sum()
        wait(device)
        again = time.perf_counter()
        total.backward()  # type: ignore[no-untyped-call]
        ended = time.perf_counter()
        if repetition >= warm:
            forward_s.append(middle - begun)
            backward_s.append(ended - again)
    return forward_s, backward_s


def wrappers_item(device: torch.device, width: int) -> dict[str, Any]:
    """A model of small layers: plain, compiled, and in PyTorch's wrappers of one rank."""
    del width
    with _one_rank(device):
        rows = [_wrapped_row(name, wrap, device) for name, wrap in WRAPPERS.items()]
    return {"columns": COLUMNS, "rows": rows}


def _layers(device: torch.device) -> nn.Sequential:
    with torch.device(device):
        made = [Layer(TrainingRun("tiny", TINY, _ROWS)) for _ in range(_IN_A_ROW)]
    return nn.Sequential(*made)


def _fully_sharded(layers: nn.Sequential) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for layer in layers:
        fully_shard(layer)
    fully_shard(layers)
    return layers


def _fully_sharded_mixed(layers: nn.Sequential) -> nn.Module:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(layers, mp_policy=policy)
    return layers


def _in_units(layers: nn.Sequential) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

    policy = partial(transformer_auto_wrap_policy, transformer_layer_cls={Layer})
    return FullyShardedDataParallel(layers, auto_wrap_policy=policy, use_orig_params=True)


def _in_parallel(layers: nn.Sequential) -> nn.Module:
    return nn.parallel.DistributedDataParallel(layers)


def _compiled(layers: nn.Sequential) -> nn.Module:
    for layer in layers:
        layer.compile(dynamic=False)
    return layers


WRAPPERS: dict[str, Callable[[nn.Sequential], nn.Module]] = {
    "plain": lambda layers: layers,
    "DistributedDataParallel": _in_parallel,
    "fully_shard": _fully_sharded,
    "fully_shard in bf16": _fully_sharded_mixed,
    "FullyShardedDataParallel": _in_units,
    "compiled layers": _compiled,
}


def _wrapped_row(
    name: str, wrap: Callable[[nn.Sequential], nn.Module], device: torch.device
) -> list[Any]:
    try:
        model = wrap(_layers(device))
        return [name, _IN_A_ROW, *_chain_s([model], device)]
    except Exception as error:  # the next row must be measured whatever this one met
        return [name, 0, f"{type(error).__name__}: {error}"[:200], None]


@contextlib.contextmanager
def _one_rank(device: torch.device) -> Iterator[None]:
    from torch import distributed

    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    backend = "nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(backend, rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def updates_item(device: torch.device, width: int) -> dict[str, Any]:
    """Updates, norms and gradients set to none, by how many parameters they pass."""
    del width
    rows: list[list[Any]] = []
    for kernels in ("fused", "foreach", "loop"):
        options: dict[str, Any] = {"fused": False, "foreach": False}
        if kernels != "loop":
            options[kernels] = True
        parameters = _parameters(device)
        optimizer = torch.optim.AdamW(parameters, **options)
        rows.append([f"AdamW {kernels}", _PARAMETERS, _calls_s(optimizer.step, device), None])
    parameters = _parameters(device)
    for foreach in (True, False):
        words = "foreach" if foreach else "loop"

        def clip(foreach: bool = foreach) -> object:
            return nn.utils.clip_grad_norm_(parameters, 1.0, foreach=foreach)

        rows.append([f"norm and clip {words}", _PARAMETERS, _calls_s(clip, device), None])
    optimizer = torch.optim.AdamW(parameters)
    rows.append(["gradients set to none", _PARAMETERS, _calls_s(optimizer.zero_grad, device), None])
    return {"columns": COLUMNS, "rows": rows}


def _parameters(device: torch.device) -> list[nn.Parameter]:
    found = [nn.Parameter(torch.ones(_WIDTH, device=device)) for _ in range(_PARAMETERS)]
    for parameter in found:
        parameter.grad = torch.ones_like(parameter)
    return found


def _calls_s(work: Callable[[], object], device: torch.device) -> list[float]:
    found: list[float] = []
    for repetition in range(3 + _REPETITIONS):
        wait(device)
        begun = time.perf_counter()
        work()
        ended = time.perf_counter()
        if repetition >= 3:
            found.append(ended - begun)
    return found


HOST_ITEMS = {
    "operators": operators_item,
    "wrappers": wrappers_item,
    "updates": updates_item,
}
"""By name; each takes the device and a width that it ignores."""
