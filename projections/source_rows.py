"""Rows of a view's table as the source has them, in their document form."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from cdc.table import ColumnKind
from cdc.values import encoder
from projections.errors import VerificationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdc.table import Column
    from cdc.values import Json
    from projections.plan import ViewPlan

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
    """Reads all rows of a view's table."""
    columns = plan.schema.columns
    names = [column.name for column in columns]
    encode = encoder(plan.schema)
    query = sql.SQL("SELECT {} FROM {}").format(
        sql.SQL(", ").join(_selected(column) for column in columns),
        sql.Identifier(plan.schema.table.schema, plan.schema.table.name),
    )
    with connection.cursor(name="headwater_verify") as cursor:
        cursor.itersize = ROWS_AT_ONCE
        cursor.execute(query)
        for row in cursor:
            yield encode(dict(zip(names, row, strict=True)))


def _selected(column: Column) -> sql.Composable:
    name = sql.Identifier(column.name)
    # a cast to text would cut the padding of a character(n), which belongs to its value
    if column.kind in _AS_TEXT and not column.type_name.startswith("character("):
        return sql.SQL("{}::text").format(name)
    return name
