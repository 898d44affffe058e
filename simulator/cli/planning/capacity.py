"""clustersim capacity: what does the whole training run take?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.console import (
    counting,
    note,
    number_columns,
    percent,
    print_json,
    print_table,
    progress,
    text_columns,
)
from simulator.cli.options import (
    AsJson,
    Changes,
    JobFile,
    Risk,
    file_to_write,
    note_doubts,
    parse_assignments,
    quantity,
    whole_numbers,
)
from simulator.cli.planning.sweep import Workers
from simulator.errors import InputError
from simulator.files import PICTURES
from simulator.results.fit_probability import DEFAULT_RISK
from simulator.units import HOUR_S, format_seconds

if TYPE_CHECKING:
    from simulator.described.job import Job
    from simulator.planning.campaign.capacity import Capacity, Refusal
    from simulator.planning.campaign.goodput import Goodput


def capacity(
    job_file: JobFile,
    *,
    tokens: Annotated[
        str | None, typer.Option(metavar="N", help="Tokens to train on, such as 300B or 15T.")
    ] = None,
    campaign_file: Annotated[
        Path | None,
        typer.Option(
            "--campaign",
            metavar="FILE.yaml",
            help="Prices, power, failures and checkpoints, laid over the job's campaign.",
        ),
    ] = None,
    changes: Changes = None,
    deadline: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Find the fewest GPUs that are done by then: 30d."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(metavar="MONEY", help="Find the fastest cluster within it: '2 MUSD'."),
    ] = None,
    systems: Annotated[
        str | None,
        typer.Option(metavar="NAME,NAME,…", help="Hardware profiles to compare."),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            "--gpus",
            metavar="N,N,…",
            help="Numbers of GPUs to compare; by default, where clusters are compared, all "
            "over which the global batch can be spread.",
        ),
    ] = None,
    members: Annotated[
        int, typer.Option(min=2, metavar="N", help="Campaigns with failures to simulate.")
    ] = 200,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of their failures.")] = 0,
    risk: Risk = DEFAULT_RISK,
    keep_plan: Annotated[
        bool,
        typer.Option(
            "--keep-plan", help="Compare clusters under the job's plan, not each under its best."
        ),
    ] = False,
    workers: Workers = None,
    plot: Annotated[
        Path | None,
        file_to_write(
            "Draw where the time goes, and the intervals.", *PICTURES, metavar="FILE.png"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Days, GPU-hours, money, energy and CO2 of a training run.

    Every factor is shown with where it comes from.
    Nothing is invented: without a price the money stays open, without failures the goodput.
    With --deadline, --budget, --systems or --gpus several clusters are compared, each under the
    fastest plan that runs out of memory with a probability of no more than --risk. With
    --keep-plan the job's plan stays, and data parallelism grows and shrinks with the GPUs.

    Example:  clustersim capacity job.yaml --tokens 15T --set campaign.goodput=0.9
    """
    from simulator.planning.campaign.capacity import capacity

    asked = _Comparison(
        systems,
        sizes,
        None if deadline is None else quantity(deadline, "--deadline", "s"),
        None if budget is None else quantity(budget, "--budget", "usd"),
        members,
        seed,
        risk,
        keep_plan,
        workers,
    )
    plan_is_free = asked.is_wanted and not keep_plan
    job = _read(job_file, tokens, campaign_file, changes, plan_is_free=plan_is_free)
    if asked.is_wanted:
        if plot is not None:
            rule = "draws one campaign, and several clusters are compared"
            raise InputError.single("--plot", rule, hint="leave it out")
        _compare(job, asked, as_json=as_json)
        return
    with counting("campaigns") as count:
        found = capacity(job, members=members, seed=seed, on_member=count)
    if plot is not None:
        _draw(found, plot)
    if as_json:
        print_json(_document(found))
    else:
        _print_factors(found)
        _print_goodput(found.time.goodput)
    if not found.fits:
        note("The job does not fit into memory; clustersim run says what would.")
        raise typer.Exit(1)


