"""Reads rows of a source table by COPY, and decodes them into the columns of a view's table."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from pyarrow import csv

from cdc.snapshot import expression
from cdc.table import ColumnKind
from projections.errors import UnholdableValueError
from projections.stores.delta.arrow import arrow_type

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    import psycopg

    from cdc.table import Column
    from projections.planning.view_plan import ViewPlan

BLOCK_BYTES: Final = 4 << 20
"""Size of the text that is decoded at once; four times as much takes a fifth longer."""

_TIME: Final = "to_char({}, 'HH24:MI:SS.US')"
_NO_TIME: Final = "24:"  # 24:00:00, a time of day that neither Python nor any store supports


def selected(columns: Iterable[Column]) -> sql.Composed:
    """Returns the expressions to copy for columns; COPY prints a value as its type does."""
    return sql.SQL(", ").join(map(_expression, columns))


def blocks(
    connection: psycopg.Connection[Any], query: sql.Composable
) -> Generator[bytearray, None, None]:
    """Yields rows in Postgres' CSV form, many at a time; closing it ends the statement.

    Args:
        connection: A session with `expression.SETTINGS` that receives UTF-8.
        query: Selects the rows; see `selected`.
    """
    text = bytearray()
    statement = sql.SQL("COPY ({}) TO STDOUT (FORMAT csv)").format(query)
    with connection.cursor().copy(statement) as copy:
        for row in copy:
            text += row
            if len(text) >= BLOCK_BYTES:
                yield text
                text = bytearray()
    if text:
        yield text


def decoded(plan: ViewPlan, columns: Sequence[Column], text: bytearray) -> list[pa.ChunkedArray]:
    """Converts rows in Postgres' CSV form: NULL is an empty field, and an empty text is quoted.

    Args:
        plan: The view.
        columns: The copied columns.
        text: From `blocks`.

    Returns:
        The columns, with the types of the view's table.

    Raises:
        UnholdableValueError: A value has no exact form in a table.
    """
    names = [str(number) for number in range(len(columns))]
    try:
        table = csv.read_csv(
            pa.BufferReader(text),
            read_options=csv.ReadOptions(
                column_names=names, use_threads=False, block_size=len(text) + 1
            ),
            parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            convert_options=csv.ConvertOptions(
                column_types={
                    name: _csv_type(column) for name, column in zip(names, columns, strict=True)
                },
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                null_values=[""],
                true_values=["t"],
                false_values=["f"],
            ),
        )
    except pa.ArrowInvalid:  # the error's text contains the value
        raise _unholdable(plan) from None
    return [_array(plan, column, table.column(number)) for number, column in enumerate(columns)]


def _array(plan: ViewPlan, column: Column, values: pa.ChunkedArray) -> pa.ChunkedArray:
    if column.kind is ColumnKind.TIME and pc.any(pc.starts_with(values, _NO_TIME)).as_py():
        raise _unholdable(plan)
    if _csv_type(column) == arrow_type(column):
        return values
    raw = [None if text is None else base64.b64decode(text) for text in values.to_pylist()]
    return pa.chunked_array([pa.array(raw, arrow_type(column))])


def _csv_type(column: Column) -> pa.DataType:
    return pa.string() if column.kind is ColumnKind.BYTES else arrow_type(column)


def _expression(column: Column) -> sql.Composable:
    if column.treatment is not None or column.kind is ColumnKind.BYTES:
        return expression.as_text(column)
    form = _TIME if column.kind is ColumnKind.TIME else "{}"
    return sql.SQL(form).format(sql.Identifier(column.name))


def _unholdable(plan: ViewPlan) -> UnholdableValueError:
    return UnholdableValueError(
        f"view {plan.name}: a value has no exact representation in a table",
        hint="the stream loads the rows instead, and quarantines those that do not fit",
    )
