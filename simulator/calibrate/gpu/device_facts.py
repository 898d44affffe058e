"""What is the device that is measured, as its driver and torch describe it?"""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from simulator.calibrate.profile_text import SourcedValue
from simulator.errors import InputError
from simulator.processor import processor_name
from simulator.ranks.world import FP8_CAPABILITY
from simulator.units import format_quantity

_FOREIGN_BYTES = 2.0 * 2**30
"""Memory beyond this that is not ours belongs to another process: a driver context takes less."""

_FLASH_3_CAPABILITY = 9
"""From Hopper on, FlashAttention 2 is the older kernel."""

_BF16_CAPABILITY = 8


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """The device as its driver and torch describe it.

    Attributes:
        name: As tables of kernels spell it.
        device: torch's handle.
        formats: Number formats worth measuring, the most important first.
        attention: Operations that compute attention, the fastest first.
        memory_bytes: What torch reports as the total.
        foreign_bytes: Memory that is taken and not in tensors, the driver's own and that of
            libraries included.
        software: Names and versions, in words.
        date: Day, ISO 8601.
    """

    name: str
    device: torch.device
    formats: Sequence[str]
    attention: Sequence[str]
    memory_bytes: int
    foreign_bytes: int
    software: str
    date: str

    @property
    def notes(self) -> list[str]:
        """What a person should know before trusting the figures."""
        if self.device.type == "cuda" and self.foreign_bytes > _FOREIGN_BYTES:
            taken = self.foreign_bytes / 2**30
            return [
                f"another process holds {taken:.1f} GiB of the device: check whether it is shared"
            ]
        return []

    def sourced_values(self, reference: str) -> dict[str, SourcedValue]:
        """What a profile says of the device's memory, by dotted path; nothing of a processor."""
        if self.device.type != "cuda":
            return {}
        values = {"device.memory": self.memory_bytes}
        if not self.notes:
            values["device.context"] = self.foreign_bytes
        return {
            path: SourcedValue(
                format_quantity(size, "bytes"), "measured", f"{reference}: torch.cuda.mem_get_info"
            )
            for path, size in values.items()
        }


def device_facts(name: str | None) -> DeviceFacts:
    """The device of that name ("cuda", "cuda:1", "cpu"); a GPU if there is one by default.

    Raises:
        InputError: There is no such device.
    """
    if name is None or name.startswith("cuda"):
        return _gpu(name or "cuda")
    if name != "cpu":
        raise InputError.single("--device", "must be cuda, cuda:N or cpu", name)
    today = datetime.date.today().isoformat()
    threads = torch.get_num_threads()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return DeviceFacts(
        f"{processor_name()}, {threads} thread{'s' if threads > 1 else ''}",
        torch.device("cpu"),
        ("fp32", "bf16"),
        ("flash_attention (sdpa)",),
        memory,
        0,
        f"torch {torch.__version__}",
        today,
    )


def _gpu(name: str) -> DeviceFacts:
    if not torch.cuda.is_available():
        rule = f"torch {torch.__version__} finds no usable GPU"
        hint = "install a torch for your CUDA or ROCm, or measure the processor: --device cpu"
        raise InputError.single("--device", rule, name, hint)
    device = _indexed(name)
    torch.cuda.set_device(device)
    _load_libraries(device)
    free, total = torch.cuda.mem_get_info(device)
    own = torch.cuda.memory_reserved(device)
    capability = torch.cuda.get_device_capability(device)
    runtime = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return DeviceFacts(
        torch.cuda.get_device_name(device),
        device,
        _formats(capability),
        _attention(capability),
        total,
        total - free - own,
        f"torch {torch.__version__}, {runtime}, cuDNN {cudnn}",
        datetime.date.today().isoformat(),
    )


def _load_libraries(device: torch.device) -> None:
    """Run a product and attention once: what kernels and libraries take stays for good."""
    matrix = torch.ones(256, 256, device=device, dtype=torch.float16)
    heads = (matrix @ matrix).view(1, 4, 256, 64)
    torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    torch.cuda.synchronize(device)


def _indexed(name: str) -> torch.device:
    _, _, index = name.partition(":")
    count = torch.cuda.device_count()
    if (index and not index.isdecimal()) or int(index or 0) >= count:
        raise InputError.single("--device", f"there are {count} GPUs, cuda:0 and up", name)
    return torch.device("cuda", int(index or 0))


def _formats(capability: tuple[int, int]) -> tuple[str, ...]:
    formats = ["bf16"] if capability[0] >= _BF16_CAPABILITY else []
    formats += ["fp8"] if capability >= FP8_CAPABILITY else []
    return (*formats, "fp16", *(["tf32"] if formats else []), "fp32")


def _attention(capability: tuple[int, int]) -> tuple[str, ...]:
    is_new = capability[0] >= _FLASH_3_CAPABILITY
    flash = "flash_attention_2 (sdpa)" if is_new else "flash_attention (sdpa)"
    best = ("cudnn_attention (sdpa)", flash) if is_new else (flash, "cudnn_attention (sdpa)")
    return (*best, "unfused_attention (sdpa math)")
