"""Converts a view's rows to and from Arrow and Delta: exactly, or with an error."""

from __future__ import annotations

import time as _clock
from collections.abc import Callable
from datetime import UTC, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from cdc.table import Column, ColumnKind
from cdc.values import word_of
from projections.changes.row_batch import RowPart
from projections.definition.columns import (
    BEGUN_AT_COLUMN,
    BEGUN_COLUMN,
    ROW_ID_COLUMN,
    VERSION_COLUMN,
)
from projections.definition.views import ChangeTime
from projections.errors import UnholdableValueError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from projections.changes.row_change import RowChange
    from projections.planning.view_plan import ViewPlan

DECIMAL_DIGITS: Final = 38
"""Most digits of a decimal column; a numeric that may have more is stored as text."""

_INTEGERS: Final = {"smallint": pa.int16(), "integer": pa.int32(), "bigint": pa.int64()}
_TYPES: Final[dict[ColumnKind, pa.DataType]] = {
    ColumnKind.BOOLEAN: pa.bool_(),
    ColumnKind.FLOAT: pa.float64(),
    ColumnKind.TEXT: pa.string(),
    ColumnKind.UUID: pa.string(),
    ColumnKind.JSON: pa.string(),
    ColumnKind.DATE: pa.date32(),
    ColumnKind.TIME: pa.string(),  # Delta has no type for a time of day
    ColumnKind.TIMESTAMP: pa.timestamp("us"),
    ColumnKind.TIMESTAMPTZ: pa.timestamp("us", "UTC"),
    ColumnKind.BYTES: pa.binary(),
}

_INSTANT: Final = pa.timestamp("us", "UTC")

Convert = Callable[[Any], object]


def arrow_type(column: Column) -> pa.DataType:
    """Returns the type in which a table stores a column."""
    if column.kind is ColumnKind.INTEGER:
        return _INTEGERS.get(column.type_name, pa.int64())
    if column.kind is ColumnKind.NUMERIC:
        digits, scale = column.precision, column.scale or 0
        if digits is None or digits > DECIMAL_DIGITS or not 0 <= scale <= digits:
            return pa.string()
        return pa.decimal128(digits, scale)
    return _TYPES[column.kind]


def table_schema(plan: ViewPlan) -> pa.Schema:
    """Returns the schema of a view's table: the view's columns, then internal ones."""
    fields = [pa.field(column.name, arrow_type(column)) for column in plan.schema.columns]
    if plan.append_only:
        fields.append(pa.field(ROW_ID_COLUMN, pa.string(), nullable=False))
    fields += [pa.field(name, _INSTANT) for name, _ in plan.times]
    if plan.inserted_at:
        fields.append(pa.field(BEGUN_COLUMN, pa.int64()))
    fields.append(pa.field(VERSION_COLUMN, pa.int64(), nullable=False))
    return pa.schema(fields)


def deletes_schema(plan: ViewPlan) -> pa.Schema:
    """Returns the schema of the table that records a view's deletes."""
    fields = [table_schema(plan).field(name) for name in (*plan.keys, VERSION_COLUMN)]
    if plan.inserted_at:
        fields += [pa.field(BEGUN_COLUMN, pa.int64()), pa.field(BEGUN_AT_COLUMN, _INSTANT)]
    return pa.schema(fields)


def rows_table(plan: ViewPlan, changes: Sequence[RowChange]) -> pa.Table:
    """Returns upserts as a table of `table_schema`.

    Raises:
        UnholdableValueError: A value has no exact form in its column's type.
    """
    schema = table_schema(plan)
    rows = [change.row for change in changes if change.row is not None]
    arrays = [
        column_array(plan, column, [row[column.name] for row in rows])
        for column in plan.schema.columns
    ]
    if plan.append_only:
        arrays.append(pa.array([change.key[0] for change in changes], pa.string()))
    for _, which in plan.times:
        # a row of a table without a key has only one change
        first = plan.append_only and which is ChangeTime.FIRST_COMMIT
        arrays.append(_times(ChangeTime.COMMIT if first else which, changes))
    if plan.inserted_at:
        arrays.append(pa.array([change.begun for change in changes], pa.int64()))
    arrays.append(pa.array([change.version for change in changes], pa.int64()))
    return pa.Table.from_arrays(arrays, schema=schema)


def _times(which: ChangeTime, changes: Sequence[RowChange]) -> pa.Array:
    """Returns one kind of time for each change."""
    if which is ChangeTime.PROCESSING:
        return pa.repeat(pa.scalar(_now_us(), pa.int64()), len(changes)).cast(_INSTANT)
    times_us = (getattr(change, _TIMES[which]) for change in changes)
    return pa.array([at_us or None for at_us in times_us], pa.int64()).cast(_INSTANT)


_TIMES: Final = {
    ChangeTime.COMMIT: "committed_at_us",
    ChangeTime.FIRST_COMMIT: "begun_at_us",
    ChangeTime.BROKER: "sent_at_us",
}


def _now_us() -> int:
    return _clock.time_ns() // 1000


