"""How is a file of measured matrix products read that a profile names?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast, get_args

from simulator import cells
from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.cluster.kernel_parameters import MeasuredProduct, Precision
from simulator.errors import InputError
from simulator.extras import require

_COLUMNS = ("dtype", "m", "n", "k", "time_us")
_ALSO_READ = ("op", "batch", "skipped")
_PRODUCTS = ("", "gemm", "bmm")
"""Names of a product in the column ``op`` of what ``clustersim calibrate gpu`` writes, which has
other kernels, too."""
_HINT = f"give a .csv or .parquet file with the columns {', '.join(_COLUMNS)}"
_MOST_PRODUCTS = 20_000
"""All of them are looked through for every new shape."""
_LARGEST_SIDE = 2**31


def with_kernel_table(
    profile: HardwareProfile, folder: Path, field: str = "kernels.table"
) -> HardwareProfile:
    """The profile with the products of the file that it names, if it names one.

    Args:
        profile: As it was written.
        folder: Where the file that names the table is.
        field: What names it, for messages.

    Raises:
        InputError: The table cannot be read.
    """
    table = profile.kernels.table
    if table is None or table.products:
        return profile
    path = folder / table.file
    try:
        products = tuple(_products(_rows(path)))
        if not products:
            raise InputError.single("", "holds no matrix product")
    except InputError as error:
        fault = error.faults[0]
        raise InputError.single(field, fault.rule, str(path), fault.hint or _HINT) from error
    read = table.model_copy(update={"products": products})
    kernels = profile.kernels.model_copy(update={"table": read})
    return profile.model_copy(update={"kernels": kernels})


def _rows(path: Path) -> Sequence[cells.Row]:
    rows = _parquet_rows(path) if path.suffix == ".parquet" else cells.read_table(path, _COLUMNS)
    if len(rows) > _MOST_PRODUCTS:
        hint = "leave out shapes near to others"
        raise InputError.single("", f"has more than {_MOST_PRODUCTS:,} rows", hint=hint)
    return rows


def _parquet_rows(path: Path) -> Sequence[cells.Row]:
    require("pyarrow", "reads .parquet (.csv needs no extra)")
    import pyarrow
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
        columns = [name for name in (*_COLUMNS, *_ALSO_READ) if name in file.schema_arrow.names]
        missing = [name for name in _COLUMNS if name not in columns]
        if missing:
            raise InputError.single("", f"lacks the columns {', '.join(missing)}")
        if file.metadata.num_rows > _MOST_PRODUCTS:
            raise InputError.single("", f"has more than {_MOST_PRODUCTS:,} rows")
        table = file.read(columns=columns).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError.single("", "cannot be read as Parquet") from error
    return [{key: "" if cell is None else str(cell) for key, cell in row.items()} for row in table]


def _products(rows: Sequence[cells.Row]) -> Iterator[MeasuredProduct]:
    for number, row in enumerate(rows, start=1):
        if cells.text(row, "op") not in _PRODUCTS or cells.text(row, "skipped"):
            continue
        try:
            m, n, k = (_side(row, name) for name in ("m", "n", "k"))
            batch = _side(row, "batch") if cells.text(row, "batch") else 1
            time_us = cells.measured(row, "time_us")
        except InputError as error:  # what the cell holds is not shown: the file may be anybody's
            rule = (
                f"has something other than a positive number: row {number}, {error.faults[0].path}"
            )
            raise InputError.single("", rule) from None
        precision = cells.text(row, "dtype").lower()
        if precision not in get_args(Precision):
            rule = f"has an unknown dtype in row {number}"
            raise InputError.single("", rule, hint=f"use {', '.join(get_args(Precision))}")
        if time_us is None:
            raise InputError.single("", f"has no time_us in row {number}")
        yield MeasuredProduct(cast("Precision", precision), m, n, k, batch, time_us * 1e-6)


def _side(row: cells.Row, name: str) -> int:
    side = cells.whole(row, name)
    if not 1 <= side <= _LARGEST_SIDE:
        raise InputError.single(name, "is out of range")
    return side
