"""Reads rows of a view's table from the source, as documents.

They are read in short statements, each of which sees one moment: along the table's key, some
thousand rows at a time, or by their keys. Only a table without a key is read in one transaction.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from cdc.errors import CdcError, ValueDecodeError
from cdc.postgres import session, treatment
from cdc.snapshot import expression
from cdc.snapshot.progress import KeyRange
from cdc.snapshot.ranges import split
from cdc.snapshot.table_facts import facts_of, walked
from cdc.table import Column, ColumnKind, TableName, TableSchema
from cdc.values import decode, decoder, encoder, word_of
from projections.changes.row_batch import ROWS_AT_ONCE, RowPart, source_columns
from projections.definition.event_rows import KEY, STORED
from projections.errors import VerificationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cdc.values import Json
    from projections.planning.view_plan import ViewPlan

    Document = dict[str, Json]
    Key = tuple[str, ...]
    Convert = Callable[[Sequence[Any]], Sequence[Json]]

LOG: Final = TableName("eventstore", "log")
"""All events, including those moved by compaction."""

KEYS_AT_ONCE: Final = 500
_AS_IT_IS: Final = (ColumnKind.BOOLEAN, ColumnKind.INTEGER, ColumnKind.BYTES)
# For these, the text that Postgres prints is the document form already, whether or not a store
# can represent the value.
_AS_PRINTED: Final = (
    *(ColumnKind.BOOLEAN, ColumnKind.INTEGER, ColumnKind.NUMERIC),
    *(ColumnKind.TEXT, ColumnKind.UUID, ColumnKind.JSON, ColumnKind.DATE),
)
_OPTIONS: Final = " ".join(
    [
        session.UNFILTERED,
        *(f"-c {name}={value}" for name, value in expression.SETTINGS.items()),
        "-c default_transaction_read_only=on -c lock_timeout=10s",
        # each statement reads along an index: other plans cost more at the start than they save
        "-c jit=off -c max_parallel_workers_per_gather=0",
    ]
)
_ALONG_THE_KEY: Final = (
    "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off"
)


class RowChunk(NamedTuple):
    """Consecutive rows, in key order.

    Attributes:
        part: Rows that the view should have.
        last: Key of the last row that was read; None if there was none.
    """

    part: RowPart
    last: Key | None


@contextmanager
def session_of(dsn: str, salt: str | None = None) -> Iterator[psycopg.Connection[Any]]:
    """Opens a session that reads the source; each statement is its own transaction.

    Args:
        dsn: The source database.
        salt: Salt of hashed columns; None if there are none.

    Raises:
        VerificationError: The source cannot be read.
    """
    try:
        with session.connect(dsn, options=_OPTIONS) as connection:
            treatment.prepare(connection, salt)
            yield connection
    except psycopg.Error as error:
        raise VerificationError(
            "the source cannot be read", detail=error.sqlstate or type(error).__name__
        ) from None
    except CdcError as error:
        raise VerificationError(
            f"the source cannot be read: {error.message}", detail=error.detail, hint=error.hint
        ) from None


@contextmanager
def snapshot(dsn: str, salt: str | None = None) -> Iterator[psycopg.Connection[Any]]:
    """Opens a read-only transaction with one snapshot; see `session_of`."""
    with session_of(dsn, salt) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with connection.transaction():
            yield connection


def documents(connection: psycopg.Connection[Any], plan: ViewPlan) -> Iterator[Document]:
    """Reads all rows that a view should have, in one transaction; see `SourceRows.every`."""
    for part in SourceRows(connection, plan).every():
        yield from part.documents()


class SourceRows:
    """Reads the rows that a view should have.

    A value that no store can represent appears as the text that Postgres prints, so its row counts
    as missing or different and is not overlooked.

    Args:
        connection: From `session_of`.
        plan: The view.

    Attributes:
        withheld: Number of rows read that the view excludes because they do not meet an
            expectation.
    """

    def __init__(self, connection: psycopg.Connection[Any], plan: ViewPlan) -> None:
        self.withheld = 0
        self._connection = connection
        self._form = _form(plan)
        schema = self._form.schema
        self._keyed = TableSchema(schema.table, schema.columns, self._form.key)
        self._relation, self._key = walked(connection, self._keyed)
        self._documents = sql.SQL(", ").join(map(_selected, schema.columns))

    def chunk(self, after: Key | None, limit: int = ROWS_AT_ONCE) -> RowChunk:
        """Reads the rows after a key.

        Raises:
            psycopg.Error: The table cannot be read.
            EventUnreadableError: An event of the view's types cannot be read.
        """
        query = self.query_within(KeyRange(after), limit, self._documents)
        rows = self._connection.execute(query).fetchall()
        last = self._last(rows[-1]) if rows else None
        return RowChunk(self._part(rows), last)

    @property
    def columns(self) -> tuple[Column, ...]:
        """Returns the columns to read, under their names in the table."""
        return self._form.schema.columns

    def query_within(self, keys: KeyRange, limit: int, selected: sql.Composable) -> sql.Composed:
        """Has the session read along the key, and returns the query for the first rows of a range.

        Args:
            keys: The range.
            limit: Most rows.
            selected: What to select of each row.

        Raises:
            psycopg.Error: The session has ended.
        """
        self._connection.execute(_ALONG_THE_KEY)
        bounds = [(">", keys.above), ("<=", keys.through)]
        own = sql.SQL(", ").join(self._key)
        conditions: list[sql.Composable] = [
            sql.SQL("({}) {} ({})").format(
                own, sql.SQL(comparison), sql.SQL(", ").join(map(sql.Literal, key))
            )
            for comparison, key in bounds
            if key is not None
        ]
        condition = sql.SQL(" AND ").join(conditions or [sql.SQL("true")])
        rest = sql.SQL("{} ORDER BY {} LIMIT {}").format(
            self._where(condition), sql.SQL(", ").join(self._key), sql.Literal(limit)
        )
        return self._query(rest, selected)

    def ranges(self, rows_expected: int) -> tuple[KeyRange, ...]:
        """Returns ranges of the key that together contain every key.

        Args:
            rows_expected: Approximate number of rows.

        Raises:
            psycopg.Error: The table cannot be read.
        """
        facts = facts_of(self._connection, self._keyed)
        parts = () if facts is None else split(self._connection, facts, rows_expected)
        if not parts or parts[-1].done:
            return (KeyRange(),)
        return (*parts[:-1], KeyRange(parts[-1].above))

    def of_keys(self, keys: Sequence[Key]) -> Iterator[Document]:
        """Reads the rows of some keys, given as texts that Postgres reads.

        Raises:
            psycopg.Error: The table cannot be read.
            EventUnreadableError: An event of the view's types cannot be read.
        """
        self._connection.execute("SET enable_bitmapscan = on")
        types = [sql.SQL(self._keyed.by_name[name].type_name) for name in self._keyed.key]
        for start in range(0, len(keys), KEYS_AT_ONCE):
            wanted = sql.SQL(", ").join(
                sql.SQL("({})").format(
                    sql.SQL(", ").join(
                        sql.SQL("{}::{}").format(sql.Literal(text), kind)
                        for text, kind in zip(key, types, strict=True)
                    )
                )
                for key in keys[start : start + KEYS_AT_ONCE]
            )
            columns = sql.SQL(", ").join(map(sql.Identifier, self._keyed.key))
            condition = sql.SQL("({}) IN (VALUES {})").format(columns, wanted)
            query = self._query(self._where(condition), self._documents)
            rows = self._connection.execute(query).fetchall()
            yield from self._part(rows).documents()

    def every(self) -> Iterator[RowPart]:
        """Reads all rows, in the session's transaction.

        Raises:
            psycopg.Error: The table cannot be read.
        """
        with self._connection.cursor(name="headwater_verify") as cursor:
            cursor.itersize = ROWS_AT_ONCE
            cursor.execute(self._query(self._where(sql.SQL("true")), self._documents))
            while rows := cursor.fetchmany(ROWS_AT_ONCE):
                yield self._part(rows)

    def _part(self, rows: list[Sequence[Any]]) -> RowPart:
        part = self._form.part(rows)
        self.withheld += len(rows) - len(part.rows)
        return part

    def _last(self, row: Sequence[Any]) -> Key:
        """Returns the key of a row, as texts that Postgres parses."""
        named = dict(zip([column.name for column in self._keyed.columns], row, strict=True))
        return tuple(
            "\\x" + bytes(named[name]).hex()
            if self._keyed.by_name[name].kind is ColumnKind.BYTES
            else str(named[name]).lower()
            if isinstance(named[name], bool)
            else str(named[name])
            for name in self._keyed.key
        )

    def _where(self, condition: sql.Composable) -> sql.Composed:
        parts = [sql.SQL(" WHERE "), condition]
        if self._form.types is not None:
            parts.append(sql.SQL(" AND type = ANY ({})").format(sql.Literal(self._form.types)))
        return sql.Composed(parts)

    def _query(self, rest: sql.Composable, selected: sql.Composable) -> sql.Composed:
        return sql.SQL("SELECT {} FROM {} {}").format(selected, self._relation, rest)


class _Form:
    """Converts a mirror's rows to documents.

    Attributes:
        schema: The columns to read, under their names in the table.
        key: Its key.
        types: Types of events to read; None for a table.
    """

    types: list[str] | None = None

    def __init__(self, plan: ViewPlan) -> None:
        named = {c.name: plan.renamed.get(c.name, c.name) for c in plan.schema.columns}
        own = [column for column in plan.schema.columns if column.name not in plan.absent]
        columns = tuple(replace(column, name=named[column.name]) for column in own)
        self.schema = TableSchema(plan.schema.table, columns)
        self.key = () if plan.append_only else tuple(named[name] for name in plan.keys)
        self._names = source_columns(plan)
        self._converted = [
            (place, _PRINTED[column.kind])
            for place, column in enumerate(own)
            if column.kind not in _AS_PRINTED
        ]
        self._inspection = plan.inspection() if plan.expectations else None
        self._decode = _Decoder(TableSchema(plan.schema.table, tuple(own)))

    def part(self, rows: list[Sequence[Any]]) -> RowPart:
        """Returns the rows of the view, as documents."""
        if self._inspection is not None:
            rows = [row for row in rows if not self._unmet(row)]
        if not (rows and self._converted):
            return RowPart(self._names, list(map(tuple, rows)))
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
        for place, convert in self._converted:
            columns[place] = convert(columns[place])
        return RowPart(self._names, list(zip(*columns, strict=True)))

    def _unmet(self, row: Sequence[Any]) -> bool:
        try:
            decoded = self._decode(dict(zip(self._names, row, strict=True)))
        except ValueDecodeError:
            return False  # no store has the row, so whether the view would have it does not matter
        return self._inspection is not None and self._inspection.unmet(decoded) is not None


class _EventForm(_Form):
    """Converts a view's events to documents."""

    def __init__(self, plan: ViewPlan) -> None:
        assert plan.events is not None  # noqa: S101  # this form is only for views of events
        by_name = plan.schema.by_name | plan.events.tables[plan.topic].by_name
        self.schema = TableSchema(LOG, tuple(by_name[name] for name in STORED))
        self.key = (KEY,)
        self._events = plan.events.form
        self.types = sorted(self._events.names)
        self._decode = _Decoder(self.schema)
        self._encode = encoder(plan.schema)
        self._inspection = plan.inspection()
        self._names = source_columns(plan)

    def part(self, rows: list[Sequence[Any]]) -> RowPart:
        """Returns the events of the view, as documents."""
        converted = (self._document(row) for row in rows)
        kept = (document for document in converted if document is not None)
        return RowPart(self._names, [tuple(map(made.get, self._names)) for made in kept])

    def _document(self, row: Sequence[Any]) -> Document | None:
        made = self._events.row(self._decode(dict(zip(STORED, row, strict=True))))
        if self._inspection is not None and self._inspection.unmet(made) is not None:
            return None
        return self._encode(made)