def keys_table(plan: ViewPlan, changes: Sequence[RowChange]) -> pa.Table:
    """Returns the keys and versions of changes as a table of `deletes_schema`."""
    by_name = plan.schema.by_name
    arrays = [
        column_array(plan, by_name[name], [change.key[place] for change in changes])
        for place, name in enumerate(plan.keys)
    ]
    arrays.append(pa.array([change.version for change in changes], pa.int64()))
    if plan.inserted_at:
        arrays.append(pa.array([change.begun for change in changes], pa.int64()))
        arrays.append(_times(ChangeTime.FIRST_COMMIT, changes))
    return pa.Table.from_arrays(arrays, schema=deletes_schema(plan))


def decoded_rows(plan: ViewPlan, table: pa.Table) -> list[dict[str, object]]:
    """Converts a table's rows to the values that `cdc.values` decodes.

    Raises:
        pa.ArrowKeyError: A column of the view is missing: the columns changed meanwhile.
    """
    names = [column.name for column in plan.schema.columns]
    if lacking := set(names).difference(table.column_names):
        raise pa.ArrowKeyError(f"no column {min(lacking)}")
    return decoded_columns(plan, table, names)


def decoded_columns(
    plan: ViewPlan, table: pa.Table | pa.RecordBatch, names: Iterable[str]
) -> list[dict[str, object]]:
    """Converts some columns of a table's rows, which has them; see `decoded_rows`."""
    columns: list[list[object]] = []
    for name in (names := list(names)):
        values = table.column(name).to_pylist()
        convert = _restorer(plan.schema.by_name[name])
        columns.append(
            values if convert is None else [v if v is None else convert(v) for v in values]
        )
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def row_part(plan: ViewPlan, table: pa.Table, names: tuple[str, ...]) -> RowPart:
    """Converts some columns of rows to their document form, as `cdc.values` defines it.

    Converting by column is several times faster for rows that are only compared.
    """
    by_name = plan.schema.by_name
    columns = (_words(by_name[name], table.column(name)) for name in names)
    return RowPart(names, list(zip(*columns, strict=True)))


def _words(column: Column, values: pa.ChunkedArray) -> list[Any]:
    """Converts a column's values to their JSON form."""
    kind = column.kind
    if kind is ColumnKind.NUMERIC and pa.types.is_decimal(values.type):
        texts = values.cast(pa.string())
        # the cast writes small numbers with an exponent
        if not pc.any(pc.match_substring(texts, "E")).as_py():
            return list(texts.to_pylist())
    if kind in _AS_KEPT or (kind is ColumnKind.NUMERIC and values.type == pa.string()):
        return list(values.to_pylist())
    if kind in _TIME_FORMATS:
        return list(pc.strftime(values, _TIME_FORMATS[kind]).to_pylist())
    word, restore = word_of(kind), _restorer(column)
    plain = values.to_pylist()
    if restore is not None:
        plain = [value if value is None else restore(value) for value in plain]
    return [value if value is None else word(value) for value in plain]


_AS_KEPT: Final = frozenset(
    {
        *(ColumnKind.BOOLEAN, ColumnKind.INTEGER, ColumnKind.TEXT),
        *(ColumnKind.UUID, ColumnKind.JSON, ColumnKind.TIME),
    }
)
"""Kinds whose table values already have the JSON form."""

_TIME_FORMATS: Final = {
    ColumnKind.TIMESTAMP: "%Y-%m-%dT%H:%M:%S",
    ColumnKind.TIMESTAMPTZ: "%Y-%m-%dT%H:%M:%SZ",
}
"""For microsecond timestamps, `%S` includes six decimals."""


def column_array(plan: ViewPlan, column: Column, values: list[object]) -> pa.Array:
    """Converts values of a column to the type in which a table stores it.

    Raises:
        UnholdableValueError: A value has no exact form in that type.
    """
    convert = _converter(column)
    if convert is not None:
        values = [value if value is None else convert(value) for value in values]
    try:
        return pa.array(values, arrow_type(column))
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError):
        raise UnholdableValueError(
            (
                f"view {plan.name}: a value of column {column.name} has no exact representation "
                "in a table"
            ),
            detail=f"{column.type_name} as {arrow_type(column)}",
            hint="remove `table` from the view's stores, or correct the value at the source",
        ) from None


def _converter(column: Column) -> Convert | None:
    if column.kind is ColumnKind.TIME:
        return lambda value: value.isoformat(timespec="microseconds")
    if column.kind is ColumnKind.NUMERIC and arrow_type(column) == pa.string():
        return _numeric_text
    return None


def _restorer(column: Column) -> Convert | None:
    if column.kind is ColumnKind.TIME:
        return time.fromisoformat
    if column.kind is ColumnKind.NUMERIC and arrow_type(column) == pa.string():
        return Decimal
    if column.kind is ColumnKind.TIMESTAMPTZ:
        # pyarrow returns a UTC class of its own
        return lambda value: value.replace(tzinfo=UTC)
    return None


def _numeric_text(value: Decimal) -> str:
    return format(value, "f") if value.is_finite() else str(value)
