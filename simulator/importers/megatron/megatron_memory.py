"""What leaves the GPU under Megatron-Core's settings, and in which formats is the rest kept?

Megatron-LM's command line, NeMo or Megatron-Bridge spell these the same way. What a plan cannot
say of them (16-bit moments, some layers' activations on the host) is a fault.

Source: Megatron-LM's ``arguments.py``, ``HybridDeviceOptimizer`` and ``TransformerConfig``
(core_r0.12 to 0.16), as facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.importers.settings import Settings, leave_out

_FP32 = ("fp32", "float32", "torch.float32")
_BF16 = ("bf16", "bfloat16", "torch.bfloat16")
_FORMATS: Mapping[str, str] = {**dict.fromkeys(_FP32, "fp32"), **dict.fromkeys(_BF16, "bf16")}
_MOMENTS = ("exp_avg_dtype", "exp_avg_sq_dtype")
_STATES = ("main_params_dtype", *_MOMENTS)
"""Formats of what the optimizer keeps; a plan has fp32 weights, and moments that are both alike."""
_MUON = (
    ("muon_num_ns_steps", (5,), "uses a number of Newton-Schulz steps other than five"),
    ("muon_tp_mode", ("blockwise",), "gathers the parts of tensor-parallel ranks"),
    ("muon_fp32_matmul_prec", ("medium", "low"), "orthogonalises in another format than bf16"),
)
"""Settings of Muon that cost something, and what of them is modelled."""


def offload_fields(settings: Settings, layers: int | None) -> dict[str, Any]:
    """The plan's ``offload``, where anything leaves the GPU; faults go to ``settings``.

    Args:
        settings: What a file says.
        layers: Layers of the model, where the file says them.
    """
    found: dict[str, Any] = {}
    share = settings.number("optimizer_offload_fraction", default=1.0)
    overlaps = settings.switch("overlap_cpu_optimizer_d2h_h2d")
    if settings.switch("optimizer_cpu_offload") and share > 0:
        found["optimizer"] = "cpu"
        found |= {"share": share} if share < 1 else {}
        found |= {} if overlaps else {"overlap": False}
        _check_pinning(settings)
    if number := _offloaded_layers(settings, layers):
        found["activations"] = "cpu"
        if layers is None or number != layers - 1:
            found["activation_layers"] = number
    return {"offload": found} if found else {}


def _check_pinning(settings: Settings) -> None:
    """Note copies that go through memory that is not pinned, which are slower."""
    for what in ("cpu_grads", "cpu_params"):
        is_pinned = settings.switch(f"pin_{what}", default=True)
        if settings.switch(f"no_pin_{what}") or not is_pinned:
            key = f"pin_{what}" if settings.states(f"pin_{what}") else f"no_pin_{what}"
            rule = "is not modelled: copies use pinned memory"
            settings.fault(key, rule, settings.get(key), leave_out(key))


def _offloaded_layers(settings: Settings, layers: int | None) -> int:
    number = settings.whole("cpu_offloading_num_layers", default=0)
    # Some launch lines name only the number of layers.
    is_on = settings.switch("cpu_offloading", default=number > 0)
    is_on = is_on and settings.switch("cpu_offloading_activations", default=True)
    if is_on and layers is not None and number >= layers:
        rule = f"must be below the {layers} layers of the model: the last one stays"
        settings.fault("cpu_offloading_num_layers", rule, number,
                       leave_out("cpu_offloading_num_layers"))  # fmt: skip
    return number if is_on else 0


def keeps_16_bit_gradients(settings: Settings) -> bool:
    """Whether the optimizer works on bf16 gradients without an fp32 copy of them.

    That takes the precision-aware optimizer and ``--main-grads-dtype bf16``; gradients are
    then accumulated and reduced in bf16, too. Formats that a plan cannot say are faults.
    """
    formats = {
        key: settings.choice(key, meanings=_FORMATS, default="fp32")
        for key in ("main_grads_dtype", *_STATES)
    }
    if not settings.switch("use_precision_aware_optimizer"):
        return False
    narrow = {formats[key] for key in _MOMENTS} == {"bf16"}
    for key in _STATES:
        if formats[key] != "fp32" and not (narrow and key in _MOMENTS):
            rule = "is not modelled: a plan keeps weights in fp32, and both moments in fp32 or bf16"
            settings.fault(key, rule, settings.get(key), leave_out(key))
    if formats["main_grads_dtype"] == "fp32":
        return False
    if settings.switch("accumulate_allreduce_grads_in_fp32") or not settings.switch("bf16"):
        rule = "must be fp32 if gradients are not accumulated in bf16"
        settings.fault("main_grads_dtype", rule, settings.get("main_grads_dtype"))
    return True


def moment_format(settings: Settings) -> str | None:
    """Format of the moments, where the precision-aware optimizer narrows both."""
    is_on = settings.switch("use_precision_aware_optimizer")
    formats = {settings.choice(key, meanings=_FORMATS, default="fp32") for key in _MOMENTS}
    return "bf16" if is_on and formats == {"bf16"} else None


def check_muon(settings: Settings) -> None:
    """Note what Muon does otherwise than the simulator."""
    for key, modelled, why in _MUON:
        value = settings.get(key)
        if value is not None and value not in modelled:
            settings.fault(key, f"is not modelled: it {why}", value, leave_out(key))