def _form(plan: ViewPlan) -> _Form:
    return _Form(plan) if plan.events is None else _EventForm(plan)


class _Decoder:
    """Decodes a selected row into exact values."""

    def __init__(self, schema: TableSchema) -> None:
        columns = [column for column in schema.columns if column.kind not in _AS_IT_IS]
        self._names = [column.name for column in columns]
        self._decode = decoder(TableSchema(schema.table, tuple(columns)))

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return row | self._decode({name: row[name] for name in self._names})


def _converter(kind: ColumnKind) -> Convert:
    """Returns the function that converts selected values of a column to document form."""
    column = Column("value", kind, str(kind))
    encode = word_of(kind)

    def converted(raw: Any) -> Json:
        if raw is None:
            return None
        try:
            return encode(raw if kind in _AS_IT_IS else decode(column, raw))
        except ValueDecodeError:
            return raw if isinstance(raw, str) else str(raw)

    if kind in _MOMENTS:
        end, zone = _MOMENTS[kind]
        return lambda values: _moments(values, end, zone, converted)
    return lambda values: list(map(converted, values))


_MOMENTS: Final = {ColumnKind.TIMESTAMP: ("", ""), ColumnKind.TIMESTAMPTZ: ("+00", "Z")}
_MOMENT: Final = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?"


