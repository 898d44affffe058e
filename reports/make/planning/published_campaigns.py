"""Do predicted days and GPU-hours of famous models meet the published ones?

A table names, for each campaign, its job file and what was published. The prediction is that
of ``clustersim capacity``, with the goodput that the job file states; the goodput that would
make both equal is printed beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simulator.cells import Row, read_table
from simulator.described.load import load_job
from simulator.planning.campaign.capacity import Capacity, capacity
from simulator.units import DAY_S, HOUR_S

_COLUMNS = ("name", "job", "published_gpu_hours", "published_days", "source", "remark")


@dataclass(frozen=True)
class PublishedCampaign:
    """One campaign, published and predicted.

    Attributes:
        name: As people call it.
        found: The prediction.
        published_gpu_hours: What was published, or follows from published days.
        source: Who published it.
        remark: What the comparison leaves open.
    """

    name: str
    found: Capacity
    published_gpu_hours: float
    source: str
    remark: str

    @property
    def predicted_gpu_hours(self) -> float:
        """GPU time of the prediction [h]."""
        return self.found.time.gpu_s / HOUR_S

    @property
    def error(self) -> float:
        """Predicted over published, minus 1."""
        return self.predicted_gpu_hours / self.published_gpu_hours - 1

    @property
    def implied_goodput(self) -> float:
        """Goodput at which both would be equal; above 1 where the step itself is too slow."""
        hours = self.found.time.work_s * self.found.time.gpus / HOUR_S
        return hours / self.published_gpu_hours


def published_campaigns(table: Path) -> list[PublishedCampaign]:
    """Every campaign of a table, predicted.

    Args:
        table: CSV; of published_gpu_hours and published_days one is filled in. The job files
            lie in a folder of the table's name.

    Raises:
        InputError: The table cannot be read, or a job file is wrong.
    """
    return [_predicted(row, table.with_suffix("")) for row in read_table(table, _COLUMNS)]


def _predicted(row: Row, folder: Path) -> PublishedCampaign:
    found = capacity(load_job(folder / f"{row['job']}.yaml"))
    hours = row["published_gpu_hours"]
    published = float(hours) if hours else float(row["published_days"]) * 24 * found.time.gpus
    return PublishedCampaign(row["name"], found, published, row["source"], row["remark"])


def campaigns_section(campaigns: Sequence[PublishedCampaign]) -> str:
    """The comparison as a section of a Markdown report."""
    head = (
        "| model | cluster | tokens | step | MFU | goodput assumed | days | GPU-hours | "
        "published | error | goodput at which both agree |\n"
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n"
    )
    notes = "\n".join(
        f"- **{each.name}**: {each.source}. {each.remark[:1].upper()}{each.remark[1:]}."
        for each in campaigns
    )
    return head + "\n".join(_row(each) for each in campaigns) + "\n\n" + notes + "\n"


def _row(campaign: PublishedCampaign) -> str:
    time, job = campaign.found.time, campaign.found.job
    cells = (
        campaign.name + ("" if campaign.found.fits else " (does not fit here)"),
        f"{time.gpus} x {job.cluster.profile.name}",
        f"{time.tokens / 1e12:g} T",
        f"{time.step_time_s:.2f} s",
        f"{100 * campaign.found.step.mfu:.1f} %",
        f"{time.goodput_share:.2f}" if time.goodput_share else "unknown",
        f"{time.wall_s / DAY_S:.1f}",
        f"{campaign.predicted_gpu_hours:,.0f}",
        f"{campaign.published_gpu_hours:,.0f}",
        f"{100 * campaign.error:+.1f} %",
        f"{campaign.implied_goodput:.2f}",
    )
    return "| " + " | ".join(cells) + " |"
