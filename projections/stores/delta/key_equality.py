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

if TYPE_CHECKING:
    from collections.abc import Iterable


def condition(rows: pa.Table, names: Iterable[str]) -> str:
    """Returns the condition of a merge: a stored row `t` has the key of a row `s`.

    Args:
        rows: The rows `s`; NULL is an ordinary value.
        names: The columns of the key.
    """
    # in parentheses: the parser reads all that follows FROM as one expression
    return " AND ".join(f"({_equal(rows, name)})" for name in names)


def quoted(name: str) -> str:
    """Returns a column name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def values(table: pa.Table, names: Iterable[str]) -> list[tuple[object, ...]]:
    """Returns the key of each row; equal keys are equal and have equal hashes."""
    return list(zip(*(_values(table.column(name)) for name in names), strict=True))


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
