"""Copies a source table: ranges of its blocks, as batches of rows of a view's table.

Sessions on one exported snapshot copy ranges in parallel, also on several machines.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pyarrow as pa
from psycopg import sql

from cdc.postgres import catalog, session, treatment
from cdc.snapshot import expression
from projections.errors import LoadFailedError
from projections.stores.delta import copy_format
from projections.stores.delta.arrow import table_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cdc.column_rule import ColumnRules
    from cdc.table import Column, TableName
    from projections.planning.view_plan import ViewPlan

PIECE_BYTES: Final = 128 << 20
"""Size of the blocks of a piece, at most: their rows make one or two files of a table."""

_PAGES: Final = """
WITH leaves AS (SELECT %(root)s::regclass AS relid
                 WHERE (SELECT relkind FROM pg_class WHERE oid = %(root)s::regclass) = 'r'
                UNION ALL
                SELECT relid FROM pg_partition_tree(%(root)s::regclass) WHERE isleaf)
SELECT DISTINCT n.nspname, c.relname,
       pg_relation_size(c.oid) / current_setting('block_size')::bigint, c.relkind = 'r',
       current_setting('block_size')::bigint
  FROM leaves JOIN pg_class c ON c.oid = leaves.relid
  JOIN pg_namespace n ON n.oid = c.relnamespace
 ORDER BY 1, 2
"""
_OPTIONS: Final = " ".join(
    [
        session.UNFILTERED,
        "-c default_transaction_isolation=repeatable\\ read",
        "-c default_transaction_read_only=on -c statement_timeout=0 -c client_encoding=utf8",
        "-c idle_in_transaction_session_timeout=0 -c max_parallel_workers_per_gather=0 -c jit=off",
        *(f"-c {name}={value}" for name, value in expression.SETTINGS.items()),
    ]
)


@dataclass(frozen=True, slots=True)
class BlockRange:
    """A range of blocks of a table or partition; of a foreign table, all rows.

    Attributes:
        schema: Schema of the table.
        name: Its name.
        first: Number of the first block; None without blocks.
        end: Number of the block after the last; None for all that follow.
    """

    schema: str
    name: str
    first: int | None = None
    end: int | None = None


Piece = tuple[BlockRange, ...]


@dataclass(frozen=True, slots=True)
class SourceCopy:
    """A source table whose rows are copied.

    Attributes:
        plan: The view: a mirror of one table with a key.
        version: Version that the rows get; see `ChangePosition.version`.
        dsn: The source, with the capture role.
        rules: Rules for excluded, hashed and masked columns.
        salt: Salt for hashed columns.
    """

    plan: ViewPlan
    version: int
    dsn: str = field(repr=False)
    rules: Mapping[TableName, ColumnRules] = field(default_factory=dict)
    salt: str | None = field(default=None, repr=False)

    @contextmanager
    def session(self, snapshot: str | None = None) -> Iterator[psycopg.Connection[Any]]:
        """Opens a transaction on the given exported snapshot, or on a new one."""
        with session.connect(self.dsn, autocommit=False, options=_OPTIONS) as connection:
            if snapshot is not None:
                connection.execute(
                    sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot))
                )
            treatment.prepare(connection, self.salt)
            yield connection

    def check_columns(self, connection: psycopg.Connection[Any]) -> None:
        """Refuses a table that has other columns than the view.

        Raises:
            LoadFailedError: The columns differ.
        """
        table = self.plan.schema.table
        described = catalog.describe(connection, [table], self.rules).get(table)
        left_out = {column.name for column in self.plan.left_out}
        columns = (
            ()
            if described is None
            else tuple(c for c in described.columns if c.name not in left_out)
        )
        if columns != self.plan.schema.columns:
            raise LoadFailedError(
                f"the columns of table {table} changed since view {self.plan.name} was planned"
            )

    def pieces(self, connection: psycopg.Connection[Any], tasks: int) -> list[Piece]:
        """Divides the table into pieces of about equal size that are read sequentially.

        Args:
            connection: A session.
            tasks: How many of them are read at a time; their number is a multiple of that, as far
                as there are blocks.
        """
        table = self.plan.schema.table
        root = sql.Identifier(table.schema, table.name).as_string(connection)
        relations = connection.execute(_PAGES, {"root": root}).fetchall()
        total = sum(pages for _, _, pages, *_ in relations)
        size_bytes = sum(pages * page for *_, pages, _, page in relations)
        rounds = max(1, -(-size_bytes // (PIECE_BYTES * tasks)))
        return divided([row[:4] for row in relations], max(1, -(-total // (rounds * tasks))))

    def batches(
        self, connection: psycopg.Connection[Any], parts: Sequence[BlockRange]
    ) -> Iterator[pa.RecordBatch]:
        """Copies the rows of parts, decoded into the columns of the view's table.

        Raises:
            UnholdableValueError: A value has no exact form in a table.
        """
        for part in parts:
            for text in copy_format.blocks(connection, _rows(self.plan.schema.columns, part)):
                yield _batch(self, text)


def divided(relations: Sequence[tuple[str, str, int, bool]], step: int) -> list[Piece]:
    """Divides tables into pieces of so many blocks; small ones share a piece.

    Args:
        relations: Schema, name and number of blocks of each table, and whether it has blocks: a
            foreign table has none, and is a piece of its own.
        step: Blocks of a piece.
    """
    pieces: list[Piece] = []
    piece: list[BlockRange] = []
    capacity = step
    for schema, name, pages, plain in relations:
        if not plain:
            pieces.append((BlockRange(schema, name),))
            continue
        first = 0
        while pages - first > capacity:
            pieces.append((*piece, BlockRange(schema, name, first, first + capacity)))
            first, capacity, piece = first + capacity, step, []
        # rows after the last known block are not in the snapshot, unless just being added
        piece.append(BlockRange(schema, name, first))
        capacity -= pages - first
        if not capacity:
            pieces.append(tuple(piece))
            capacity, piece = step, []
    return [*pieces, tuple(piece)] if piece else pieces


def _batch(source: SourceCopy, text: bytearray) -> pa.RecordBatch:
    arrays = copy_format.decoded(source.plan, source.plan.schema.columns, text)
    count = len(arrays[0])
    version = pa.chunked_array([pa.repeat(pa.scalar(source.version, pa.int64()), count)])
    schema = table_schema(source.plan)
    # a row read from the table has no record, so its commit time is unknown
    times = [pa.nulls(count, schema.field(name).type) for name, _ in source.plan.times]
    if source.plan.inserted_at:
        times.append(pa.repeat(pa.scalar(0, pa.int64()), count))
    rows = pa.Table.from_arrays([*arrays, *times, version], schema=schema)
    return rows.combine_chunks().to_batches()[0]


def _rows(columns: Iterable[Column], part: BlockRange) -> sql.Composed:
    """Returns the query for a range of blocks."""
    where: sql.Composable = sql.SQL("")
    if part.first is not None:
        where = sql.SQL(" WHERE ctid >= {}::tid").format(sql.Literal(f"({part.first},0)"))
    if part.end is not None:
        where += sql.SQL(" AND ctid < {}::tid").format(sql.Literal(f"({part.end},0)"))
    return sql.SQL("SELECT {} FROM ONLY {}{}").format(
        copy_format.selected(columns), sql.Identifier(part.schema, part.name), where
    )
