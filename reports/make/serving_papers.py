"""Writes ``reports/serving_papers.md``: what papers on serving claim, and what is simulated.

Run as ``python -m reports.make.serving_papers reports/serving_papers.md``; pictures go beside the
page, into ``serving/``. Takes a minute or two.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from math import fsum
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simulator.described.load import load_model, load_profile
from simulator.plots import style
from simulator.serving.bearable_rate import largest_rate
from simulator.serving.cluster import Served, serve
from simulator.serving.described import Deployment, PrefillPool
from simulator.serving.engine import Step
from simulator.serving.workload import Arrivals, Lengths, Objective, Workload

_COLORS = (style.BLUE, style.GREEN, "#D98E04", "#B5446E")
_LATENCY_LIMIT_S = 0.2
"""Seconds per token of a request at which a rate counts as borne."""


class Claim(NamedTuple):
    """A paper's number beside ours; ``low`` and ``high`` bound what papers report."""

    what: str
    paper: str
    low: float
    high: float
    ours: float
    unit: str = "x"

    def line(self) -> str:
        """A row of the page's tables."""
        is_within = "yes" if self.low <= self.ours <= self.high else "no"
        return f"| {self.what} | {self.paper} | {self.ours:.3g} {self.unit} | {is_within} |"


class Study(NamedTuple):
    """One figure: a question, what was run, claims, and who draws it."""

    name: str
    title: str
    setting: str
    claims: Sequence[Claim]
    draw: Callable[[Figure], None]
    caption: str


def main(arguments: Sequence[str]) -> int:
    """Writes the page and its pictures."""
    page = Path(arguments[0])
    lines = [
        "# Serving: what papers claim, and what is simulated",
        "",
        "Made by `make serving-report`. *within* says whether the simulated number lies in the "
        "spread that papers report.",
    ]
    for make in (paged_cache, continuous_batches, split_prompts, prompts_apart):
        study = make()
        picture = f"serving/{study.name}.png"
        figure = style.new_figure(3.6)
        study.draw(figure)
        style.save(figure, page.parent / picture)
        lines += ["", f"## {study.title}", "", study.setting, "", f"![{study.title}]({picture})"]
        lines += ["", study.caption, "", "| | papers | simulated | within |", "|---|---|---|---|"]
        lines += [claim.line() for claim in study.claims]
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


def _axes(figure: Figure, count: int) -> list[Axes]:
    width = (style.WIDTH_IN - 0.9 * count - 0.1) / count
    return [
        style.add_axes_in(figure, left=0.75 + k * (width + 0.9), top=0.35, width=width, height=2.55)
        for k in range(count)
    ]


def _curves(
    axes: Axes, curves: dict[str, list[tuple[float, float]]], x: str, y: str, top: float
) -> None:
    for color, (name, points) in zip(_COLORS, curves.items(), strict=False):
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, color=color, label=name)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_xlim(left=0)
    axes.set_ylim(0, top)
    if len(curves) > 1 and axes.get_position().x0 < 0.4:
        axes.legend(fontsize=style.SMALL_PT, frameon=False)


def _bars(axes: Axes, names: Sequence[str], values: Sequence[float], y: str) -> None:
    bars = axes.bar(names, values, color=_COLORS[: len(names)], width=0.6)
    axes.bar_label(bars, fmt="%.3g", fontsize=style.SMALL_PT)
    axes.set_ylabel(y)
    axes.tick_params(axis="x", labelsize=style.SMALL_PT)
    axes.margins(y=0.15)


def _on_one_a100(model: str, profile: str, scheduler: str, **limits: Any) -> Deployment:
    """A model on one A100, as the papers have it."""
    return Deployment(
        model=load_model(model),
        profile=load_profile(profile),
        gpus=1,
        engine="vllm",
        version="0.6.0",
        scheduler=scheduler,
        weights="fp16",
        cache="fp16",
        has_front_end=False,
        **limits,
    )


def _opt(scheduler: str, profile: str = "a100-sxm-40gb") -> Deployment:
    limits = {"max_requests": 256, "max_tokens": 2560, "max_model_tokens": 2048}
    return _on_one_a100("opt-13b", profile, scheduler, **limits)


def _seconds_per_token(served: Served) -> float:
    """Mean of end-to-end time over tokens of the answer: vLLM's normalised latency."""
    each = [r.end_to_end_s / r.output_tokens for r in served.requests]
    return fsum(each) / len(each)