def _read(
    path: Path,
    tokens: str | None,
    campaign_file: Path | None,
    changes: Sequence[str] | None,
    *,
    plan_is_free: bool,
) -> Job:
    """The job with its campaign: the job file's, then the campaign file's, then options."""
    from simulator.api import load_job
    from simulator.described.documents import merged, read_yaml
    from simulator.described.load import job_file
    from simulator.planning.search.space import searchable_job

    assigned = parse_assignments(changes or ())
    if campaign_file is not None:
        document = read_yaml(job_file(path), "give a job as YAML")
        ours = document.get("campaign") or {}
        theirs = read_yaml(campaign_file, "give prices, power and failures as YAML")
        theirs = theirs.get("campaign", theirs)
        if isinstance(ours, dict) and isinstance(theirs, dict):
            theirs = merged(ours, theirs)
        assigned = {"campaign": theirs, **assigned}
    if tokens is not None:
        assigned["campaign.tokens"] = tokens
    job = (
        load_job(path, assigned)
        if not plan_is_free
        else searchable_job(lambda found: load_job(path, {**assigned, **found}))
    )
    note_doubts(job)
    return job


def _draw(found: Capacity, path: Path) -> None:
    from simulator.plots.goodput import build_goodput_figure
    from simulator.plots.style import save

    ensemble = found.time.goodput
    if ensemble is None:
        rule = "draws what failures cost, and none are given"
        raise InputError.single("--plot", rule, hint="give campaign.failures")
    save(
        build_goodput_figure(
            found.job.title,
            {spent.value: seconds for spent, seconds in ensemble.spent_s.items()},
            [(each.interval_s, each.goodput) for each in ensemble.tried],
            (ensemble.interval_s, ensemble.share),
        ),
        path,
    )


def _document(found: Capacity) -> dict[str, Any]:
    from simulator.planning.campaign.factors import factors
    from simulator.results.plain_data import fit_to_dict

    return {
        "job": found.job.title,
        **fit_to_dict(found.step),
        "factors": [asdict(factor) for factor in factors(found)],
        "goodput": None if found.time.goodput is None else _goodput(found.time.goodput),
    }


def _goodput(found: Goodput) -> dict[str, Any]:
    """What is known of an ensemble, without a number for each of its campaigns."""
    return {name: value for name, value in asdict(found).items() if name != "walls_s"}


def _print_factors(found: Capacity) -> None:
    from simulator.planning.campaign.factors import factor_text, factors

    columns = text_columns("factor") + number_columns("amount") + text_columns("from")
    rows = [[each.name, factor_text(each), each.origin] for each in factors(found)]
    print_table(found.job.title, columns, rows)


def _print_goodput(found: Goodput | None) -> None:
    from simulator.planning.campaign.goodput import SEARCH_MEMBERS

    if found is None:
        return
    columns = text_columns("where the time goes") + number_columns("mean", "share")
    rows = [
        [spent.value, format_seconds(seconds), percent(seconds / found.wall_s, 2)]
        for spent, seconds in found.spent_s.items()
    ]
    failures = ", ".join(f"{name} {count:.1f}" for name, count in found.failures.items())
    print_table(
        f"goodput {percent(found.share)}; mean failures: {failures or 'none'}", columns, rows
    )
    if found.tried:
        columns = number_columns("checkpoint every", "goodput")
        rows = [[format_seconds(each.interval_s), percent(each.goodput, 2)] for each in found.tried]
        guess = format_seconds(found.first_guess_s)
        title = f"intervals, each tried on {SEARCH_MEMBERS} campaigns; Daly's is {guess}"
        print_table(title, columns, rows)


@dataclass(frozen=True)
class _Comparison:
    """Which clusters, and what is asked of them."""

    systems: str | None
    sizes: str | None
    deadline_s: float | None
    budget_usd: float | None
    members: int
    seed: int
    risk: float
    keep_plan: bool
    workers: int | None

    @property
    def is_wanted(self) -> bool:
        """Whether anything asks for more than the job's own cluster."""
        return bool(self.systems or self.sizes) or self.searches

    @property
    def searches(self) -> bool:
        """Whether one of the clusters is to be chosen."""
        return self.deadline_s is not None or self.budget_usd is not None


