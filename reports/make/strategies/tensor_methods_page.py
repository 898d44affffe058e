"""How do the four ways of tensor parallelism compare at equal numbers of GPUs?

``python -m reports.make.strategies.tensor_methods_page reports/tensor-parallel`` writes the page
and its picture: time on two systems, what a GPU sends, and what it holds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from reports.make.strategies.tensor_methods import (
    GRIDS,
    METHODS,
    MethodCost,
    compare_tensor_methods,
)
from simulator.described.job import Job
from simulator.described.load import job_from_document
from simulator.plots import style

Costs = Mapping[str, Sequence[MethodCost]]
"""By name of the system."""

SYSTEMS = ("h100-sxm-80gb", "gb200-nvl72")
"""Eight GPUs per NVLink domain, and all of them in one."""

_COLOR = MappingProxyType(
    dict(
        zip(
            METHODS,
            (style.VERMILLION, style.ORANGE, style.BLUE, style.SKY, style.GREEN),
            strict=True,
        )
    )
)
_GIB, _MS = 1024.0**3, 1e-3
_LEFT_IN, _TOP_IN, _PANEL_IN, _GAP_IN, _WIDTH_IN = 0.85, 0.95, 1.75, 0.5, 8.9

_HEAD = """# Tensor parallelism in one, two, two and a half and three dimensions

Eight layers of a GPT of width 8192 (64 heads, vocabulary 51,200), one microbatch of 16 sequences of
2048 tokens, bf16, no recomputation, all GPUs in one tensor-parallel group. Nothing differs but
`plan.tp_method`. Predicted, not measured.

![time, bytes sent and memory by method](tensor-parallel.png)

- **1D** (Megatron) sends the same activations whatever the number of GPUs, and keeps norms and
  residuals whole; with **sequence** parallelism it keeps 1/p of those, and sends once more what
  backward gathers again.
- **2D** (SUMMA) sends 1/q of activations *and weights* with q x q GPUs: more than 1D on few GPUs,
  and in q small steps instead of one large message.
- **2.5D** (Tesseract) sends 1/d of the activations of 2D, keeps a copy of the weights in each of
  its d squares and adds their gradients up.
- **3D** sends 1/q^2 of everything, on q x q x q GPUs. It gathers inputs and weights again in
  backward (`plan.stack.keeps_gathered: false`), so that what it keeps is 1/p.

GiB sent are the least that each GPU must send on average, however many hops a ring makes of it.
2D, 2.5D and 3D need a microbatch that divides by q, d x q and q x q: here 16 sequences, which 1D
does not need.
"""


def main() -> None:
    """Write the page and the picture next to it."""
    stem = Path(sys.argv[1])
    job = comparison_job()
    costs = {system: compare_tensor_methods(job, system) for system in SYSTEMS}
    style.save(build_tensor_methods_figure(costs), stem.with_suffix(".png"))
    stem.with_suffix(".md").write_text("\n".join(page_lines(costs)) + "\n")


def comparison_job() -> Job:
    """What is trained in every method."""
    document = {
        "model": "gpt-39.1b",
        "cluster": {"profile": SYSTEMS[0], "gpus": 4},
        "batch": {"global": 16, "micro": 16, "seq_len": 2048},
        "plan": {"tp": 4, "zero": 0},
    }
    return job_from_document(document, source="tensor-parallel").replace({"model.layers": 8})


def page_lines(costs: Costs) -> Iterator[str]:
    """The page, line by line."""
    yield _HEAD
    for system, listed in costs.items():
        fastest = (
            min((cost for cost in listed if cost.gpus == gpus), key=lambda cost: cost.step_s)
            for gpus in GRIDS
        )
        named = ", ".join(f"{cost.method} on {cost.gpus}" for cost in fastest)
        yield f"Fastest on {system}: {named} GPUs.\n"
    systems = list(costs)
    heads = "".join(f" {system} ms | of it waiting |" for system in systems)
    yield f"| GPUs | method | grid |{heads} GiB sent | peak GiB |"
    yield "|---:|---|---|" + "---:|" * (2 * len(systems) + 2)
    for same in zip(*costs.values(), strict=True):
        times = "".join(
            f" {each.step_s / _MS:.0f} | {100 * each.exposed_s / each.step_s:.0f} % |"
            for each in same
        )
        one = same[0]
        yield (
            f"| {one.gpus} | {one.method} | {one.grid} |{times} {one.sent_bytes / _GIB:.2f} "
            f"| {one.peak_bytes / _GIB:.1f} |"
        )


def build_tensor_methods_figure(costs: Costs) -> Figure:
    """Bars by number of GPUs and method: a panel per system, bytes, and memory."""
    panels: list[tuple[str, Sequence[MethodCost], Callable[[MethodCost], float]]] = [
        (f"step time on {system} [ms]", listed, lambda cost: cost.step_s / _MS)
        for system, listed in costs.items()
    ]
    (any_system, *_) = costs.values()
    panels += [
        ("sent by each GPU in a step [GiB]", any_system, lambda cost: cost.sent_bytes / _GIB),
        ("peak memory of each GPU [GiB]", any_system, lambda cost: cost.peak_bytes / _GIB),
    ]
    handles = [Patch(color=color, label=method) for method, color in _COLOR.items()]
    height_in = _TOP_IN + len(panels) * (_PANEL_IN + _GAP_IN) + style.legend_height_in(handles)
    figure = style.new_figure(height_in)
    style.add_title(
        figure,
        "Tensor parallelism by method, at equal numbers of GPUs",
        "8 layers of width 8192, 16 sequences of 2048 tokens, one tensor-parallel group",
        left=_LEFT_IN,
    )
    for number, (name, listed, value) in enumerate(panels):
        _draw_panel(figure, number, name, listed, value)
    style.add_legend(figure, handles, left=_LEFT_IN)
    return figure


def _draw_panel(
    figure: Figure,
    number: int,
    name: str,
    costs: Sequence[MethodCost],
    value: Callable[[MethodCost], float],
) -> None:
    top_in = _TOP_IN + number * (_PANEL_IN + _GAP_IN)
    axes = style.add_axes_in(figure, left=_LEFT_IN, top=top_in, width=_WIDTH_IN, height=_PANEL_IN)
    place, ticks = 0.0, []
    for gpus in GRIDS:
        group = [cost for cost in costs if cost.gpus == gpus]
        for cost in group:
            bar = axes.bar(place, value(cost), color=_COLOR[cost.method], width=0.85)
            axes.bar_label(bar, fmt="%.3g", fontsize=style.SMALL_PT, color=style.INK)
            place += 1
        ticks.append((place - (len(group) + 1) / 2, f"{gpus} GPUs"))
        place += 1
    axes.set_xticks(*zip(*ticks, strict=True))
    axes.tick_params(axis="x", length=0)
    axes.set_ylim(0, 1.15 * max(map(value, costs)))
    axes.grid(axis="y", color=style.GRID, linewidth=0.6)
    style.add_heading(axes, name)


if __name__ == "__main__":
    main()