def _borne(points: Sequence[tuple[float, float]]) -> float:
    """Rate at which the latency reaches its limit, between the points."""
    for (rate, latency), (later, worse) in itertools.pairwise(points):
        if worse > _LATENCY_LIMIT_S:
            return rate + (later - rate) * (_LATENCY_LIMIT_S - latency) / (worse - latency)
    return points[-1][0]


_SHAREGPT: dict[str, Any] = {
    "prompt": Lengths(mean=161, variation=1.0, longest=1024),
    "answer": Lengths(mean=338, variation=0.8, longest=1000),
}
"""Means of vLLM's figure 11; spreads are assumed."""


def paged_cache() -> Study:
    """Figures 2 and 12 of vLLM's paper."""
    names = {"orca": "Orca (max)", "orca-pow2": "Orca (pow2)", "orca-oracle": "Orca (oracle)",
             "vllm-v0": "vLLM"}  # fmt: skip
    useful: dict[str, float] = {}
    curves: dict[str, list[tuple[float, float]]] = {}
    for scheduler, name in names.items():
        deployment = _opt(scheduler)
        full = Workload(requests=400, **_SHAREGPT)
        useful[name] = 100.0 * _useful_share(serve(deployment, full, record=True))
        curves[name] = []
        for rate in (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0):
            arrivals = Arrivals(kind="poisson", rate=rate)
            workload = Workload(requests=800, arrivals=arrivals, **_SHAREGPT)
            latency = _seconds_per_token(serve(deployment, workload))
            curves[name].append((rate, latency))
            if latency > 2 * _LATENCY_LIMIT_S:
                break
    borne = {name: _borne(points) for name, points in curves.items()}

    def draw(figure: Figure) -> None:
        left, right = _axes(figure, 2)
        _bars(left, list(useful), list(useful.values()), "reserved cache that holds tokens [%]")
        axes = "requests/s", "latency per token of the answer [s]"
        _curves(right, curves, *axes, top=2 * _LATENCY_LIMIT_S)

    paper = "vLLM, figure 2"
    return Study(
        "paged_cache",
        "Paged against contiguous cache",
        "OPT-13B on one A100 of 40 GB, lengths of ShareGPT, fp16 (Kwon et al., arXiv 2309.06180, "
        "section 6.1). Orca reserves memory for whole answers, vLLM takes blocks of 16 tokens as "
        "it goes; all else is the same.",
        [
            Claim("useful, Orca (max)", f"20.4 % ({paper})", 10, 30, useful["Orca (max)"], "%"),
            Claim("useful, Orca (pow2)", f"26.8 % ({paper})", 20, 40, useful["Orca (pow2)"], "%"),
            Claim("useful, Orca (oracle)", f"38.2 % ({paper})", 30, 50,
                  useful["Orca (oracle)"], "%"),
            Claim("useful, vLLM", f"96.3 % ({paper})", 94, 100, useful["vLLM"], "%"),
            Claim("rate, vLLM over Orca (oracle)", "1.7 to 2.7 (section 6.2)", 1.5, 3,
                  borne["vLLM"] / borne["Orca (oracle)"]),
            Claim("rate, vLLM over Orca (max)", "2.7 to 8 (section 6.2)", 2.7, 8,
                  borne["vLLM"] / borne["Orca (max)"]),
        ],
        draw,
        "Left: share of the reserved cache that holds tokens, while requests wait. Right, "
        "in the same colours: mean time per token of the answer over the rate.",
    )  # fmt: skip


def _useful_share(served: Served) -> float:
    """Tokens over places held, in steps of answers while somebody waits."""
    steps = [s for s in served.steps[0] if s.waiting and not s.prompt_tokens]
    places = served.memory.blocks * served.memory.block_tokens
    held = fsum(s.used_share * places * (s.end_s - s.start_s) for s in steps)
    return fsum(s.read_tokens * (s.end_s - s.start_s) for s in steps) / held


