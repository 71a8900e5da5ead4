"""Rows of a view's table as the source has them, in their document form."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from cdc.errors import ValueDecodeError
from cdc.postgres import session, treatment
from cdc.snapshot import expression
from cdc.table import ColumnKind, TableName, TableSchema
from cdc.values import decoder, document, encoder
from projections.errors import VerificationError
from projections.event_form import STORED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from cdc.table import Column
    from cdc.values import Json
    from projections.plan import ViewPlan

    _Wanted = Callable[[Mapping[str, Any]], bool]

LOG: Final = TableName("eventstore", "log")
"""Every event in its place, also those that compaction has moved."""

ROWS_AT_ONCE: Final = 5000
_AS_IT_IS: Final = (ColumnKind.BOOLEAN, ColumnKind.INTEGER, ColumnKind.BYTES)
_OPTIONS: Final = " ".join(
    [session.UNFILTERED, *(f"-c {name}={value}" for name, value in expression.SETTINGS.items())]
)


@contextmanager
def snapshot(dsn: str, salt: str | None = None) -> Iterator[psycopg.Connection[Any]]:
    """Opens one unchanging sight of the source, for as long as the block runs.

    Args:
        dsn: The source database.
        salt: What columns are hashed with; None if none is.

    Raises:
        VerificationError: The source cannot be read.
    """
    try:
        with psycopg.connect(dsn, options=_OPTIONS, connect_timeout=10) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            treatment.prepare(connection, salt)
            yield connection
    except psycopg.Error as error:
        raise VerificationError(
            "the source cannot be read", detail=error.sqlstate or type(error).__name__
        ) from None


def documents(
    connection: psycopg.Connection[Any], plan: ViewPlan, withheld: list[str] | None = None
) -> Iterator[dict[str, Json]]:
    """Reads all rows that a view should have.

    Args:
        connection: From `snapshot`.
        plan: The view.
        withheld: Is given the expectation of each row that the view is not to have.

    A value that no store holds appears as the text that Postgres prints, so that its row is missing
    or different and not overlooked.

    Raises:
        EventUnreadableError: An event of the view's types cannot be read.
    """
    inspection = plan.inspection()

    def wanted(row: Mapping[str, Any]) -> bool:
        unmet = inspection.unmet(row)
        if unmet is not None and withheld is not None:
            withheld.append(unmet.name)
        return unmet is None

    encode = encoder(plan.schema)
    if plan.events is None:
        yield from _of_view(connection, plan, wanted)
        return
    by_name = plan.schema.by_name | plan.events.tables[plan.topic].by_name
    schema = TableSchema(LOG, tuple(by_name[name] for name in STORED))
    decode_row = _Decoder(schema)
    form = plan.events.form
    for row in _rows(connection, schema, sorted(form.names)):
        made = form.row(decode_row(row))
        if wanted(made):
            yield encode(made)


def _of_view(
    connection: psycopg.Connection[Any], plan: ViewPlan, wanted: _Wanted
) -> Iterator[dict[str, Json]]:
    """Rows of a mirror, which may call a column what the table called it before."""
    named = {c.name: plan.renamed.get(c.name, c.name) for c in plan.schema.columns}
    columns = [
        replace(column, name=named[column.name])
        for column in plan.schema.columns
        if column.name not in plan.absent
    ]
    schema = TableSchema(plan.schema.table, tuple(columns))
    if not plan.renamed:
        yield from _of_table(connection, schema, wanted)
        return
    names = {now: name for name, now in named.items()}

    def of_view(row: Mapping[str, Any]) -> dict[str, Any]:
        return {names[now]: value for now, value in row.items()}

    for row in _of_table(connection, schema, lambda row: wanted(of_view(row))):
        yield of_view(row)


def _of_table(
    connection: psycopg.Connection[Any], schema: TableSchema, wanted: _Wanted
) -> Iterator[dict[str, Json]]:
    encode, decode_row = encoder(schema), _Decoder(schema)
    for row in _rows(connection, schema):
        try:
            decoded = decode_row(row)
            if wanted(decoded):
                yield encode(decoded)
        except ValueDecodeError:
            yield _as_far_as_held(schema, row)


class _Decoder:
    """Makes exact values of a row as it was selected."""

    def __init__(self, schema: TableSchema) -> None:
        columns = [column for column in schema.columns if column.kind not in _AS_IT_IS]
        self._names = [column.name for column in columns]
        self._decode = decoder(TableSchema(schema.table, tuple(columns)))

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return row | self._decode({name: row[name] for name in self._names})


def _as_far_as_held(schema: TableSchema, row: dict[str, Any]) -> dict[str, Json]:
    shown: dict[str, Json] = {}
    for column in schema.columns:
        alone = TableSchema(schema.table, (column,))
        value = {column.name: row[column.name]}
        try:
            shown |= document(alone, _Decoder(alone)(value))
        except ValueDecodeError:
            shown |= value
    return shown


def _rows(
    connection: psycopg.Connection[Any], schema: TableSchema, types: list[str] | None = None
) -> Iterator[dict[str, Any]]:
    names = [column.name for column in schema.columns]
    query = sql.SQL("SELECT {} FROM {}").format(
        sql.SQL(", ").join(_selected(column) for column in schema.columns),
        sql.Identifier(schema.table.schema, schema.table.name),
    )
    if types is not None:
        query += sql.SQL(" WHERE type = ANY ({})").format(sql.Literal(types))
    with connection.cursor(name="headwater_verify") as cursor:
        cursor.itersize = ROWS_AT_ONCE
        cursor.execute(query)
        for row in cursor:
            yield dict(zip(names, row, strict=True))


def _selected(column: Column) -> sql.Composable:
    if column.kind in _AS_IT_IS:
        return sql.Identifier(column.name)
    return expression.as_text(column)
