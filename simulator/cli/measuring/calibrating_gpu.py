"""clustersim calibrate gpu: how fast does the device in this computer run its kernels?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from simulator.cli.completion import complete_profile
from simulator.cli.console import (
    note,
    number_columns,
    print_json,
    print_table,
    progress,
    text_columns,
    working,
    write_picture,
)
from simulator.cli.options import AsJson, option
from simulator.errors import InputError
from simulator.extras import require
from simulator.files import write_whole
from simulator.units import counted

if TYPE_CHECKING:
    from simulator.calibrate.gpu.device_facts import DeviceFacts
    from simulator.calibrate.gpu.kernel_case import KernelCase
    from simulator.calibrate.gpu.kernel_profile import KernelCalibration
    from simulator.calibrate.gpu.measure_kernels import KernelJournal
    from simulator.validate.accuracy import Accuracy

_REASONS_SHOWN = 6


def gpu(
    *,
    out: Annotated[
        Path,
        option(
            "File to write the profile to; measurements (.kernels.csv) and picture "
            "(.kernels.png) go beside it.",
            "PROFILE.yaml",
            name="--out",
        ),
    ],
    device: Annotated[
        str | None, option("Device to measure; by default the first GPU.", "cuda|cuda:N|cpu")
    ] = None,
    base: Annotated[
        str | None,
        option(
            "Profile for all numbers that are not measured: a shipped name or a .yaml file; "
            "by default that of the same GPU.",
            "NAME|FILE",
            autocompletion=complete_profile,
        ),
    ] = None,
    minutes: Annotated[
        float, option("Time limit for measuring.", "MINUTES", name="--minutes", min=0)
    ] = 10.0,
    resume: Annotated[
        bool, option("Continue the measurements of an earlier run.", name="--resume")
    ] = False,
    raw: Annotated[
        Path | None,
        option(
            "Measure nothing; read what the one-file runner measured elsewhere.",
            "RAW.jsonl",
            name="--from",
        ),
    ] = None,
    only: Annotated[
        Path | None,
        option(
            "Measure the kernels of a captured step and no others.", "STEP.capture", name="--only"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure this computer's GPU and write its profile.

    It measures matrix products of transformers in all directions and formats, attention,
    memory-bound kernels, grouped products, launches, host copies, and the rate under load. Each
    result is saved at once, so --resume continues an interrupted run.

    Example:  clustersim calibrate gpu --out ours.yaml --minutes 10

    Example:  clustersim calibrate gpu --out ours.yaml --from raw.jsonl

    Example:  clustersim calibrate gpu --out ours.yaml --only step.capture
    """
    require("torch", "runs what is measured")
    require("scipy.optimize", "fits profiles")
    from simulator.calibrate.gpu.device_facts import device_facts
    from simulator.calibrate.gpu.raw_file import read_raw_file

    records = None if raw is None else read_raw_file(raw)
    if records is not None and device is not None:
        raise InputError.single(
            "--device", "does not apply with --from, which holds the measurements"
        )
    if records is not None and only is not None:
        raise InputError.single("--only", "does not apply with --from, which measures nothing")
    facts = device_facts(device) if records is None else records.facts
    base_name = base or _profile_of(facts)
    journal = _journal(facts, out, resume=resume)
    if records is None:
        notes = _measure(_cases(facts, only), facts, journal, minutes)
    else:
        records.add_to(journal)
        notes = facts.notes
    _note_skipped(journal)
    kernels = counted(len(journal.measured), "kernel")
    note(f"fitting to {kernels}, which needs no GPU and may take minutes")
    with working(f"fitting to {kernels}"):
        calibration = _fitted(facts, journal, base_name, out.stem)
    if as_json:
        print_json({**calibration.to_dict(), "notes": [*notes, *calibration.notes]})
    else:
        _print_parameters(calibration)
        _print_accuracy(calibration)
    for sentence in [*notes, *calibration.notes]:
        note(sentence)
    write_whole(out, calibration.text)
    note(f"wrote {out} and {journal.path}")
    _draw(calibration, journal, out.with_suffix(".kernels.png"))


def _journal(facts: DeviceFacts, out: Path, *, resume: bool) -> KernelJournal:
    from simulator.calibrate.gpu.measure_kernels import KernelJournal

    return KernelJournal.opened(
        out.with_suffix(".kernels.csv"),
        facts.name,
        f"clustersim calibrate gpu, {facts.date}, {facts.software}",
        resume=resume,
    )


def _profile_of(facts: DeviceFacts) -> str | None:
    """The shipped profile of a GPU; None for a processor, which gets one of its own."""
    from simulator.described.load import profile_names
    from simulator.tables.spellings import profile_name_of

    if facts.device.type == "cpu":
        return None
    name = profile_name_of(facts.name, profile_names())
    if name is None:
        hint = "name the most similar one, see clustersim profile list"
        raise InputError.single("--base", f"no shipped profile describes {facts.name}", hint=hint)
    return name