def continuous_batches() -> Study:
    """Anyscale's study of continuous over static batches."""
    limits = (32, 128, 512, 1536)
    rates: dict[str, list[tuple[float, float]]] = {}
    names = {"static": "static", "orca": "continuous (Orca)", "vllm-v0": "and paged (vLLM)"}
    for scheduler, name in names.items():
        rates[name] = []
        for longest in limits:
            deployment = _opt(scheduler).model_copy(update={"max_model_tokens": 512 + longest})
            answer = Lengths(mean=128, variation=1.0, longest=longest)
            workload = Workload(requests=600, prompt=Lengths(mean=512), answer=answer)
            requests = serve(deployment, workload).requests
            made = sum(r.output_tokens for r in requests)
            rates[name].append((longest, made / max(r.last_token_s for r in requests)))
    over = {
        name: [(x, rate / rates["static"][k][1]) for k, (x, rate) in enumerate(points)]
        for name, points in rates.items()
    }

    def draw(figure: Figure) -> None:
        left, right = _axes(figure, 2)
        top = 1.5 * max(rate for points in rates.values() for _, rate in points)
        _curves(left, rates, "longest answer [tokens]", "tokens/s", top)
        top = 1.15 * max(gain for points in over.values() for _, gain in points)
        _curves(right, over, "longest answer [tokens]", "tokens/s over those of static", top)

    continuous, paged = over["continuous (Orca)"], over["and paged (vLLM)"]
    return Study(
        "continuous_batches",
        "Continuous against static batches",
        "OPT-13B on one A100 of 40 GB, prompts of 512 tokens, answers of 128 in the mean with a "
        "standard deviation as large, cut at a limit (Anyscale, *How continuous batching enables "
        "23x throughput in LLM inference*, 2023). Static batches and Orca reserve the longest "
        "answer; a static batch runs until its longest answer is done.",
        [
            Claim("continuous over static, answers up to 1,536", "2 (over FasterTransformer) to 8 "
                  "(over Transformers) (Anyscale)", 2, 8, continuous[-1][1]),
            Claim("continuous and paged over static, answers up to 1,536", "up to 23, over static "
                  "batches with other kernels (Anyscale)", 2, 23, paged[-1][1]),
            Claim("the first gain over that with answers up to 32", "above 1: it grows with the "
                  "spread of lengths", 1, 10, continuous[-1][1] / continuous[0][1]),
        ],
        draw,
        "The more answers differ in length, the longer a static batch runs half empty.",
    )  # fmt: skip


_CHAT: dict[str, Any] = {
    "prompt": Lengths(mean=2666, variation=1.17, longest=8192),
    "answer": Lengths(mean=481, variation=0.588, longest=2048),
}
"""openchat_sharegpt4: medians 1,730 and 415, P90 5,696 and 834 (Sarathi-Serve, table 2), as
log-normal."""


