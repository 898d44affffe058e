"""Which kernels of a captured step are to be measured, so that its device is known for it?

Each distinct product, attention, norm, softmax, update and copy to the host or from it as a case of
``calibrate gpu``; all other operators that move bytes by a copy that moves as many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from simulator.capture.host_link import is_host_copy
from simulator.capture.kernel_cost import CAUSAL_AT, FORMATS, is_costed
from simulator.capture.table import Call, Capture, Tensor

_COPIED_BYTES = 4
"""Read and written by a copy of a 16-bit element."""
_NORMS: Mapping[str, str] = MappingProxyType(
    {"_fused_rms_norm": "rms_norm", "native_layer_norm": "layernorm"}
)
_SOFTMAX = {"_softmax", "_log_softmax", "_safe_softmax"}
_PRODUCTS = {"mm", "addmm", "linear"}
_BATCHED = {"bmm", "baddbmm"}


Case = TypeVar("Case")
_Fields = dict[str, Any]
"""Fields of a case of ``calibrate gpu`` that are not its defaults."""


class ToMeasure(NamedTuple, Generic[Case]):
    """Kernels of a step.

    Attributes:
        cases: What is measured, the most frequent first.
        left_out: Operators that no case stands for, by name, with how often they run.
    """

    cases: tuple[Case, ...]
    left_out: Mapping[str, int]


def kernels_to_measure(
    capture: Capture, attention: Sequence[str], make: Callable[..., Case]
) -> ToMeasure[Case]:
    """Every distinct kernel of a captured step.

    Args:
        capture: The step.
        attention: Operations that compute attention on the device, the best first.
        make: Makes a case of its fields.
    """
    times: dict[Case, int] = {}
    left_out: dict[str, int] = {}
    for call, count in _counted(capture):
        fields = _case(call, attention)
        if fields is None:
            left_out[call.name] = left_out.get(call.name, 0) + count
        else:
            case = make(**fields)
            times[case] = times.get(case, 0) + count
    ordered = sorted(times, key=lambda case: (-times[case], str(case)))
    return ToMeasure((make(op="host_operator", dtype="", direction=""), *ordered), left_out)


def _counted(capture: Capture) -> Iterator[tuple[Call, int]]:
    for table in capture.tables:
        counts: dict[int, int] = {}
        for number in table.call[table.exchange < 0].tolist():
            counts[number] = counts.get(number, 0) + 1
        yield from ((table.calls[number], count) for number, count in counts.items())


def _case(call: Call, attention: Sequence[str]) -> _Fields | None:
    """The case of an operator; None where there is none."""
    if is_host_copy(call):
        return _copy(call)
    namespace, _, rest = call.name.partition(".")
    name = rest.partition(".")[0]
    if not is_costed(namespace, name):
        return None
    if namespace == "aten" and name.removesuffix("_backward") in CAUSAL_AT:
        return _attention(call, name, attention)
    for names, make in _KINDS:
        if namespace == "aten" and name in names:
            return make(call, name)
    copied = math.ceil((call.read_bytes + call.written_bytes) / _COPIED_BYTES)
    return {"op": "stream_copy", "m": copied} if copied else None


def _copy(call: Call) -> _Fields:
    """Between the device and pinned memory of its host."""
    op = "copy_from_device_pinned" if call.read_bytes else "copy_to_device_pinned"
    return {"op": op, "dtype": "", "m": call.read_bytes + call.written_bytes, "direction": ""}


def _product(call: Call, _: str) -> _Fields:
    left, right = [t for t in call.inputs if len(t.shape) == 2][-2:]
    (m, k), n = left.shape, right.shape[1]
    return {"op": "gemm", "dtype": _format(left, call), "m": m, "n": n, "k": k}


def _batched(call: Call, _: str) -> _Fields:
    """One product of as much work: its batch as more rows."""
    left, right = [t for t in call.inputs if len(t.shape) == 3][-2:]
    batch, m, k = left.shape
    n = right.shape[2]
    return {"op": "gemm", "dtype": _format(left, call), "m": batch * m, "n": n, "k": k}


def _norm(call: Call, name: str) -> _Fields:
    backward = name.endswith("_backward")
    rows, columns = _rows_and_columns(call.inputs[1 if backward else 0])
    operation = _NORMS[name.removesuffix("_backward")]
    direction = "bwd" if backward else "fwd"
    found = {"op": operation, "dtype": _format(call.inputs[0]), "direction": direction}
    return {**found, "m": rows, "n": columns}


def _softmax(call: Call, _: str) -> _Fields:
    rows, columns = _rows_and_columns(call.inputs[0])
    return {"op": "softmax", "dtype": _format(call.inputs[0]), "m": rows, "n": columns}


def _update(call: Call, _: str) -> _Fields:
    """Of parameters, gradients and two moments, four equal lists."""
    elements = sum(math.prod(tensor.shape) for tensor in call.inputs if tensor.shape)
    return {"op": "optimizer_adamw", "dtype": "fp32", "m": max(1, elements // 4)}


def _attention(call: Call, name: str, operations: Sequence[str]) -> _Fields | None:
    backward = name.endswith("_backward")
    query, key = call.inputs[1:3] if backward else call.inputs[:2]
    wanted = "flash" if "flash" in name else "cudnn"
    operation = next((each for each in operations if each.startswith(wanted)), None)
    if operation is None or query.shape[2] != key.shape[2]:
        return None
    place = CAUSAL_AT[name]
    batch, heads, seq, head_dim = query.shape
    return {
        "op": operation,
        "dtype": _format(query),
        "batch": batch,
        "seq": seq,
        "heads": heads,
        "kv_heads": key.shape[1],
        "head_dim": head_dim,
        "causal": place < len(call.settings) and bool(call.settings[place]),
        "direction": "bwd" if backward else "fwd",
    }


def _format(tensor: Tensor, call: Call | None = None) -> str:
    is_tf32 = call is not None and bool(call.settings) and bool(call.settings[0])
    return FORMATS.get(tensor.dtype, "tf32" if is_tf32 else "fp32")


def _rows_and_columns(tensor: Tensor) -> tuple[int, int]:
    return math.prod(tensor.shape[:-1]), tensor.shape[-1] if tensor.shape else 1


_KINDS: tuple[tuple[set[str], Callable[[Call, str], _Fields]], ...] = (
    (_PRODUCTS, _product),
    (_BATCHED, _batched),
    ({*_NORMS, *(f"{name}_backward" for name in _NORMS)}, _norm),
    (_SOFTMAX, _softmax),
    ({"_fused_adamw_", "_fused_adam_"}, _update),
)