def _cases(facts: DeviceFacts, only: Path | None) -> list[KernelCase]:
    """What is measured: kernels of models of many kinds, or those of a captured step."""
    if only is None:
        from simulator.calibrate.gpu.kernel_cases import CPU_EXTENT, GPU_EXTENT, kernel_cases

        extent = CPU_EXTENT if facts.device.type == "cpu" else GPU_EXTENT
        return kernel_cases(extent, facts.formats, facts.attention)
    from simulator.calibrate.gpu.kernel_case import KernelCase
    from simulator.capture.file import read_capture
    from simulator.capture.kernels_to_measure import kernels_to_measure

    found = kernels_to_measure(read_capture(only), facts.attention, KernelCase)
    for name, times in found.left_out.items():
        note(f"{name}, {times} times in the step, is not measured")
    return list(found.cases)


def _measure(
    cases: Sequence[KernelCase], facts: DeviceFacts, journal: KernelJournal, minutes: float
) -> list[str]:
    from simulator.calibrate.gpu.measure_kernels import measure_kernels

    note(f"measuring {facts.name} ({facts.software}), at most {minutes:g} minutes")
    with progress("kernels", len(cases)) as count:
        return measure_kernels(cases, facts, journal, seconds=60 * minutes, on_case=count)


def _fitted(
    facts: DeviceFacts, journal: KernelJournal, base: str | None, name: str
) -> KernelCalibration:
    from simulator.calibrate.gpu.kernel_profile import calibrate_kernels
    from simulator.calibrate.profile_text import processor_profile_text
    from simulator.described.load import profile_file

    reference = f"calibrate gpu on {facts.name}, {facts.date}, {facts.software}"
    rows = journal.measured
    if base is None:
        file, text = (
            str(journal.path),
            processor_profile_text(name, facts.name, facts.memory_bytes, rows, reference),
        )
    else:
        path = profile_file(base)
        file, text = str(path), path.read_text(encoding="utf-8")
    return calibrate_kernels(rows, text, file, name, reference, facts.sourced_values(reference))


def _note_skipped(journal: KernelJournal) -> None:
    reasons = Counter(row.text("skipped") for row in journal.skipped)
    for reason, count in reasons.most_common(_REASONS_SHOWN):
        note(f"left out {counted(count, 'case')}: {reason}")
    if len(reasons) > _REASONS_SHOWN:
        note(f"and {len(reasons) - _REASONS_SHOWN} more reasons, see {journal.path}")


def _print_parameters(calibration: KernelCalibration) -> None:
    rows = [
        (".".join(fit.block.path) or "memory", name, f"{value:.3g}", fit.residual)
        for fit in calibration.fits
        for name, value in fit.values.items()
    ]
    rows += [
        (path.rpartition(".")[0], path.rpartition(".")[2], str(value.value), "measured directly")
        for path, value in calibration.values.items()
    ]
    columns = (
        text_columns("part", "parameter") + number_columns("value [SI]") + text_columns("rests on")
    )
    print_table(f"kernels of {calibration.profile.name}", columns, rows)


def _print_accuracy(calibration: KernelCalibration) -> None:
    before = calibration.before.families
    rows = [
        (family, str(accuracy.n), _mean(before[device, family]), _mean(accuracy))
        for (device, family), accuracy in calibration.after.families.items()
        if accuracy.n
    ]
    columns = text_columns("kernels") + number_columns(
        "rows", f"mean error, {calibration.base.name}", "fitted"
    )
    print_table("predicted against measured", columns, rows)


def _mean(accuracy: Accuracy) -> str:
    return "" if accuracy.mape is None else f"{accuracy.mape:.1f} %"


def _draw(calibration: KernelCalibration, journal: KernelJournal, path: Path) -> None:
    from simulator.plots.kernel_fit import KernelPoint, build_kernel_fit_figure

    directions = {row.text("id"): row.text("direction") for row in journal.measured}
    points = [
        KernelPoint(
            _kind(row), directions[row.id] or "fwd", row.measured_us * 1e-6, row.predicted_us * 1e-6
        )
        for row in calibration.after.rows
        if row.measured_us and row.predicted_us
    ]
    if not points:
        note("no picture: none of the rows has a prediction")
        return
    title = f"kernels of {calibration.profile.name}, {journal.gpu}"
    write_picture(build_kernel_fit_figure(points, title), path)


def _kind(row: Any) -> str:
    if "gemm" in row.op:
        return f"{row.op.replace('_gemm', '').replace('gemm', 'single')} products, {row.dtype}"
    return row.op if "attention" in row.op else "memory-bound"