def split_prompts() -> Study:
    """Sarathi-Serve's and FastGen's capacity under a limit on the time between tokens."""
    limits_s = (0.1, 0.25, 0.5)
    names = {"vllm-v0": "prompts first (vLLM 0)", "fastgen": "split and fuse (FastGen)"}
    tails: dict[str, list[tuple[float, float]]] = {name: [] for name in names.values()}
    for scheduler, name in names.items():
        for rate in (0.1, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0):
            arrivals = Arrivals(kind="poisson", rate=rate)
            workload = Workload(requests=400, arrivals=arrivals, **_CHAT)
            served = serve(_mistral(scheduler), workload, record=True)
            starts = sorted(r.scheduled_s - r.arrival_s for r in served.requests)
            if starts[len(starts) // 2] > 2.0:
                break
            tails[name].append((rate, _token_gap_s(served.steps[0], 0.99)))
    first, fused = tails.values()
    gains = [_rate_within(fused, limit) / _rate_within(first, limit) for limit in limits_s]

    def draw(figure: Figure) -> None:
        (axes,) = _axes(figure, 1)
        top = 1.1 * max(gap for points in tails.values() for _, gap in points)
        _curves(axes, tails, "requests/s", "P99 of the time between tokens [s]", top)
        for limit in limits_s:
            axes.axhline(limit, color=style.PALE_INK, linewidth=0.8, linestyle="--")

    return Study(
        "split_prompts",
        "Split and fused prompts against prompts first",
        "Mistral-7B on one A100, lengths of openchat_sharegpt4, a limit on the P99 of the time "
        "between tokens and on the median wait (2 s) (Sarathi-Serve, arXiv 2403.02310, section 5; "
        "DeepSpeed-FastGen, arXiv 2401.08671). vLLM 0 computes whole prompts first; split and "
        "fuse puts pieces beside the answers, 512 tokens a step.",
        [
            Claim("capacity at 0.5 s", "1 to 2.6 (Sarathi-Serve: up to 2.6 for this model; "
                  "FastGen: up to 2.3)", 1, 2.6, gains[2]),
            Claim("capacity at 0.25 s", "the same", 1, 2.6, gains[1]),
            Claim("capacity at 0.1 s, which a single long prompt breaks", "the tighter, the larger",
                  gains[1], 1e3, gains[0]),
        ],
        draw,
        "Dashed: the limits. Curves end where the median request waits longer than 2 s.",
    )  # fmt: skip


def _mistral(scheduler: str) -> Deployment:
    limits = {"max_requests": 128, "max_tokens": 512 if scheduler == "fastgen" else 8192}
    return _on_one_a100("mistral-7b", "a100-sxm-80gb", scheduler, **limits)


def _token_gap_s(steps: Sequence[Step], share: float) -> float:
    """Percentile of the time between two tokens of a request [s]."""
    gaps, before_s = [], None
    for step in steps:
        if not step.decodes:
            continue
        each_s = (step.end_s - step.start_s) / step.merged
        first_s = step.end_s - (step.merged - 1) * each_s
        if before_s is not None:
            gaps.append((first_s - before_s, step.decodes))
        gaps.append((each_s, step.decodes * (step.merged - 1)))
        before_s = step.end_s if step.running else None
    gaps.sort()
    left = share * sum(count for _, count in gaps)
    for gap_s, count in gaps:
        left -= count
        if left <= 0:
            return gap_s
    return gaps[-1][0]


def _rate_within(points: Sequence[tuple[float, float]], limit: float) -> float:
    """Largest rate whose gap is within a limit, between the points; the first rate at least."""
    best = points[0][0]
    for (rate, gap), (later, worse) in itertools.pairwise(points):
        if gap <= limit:
            best = (
                later if worse <= limit else rate + (later - rate) * (limit - gap) / (worse - gap)
            )
    return best


def prompts_apart() -> Study:
    """DistServe's figures 1 and 9: rate per GPU over the scale of the limits."""
    together = _opt("vllm-v0", "a100-sxm-80gb")
    pools = {
        "together": together,
        "1 for prompts, 1 for answers": together.model_copy(
            update={"prefill": PrefillPool(gpus=1)}
        ),
        "2 for prompts, 1 for answers": together.model_copy(
            update={"prefill": PrefillPool(gpus=2)}
        ),
    }
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in pools}
    for scale in (0.6, 0.7, 0.8, 1.0, 1.25):
        limits = {"ttft": f"{400 * scale} ms", "tpot": f"{40 * scale} ms", "share": 0.9}
        objective = Objective.model_validate(limits)
        workload = Workload(
            requests=400, prompt=Lengths(mean=512), answer=Lengths(mean=64), objective=objective
        )
        for name, deployment in pools.items():
            rate = largest_rate(deployment, workload).rate / deployment.all_gpus
            rates[name].append((scale, rate))
    first, *others = rates.values()
    gains = [
        max(points[k][1] for points in others) / max(alone, 1e-3)
        for k, (_, alone) in enumerate(first)
    ]

    def draw(figure: Figure) -> None:
        (axes,) = _axes(figure, 1)
        top = 1.5 * max(rate for points in rates.values() for _, rate in points)
        what = "scale of the limits (1: first token 0.4 s, further tokens 0.04 s)"
        _curves(axes, rates, what, "requests/s per GPU", top)

    return Study(
        "prompts_apart",
        "Prefill apart from decode",
        "OPT-13B on A100 of 80 GB, prompts of 512 tokens, answers of 64; at scale 1, P90 of the "
        "first token within 0.4 s and of further tokens within 0.04 s (DistServe, arXiv "
        "2401.09670, figure 1). Keys and values cross NVLink.",
        [
            Claim("rate per GPU, apart over together, scale 1", "1 to 7.4 (abstract: up to 7.4; "
                  "figure 1: 2.1)", 1, 7.4, gains[3]),
            Claim("the same, scale 0.7", "1 to 7.4", 1, 7.4, gains[1]),
            Claim("the same, scale 0.7 over scale 1", "above 1: the tighter, the larger", 1, 1e3,
                  gains[1] / gains[3]),
        ],
        draw,
        "A GPU that does both must keep both limits at once; apart, each pool meets its own.",
    )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
