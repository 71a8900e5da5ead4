"""Key equality: NaN equals itself and -0.0 equals 0.0, as in Postgres and in Spark.

Python and Arrow each compare them in another way. Delta takes the least and the greatest value of a
file for the limits of all its values, and NaN is not within them. A merge that compares with `=`
skips such a file, or takes a NaN for the only other value in it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from projections.stores.delta.merge_columns import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def condition(rows: pa.Table, names: Iterable[str]) -> str:
    """Returns the condition of a merge: a stored row `t` has the key of a row `s`.

    Args:
        rows: The rows `s`; NULL is an ordinary value.
        names: The columns of the key.
    """
    # in parentheses: the parser reads all that follows FROM as one expression
    return " AND ".join(f"({_equal(rows, name)})" for name in names)


def values(table: pa.Table, names: Iterable[str]) -> list[tuple[object, ...]]:
    """Returns the key of each row; equal keys are equal and have equal hashes."""
    return list(zip(*(_values(table.column(name)) for name in names), strict=True))


def grouped(
    table: pa.Table, names: Sequence[str], totals: Sequence[tuple[str, str]] = ()
) -> pa.Table:
    """Groups rows by their keys.

    Args:
        table: The rows.
        names: The columns of the key.
        totals: Other columns, each with an aggregate function of Arrow.

    Returns:
        The columns of the key, and the totals under the names of their columns.
    """
    # Arrow reads a name that begins with a dot as a path
    keys = [str(number) for number in range(len(names))]
    values = [f"of {name}" for name, _ in totals]
    columns = [table.column(name) for name in (*names, *(name for name, _ in totals))]
    numbered = pa.Table.from_arrays(columns, names=[*keys, *values])
    hows = [(value, how) for value, (_, how) in zip(values, totals, strict=True)]
    made = numbered.group_by(keys).aggregate(hows)
    return pa.Table.from_arrays(
        [made.column(key) for key in keys] + [made.column(f"{value}_{how}") for value, how in hows],
        names=[*names, *(name for name, _ in totals)],
    )


def among(column: pa.ChunkedArray, wanted: pa.Array) -> pa.ChunkedArray:
    """Marks the values of a column that are among others of its type."""
    if pa.types.is_floating(column.type):
        column, wanted = pc.add(column, 0.0), pc.add(wanted, 0.0)  # the sum of -0.0 and 0.0 is 0.0
    return pc.is_in(column, value_set=wanted)


def _equal(rows: pa.Table, name: str) -> str:
    column = rows.column(name)
    # in this form the engine skips files by their limits
    how = "IS NOT DISTINCT FROM" if column.null_count or _may_be_nan(column) else "="
    return f"t.{quoted(name)} {how} s.{quoted(name)}"


def _may_be_nan(column: pa.ChunkedArray) -> bool:
    return bool(pa.types.is_floating(column.type))


def _values(column: pa.ChunkedArray) -> list[object]:
    found: list[object] = column.to_pylist()
    if not _may_be_nan(column):
        return found
    # one object, which Python takes for equal to itself
    return [math.nan if isinstance(each, float) and math.isnan(each) else each for each in found]
