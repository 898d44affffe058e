"""Which pipeline does a torchtitan configuration describe: order, chunks, layers of stages?

Source: torchtitan's ``pipeline_parallel.py`` and torch's ``get_schedule_class``, as facts.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from simulator.errors import InputError
from simulator.files import read_text
from simulator.importers.settings import Settings, leave_out
from simulator.importers.torchtitan.torchtitan_options import ONE_CHUNK, SCHEDULES

CSV_KEYS = tuple(
    f"{table}.pipeline_parallel_schedule_csv" for table in ("parallelism", "experimental")
)
"""Settings that name a file with a schedule; the first is today's."""
_NAME = "parallelism.pipeline_parallel_schedule"
_LAYERS_PER_STAGE = "parallelism.pipeline_parallel_layers_per_stage"


def pipeline_fields(settings: Settings, pp: int, layers: int, folder: Path) -> dict[str, Any]:
    """Schedule, chunks per rank, and how layers are dealt to them; faults go to ``settings``.

    Args:
        settings: What the file says.
        pp: Pipeline stages.
        layers: Layers of the model.
        folder: Where a schedule's CSV lies, unless its path is absolute.
    """
    csv_key, written = settings.first(*CSV_KEYS)
    schedule = _named(settings, is_written=bool(written))
    first, last = (
        settings.whole(f"parallelism.pipeline_parallel_{end}_stage_less_layers", default=1)
        for end in ("first", "last")
    )
    per_stage = settings.whole(_LAYERS_PER_STAGE, default=None)
    key = "parallelism.pipeline_parallel_expert_parallel_overlap"
    runs_apart = not settings.switch(key, default=True) and schedule == "dualpipev"
    if pp == 1:
        return {}
    for end, less in (("first", first), ("last", last)):
        if less > 1:
            key = f"parallelism.pipeline_parallel_{end}_stage_less_layers"
            rule = "counts embedding or head as several layers, which is not modelled"
            settings.fault(key, rule, less, "take 0 or 1")
    stages = -(-(layers + first + last) // per_stage) if per_stage else 0
    if stages % pp:
        rule = f"makes {stages} stages, which {pp} ranks do not share evenly"
        settings.fault(_LAYERS_PER_STAGE, rule, per_stage)
    vpp = stages // pp if stages else 1 if schedule in ONE_CHUNK else 2
    order: dict[str, Any] | str | None
    if written:
        order, vpp = _written(settings, csv_key, str(written), folder)
    else:
        order = schedule if schedule != ("interleaved-1f1b" if vpp > 1 else "1f1b") else None
    return {
        "schedule": order,
        "vpp": max(1, vpp),
        "overlap_ep": False if runs_apart else None,
        "account_for_embedding": first == 1,
        "account_for_loss": last == 1,
    }


def _named(settings: Settings, *, is_written: bool) -> str:
    """Our schedule of torch's name, in which case does not matter."""
    key, given = settings.first(_NAME, "experimental.pipeline_parallel_schedule")
    meanings = {name.casefold(): ours for name, ours in SCHEDULES.items()}
    if given is None or is_written:
        return "1f1b"
    if str(given).casefold() not in meanings:
        known = ", ".join(SCHEDULES)
        settings.fault(key, f"is not modelled; known: {known}", given, leave_out(key))
    return meanings.get(str(given).casefold(), "1f1b")


def _written(
    settings: Settings, key: str, name: str, folder: Path
) -> tuple[dict[str, Any] | None, int]:
    """The order in a CSV file as a plan carries it, and chunks per rank."""
    try:
        text = read_text(folder / name, "give the file beside the configuration")
    except InputError as error:
        settings.fault(key, f"names a file that {error.faults[0].rule}", name, leave_out(key))
        return None, 1
    rows = text.rstrip().splitlines()
    stages = 1 + max((int(stage) for stage in re.findall(r"\b(\d{1,6})[FBIW]\d", text)), default=0)
    return {"file": name, "rows": rows}, max(1, stages // max(1, len(rows)))
