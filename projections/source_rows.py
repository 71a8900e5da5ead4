"""Rows of a view's table as the source has them, in their document form."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from cdc.table import ColumnKind, TableName
from cdc.values import encoder
from projections.errors import VerificationError
from projections.event_form import STORED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cdc.table import Column
    from cdc.values import Json
    from projections.plan import ViewPlan

LOG: Final = TableName("eventstore", "log")
"""Every event in its place, also those that compaction has moved."""

ROWS_AT_ONCE: Final = 5000
_AS_TEXT: Final = (ColumnKind.TEXT, ColumnKind.UUID, ColumnKind.JSON)
_OPTIONS: Final = "-c timezone=UTC -c datestyle=ISO -c intervalstyle=iso_8601"


@contextmanager
def snapshot(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """Opens one unchanging sight of the source, for as long as the block runs.

    Raises:
        VerificationError: The source cannot be read.
    """
    try:
        with psycopg.connect(dsn, options=_OPTIONS, connect_timeout=10) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            yield connection
    except psycopg.Error as error:
        raise VerificationError(
            "the source cannot be read", detail=error.sqlstate or type(error).__name__
        ) from None


def documents(connection: psycopg.Connection[Any], plan: ViewPlan) -> Iterator[dict[str, Json]]:
    """Reads all rows that a view should have.

    Raises:
        EventUnreadableError: An event of the view's types cannot be read.
    """
    encode = encoder(plan.schema)
    if plan.events is None:
        for row in _rows(connection, plan.schema.table, plan.schema.columns):
            yield encode(row)
        return
    by_name = plan.schema.by_name | plan.events.tables[plan.topic].by_name
    columns = [by_name[name] for name in STORED]
    form = plan.events.form
    for row in _rows(connection, LOG, columns, sorted(form.names)):
        yield encode(form.row(row))


def _rows(
    connection: psycopg.Connection[Any],
    table: TableName,
    columns: Sequence[Column],
    types: list[str] | None = None,
) -> Iterator[dict[str, Any]]:
    names = [column.name for column in columns]
    query = sql.SQL("SELECT {} FROM {}").format(
        sql.SQL(", ").join(_selected(column) for column in columns),
        sql.Identifier(table.schema, table.name),
    )
    if types is not None:
        query += sql.SQL(" WHERE type = ANY ({})").format(sql.Literal(types))
    with connection.cursor(name="headwater_verify") as cursor:
        cursor.itersize = ROWS_AT_ONCE
        cursor.execute(query)
        for row in cursor:
            yield dict(zip(names, row, strict=True))


def _selected(column: Column) -> sql.Composable:
    name = sql.Identifier(column.name)
    # a cast to text would cut the padding of a character(n), which belongs to its value
    if column.kind in _AS_TEXT and not column.type_name.startswith("character("):
        return sql.SQL("{}::text").format(name)
    return name
