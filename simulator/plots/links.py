"""How busy are the links of each class of ranks over the step?

A strip per class and port: the shade is the share of the port's rate that its ranks send, as
the mean of each slice of time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from simulator.plots import style
from simulator.results.step import StepResult
from simulator.results.traffic import LinkLoad, link_loads
from simulator.units import format_rate

_LEFT_IN, _RIGHT_IN, _TOP_IN, _AXIS_IN, _HEAD_IN = 0.85, 0.95, 0.72, 0.5, 0.32
_WIDTH_IN = style.WIDTH_IN - _LEFT_IN - _RIGHT_IN
_PORT_NAMES = {
    "scale_up": "scale-up links",
    "fabric": "network cards",
    "leaf_uplink": "up-links of leaf switches",
    "pod_uplink": "up-links of pods",
}


def build_links_figure(result: StepResult) -> Figure:
    """A panel of strips for each port that anything is sent through."""
    loads = link_loads(result.timeline)
    ports = [port for port in _PORT_NAMES if any(_counts(load, port) for load in loads)]
    rows = len(result.timeline.program.classes)
    row_in = float(np.clip(2.4 / rows, 0.06, 0.28))
    panel_in = _HEAD_IN + row_in * rows + _AXIS_IN
    figure = style.new_figure(_TOP_IN + max(1, len(ports)) * panel_in)
    for place, port in enumerate(ports):
        axes = style.add_axes_in(
            figure,
            left=_LEFT_IN,
            top=_TOP_IN + place * panel_in + _HEAD_IN,
            width=_WIDTH_IN,
            height=row_in * rows,
        )
        _draw_port(figure, axes, result, [load for load in loads if load.port == port], row_in)
    style.add_title(figure, result.title, _subtitle(result, loads, ports), left=_LEFT_IN)
    return figure


def sent_share(load: LinkLoad, step_s: float, slices: int) -> NDArray[np.float64]:
    """Mean share of the port's rate that is sent in each slice of the step, shape (slices,)."""
    edges_s = np.linspace(0.0, step_s, slices + 1)
    moments_s = np.append(load.time_s, max(step_s, float(load.time_s[-1])))
    done_bytes = np.concatenate([[0.0], np.cumsum(load.bytes_per_s * np.diff(moments_s))])
    sent_bytes = np.diff(np.interp(edges_s, moments_s, done_bytes))
    return np.asarray(sent_bytes / (step_s / slices) / load.capacity_bytes_per_s)


def _counts(load: LinkLoad, port: str) -> bool:
    return load.port == port and np.isfinite(load.capacity_bytes_per_s)


def _subtitle(result: StepResult, loads: Sequence[LinkLoad], ports: Sequence[str]) -> str:
    if not ports:
        return "no traffic on any link"
    means = []
    for port in ports:
        shares = [
            float(sent_share(load, result.step_time_s, 1)[0]) for load in loads if load.port == port
        ]
        means.append(f"{_PORT_NAMES[port]} {100 * max(shares):.1f} %")
    return f"busiest rank, mean over the step: {', '.join(means)}"


def _draw_port(
    figure: Figure, axes: Axes, result: StepResult, loads: Sequence[LinkLoad], row_in: float
) -> None:
    classes, step_s = result.timeline.program.classes, result.step_time_s
    shares = np.zeros((len(classes), style.STRIP_SLICES))
    for load in loads:
        shares[load.rank_class] = sent_share(load, step_s, style.STRIP_SLICES)
    rate = format_rate(max(load.capacity_bytes_per_s for load in loads))
    style.add_heading(axes, f"{_PORT_NAMES[loads[0].port]}, sent per rank, of {rate}")
    colors = ["#FFFFFF", "#FFDC8F", style.ORANGE, style.VERMILLION, "#5A1F00"]
    shades = LinearSegmentedColormap.from_list("busy", colors)
    names = [each.name for each in classes]
    scale = style.add_strips(
        figure, axes, shares, step_s, names, shades, row_in=row_in, line=style.GRID
    )
    scale.outline.set_edgecolor(style.GRID)