def _compare(job: Job, asked: _Comparison, *, as_json: bool) -> None:
    from simulator.planning.campaign.capacity import (
        Capacity,
        cluster_sizes,
        compare_clusters,
        fastest_within_budget,
        smallest_in_time,
    )
    from simulator.processor import core_count

    names = asked.systems.split(",") if asked.systems else [job.cluster.profile.name]
    default = cluster_sizes(job) if asked.searches else [job.cluster.gpus]
    counts = whole_numbers(asked.sizes, "--gpus") if asked.sizes else default
    with progress("clusters", len(names) * len(counts)) as counted:
        found = compare_clusters(
            job,
            names,
            counts,
            members=asked.members,
            seed=asked.seed,
            risk=asked.risk,
            keep_plan=asked.keep_plan,
            workers=asked.workers or core_count(),
            on_cluster=counted,
        )
    ran = [each for each in found if isinstance(each, Capacity)]
    answers: dict[str, Capacity | None] = {}
    if asked.deadline_s is not None:
        name = f"fewest GPUs done in {format_seconds(asked.deadline_s)}"
        answers[name] = smallest_in_time(ran, asked.deadline_s)
    if asked.budget_usd is not None:
        name = f"fastest within {asked.budget_usd:,.2f} USD"
        answers[name] = fastest_within_budget(ran, asked.budget_usd)
    if as_json:
        chosen = {name: _cluster(best) if best else None for name, best in answers.items()}
        print_json({"clusters": [_cluster(each) for each in found], "answers": chosen})
    else:
        _print_clusters(job, found)
        for name, best in answers.items():
            where = "none of these" if best is None else _where(best)
            typer.echo(f"{name}: {where}")
    if not ran or None in answers.values():
        raise typer.Exit(1)


def _where(found: Capacity) -> str:
    time, cheapest = found.time, found.money.cheapest
    money = "" if cheapest is None else f", {cheapest[1]:,.0f} USD {cheapest[0]}"
    return (
        f"{time.gpus} x {found.job.cluster.profile.name}, {format_seconds(time.wall_s)}, "
        f"{time.gpu_s / HOUR_S:,.0f} GPU-hours{money}"
    )


def _cluster(found: Capacity | Refusal) -> dict[str, Any]:
    from simulator.described.job import plan_text
    from simulator.planning.campaign.capacity import Refusal

    if isinstance(found, Refusal):
        return asdict(found)
    time = found.time
    return {
        "system": found.job.cluster.profile.name,
        "gpus": time.gpus,
        "dp": found.job.dp,
        "plan": plan_text(found.job),
        "step_time_s": time.step_time_s,
        "mfu": found.step.mfu,
        "fits_probability": found.step.fits_probability,
        "goodput": time.goodput_share,
        "wall_s": time.wall_s,
        "wall_band_s": time.wall_band_s,
        "gpu_hours": time.gpu_s / HOUR_S,
        "money": asdict(found.money),
        "energy_kwh": None if found.energy.total_j is None else found.energy.total_j / 3.6e6,
        "co2_kg": found.energy.co2_kg,
        "breakdown_s": {kind.value: s for kind, s in found.step.breakdown_s.items()},
    }


def _print_clusters(job: Job, found: Sequence[Capacity | Refusal]) -> None:
    columns = (
        text_columns("system")
        + number_columns("GPUs")
        + text_columns("plan")
        + number_columns("step time", "MFU", "goodput", "duration", "GPU-hours", "USD")
        + text_columns("paid")
    )
    tokens = job.campaign.tokens
    said = f"{tokens:,} tokens" if tokens else "one step"
    print_table(f"{job.model.name}, {said}", columns, map(_row, found))


def _row(found: Capacity | Refusal) -> list[str]:
    from simulator.described.job import plan_text
    from simulator.planning.campaign.capacity import Refusal

    if isinstance(found, Refusal):
        return [found.system, str(found.gpus), *[""] * 8, found.reason]
    time, cheapest = found.time, found.money.cheapest
    return [
        found.job.cluster.profile.name,
        str(time.gpus),
        plan_text(found.job),
        format_seconds(time.step_time_s),
        percent(found.step.mfu),
        "open" if time.goodput_share is None else percent(time.goodput_share),
        format_seconds(time.wall_s),
        f"{time.gpu_s / HOUR_S:,.0f}",
        "open" if cheapest is None else f"{cheapest[1]:,.0f}",
        "" if cheapest is None else cheapest[0],
    ]