def _moments(
    values: Sequence[Any], end: str, zone: str, converted: Callable[[Any], Json]
) -> list[Json]:
    """Converts times printed by Postgres to document form.

    Every row has some, and parsing one takes longer than everything else for the row; they are
    therefore assembled from their parts, and only times outside the usual years are parsed.
    """
    texts = pa.array(values, pa.string())
    second = pc.binary_join_element_wise(
        pc.utf8_slice_codeunits(texts, 0, 10), pc.utf8_slice_codeunits(texts, 11, 19), "T"
    )
    fraction = pc.utf8_slice_codeunits(texts, 20, -len(end) or None)
    made = pc.binary_join_element_wise(second, pc.utf8_rpad(fraction, width=6, padding="0"), ".")
    if zone:
        made = pc.binary_join_element_wise(made, zone, "")
    usual = pc.match_substring_regex(texts, f"{_MOMENT}{re.escape(end)}$")
    moments: list[Json] = made.to_pylist()
    if not pc.all(usual).as_py():
        for place in pc.indices_nonzero(pc.invert(usual)).to_pylist():
            moments[place] = converted(values[place])
    return moments


_PRINTED: Final = {kind: _converter(kind) for kind in ColumnKind if kind not in _AS_PRINTED}


def _selected(column: Column) -> sql.Composable:
    if column.kind in _AS_IT_IS:
        return sql.Identifier(column.name)
    return expression.as_text(column)
