"""Copies a source table: ranges of its blocks, as batches of rows of a view's table.

Sessions on one exported snapshot copy ranges in parallel, also on several machines. Ranges may also
be copied under several snapshots, one after the other: a row that did not change between the first
and the last of them lies in one block all the time, so it is copied exactly once. Those that may
have changed are found by the transaction that wrote them (`xmin`), and are copied once more under
the last snapshot. That holds for ordinary tables (`heap`) whose files were not replaced meanwhile,
as `VACUUM FULL`, `CLUSTER`, `TRUNCATE` and some `ALTER TABLE` do.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

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

_FILES: Final = """
WITH leaves AS (SELECT %(root)s::regclass AS relid
                 WHERE (SELECT relkind FROM pg_class WHERE oid = %(root)s::regclass) = 'r'
                UNION ALL
                SELECT relid FROM pg_partition_tree(%(root)s::regclass) WHERE isleaf)
SELECT DISTINCT n.nspname, c.relname, c.relkind = 'r',
       pg_relation_size(c.oid) / current_setting('block_size')::bigint,
       current_setting('block_size')::bigint, c.oid::bigint,
       pg_relation_filenode(c.oid)::bigint, a.amname IS NOT DISTINCT FROM 'heap'
  FROM leaves JOIN pg_class c ON c.oid = leaves.relid
  JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_am a ON a.oid = c.relam
 ORDER BY 1, 2
"""
_FIRST_XID: Final = 3
"""The first transaction id after a wraparound."""

_SNAPSHOTS_AGE_MAX: Final = 1_000_000_000
"""Most transactions between two snapshots: ids repeat after four times as many."""

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


class TableFile(NamedTuple):
    """A table or partition whose rows are copied.

    Attributes:
        schema: Schema of the table.
        name: Its name.
        has_blocks: Whether it can be read by blocks; a foreign table cannot.
        blocks: Its blocks.
        block_bytes: Size of a block.
        oid: Its object id.
        file: Number of its file, which is another one once the rows may be in other places.
        ordinary: Whether blocks and `xmin` mean what they do in Postgres' own tables.
    """

    schema: str
    name: str
    has_blocks: bool
    blocks: int
    block_bytes: int
    oid: int
    file: int | None
    ordinary: bool


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

    def table_files(self, connection: psycopg.Connection[Any]) -> list[TableFile]:
        """Returns the table, or its partitions."""
        table = self.plan.schema.table
        root = sql.Identifier(table.schema, table.name).as_string(connection)
        rows = connection.execute(_FILES, {"root": root}).fetchall()
        return [TableFile(*row) for row in rows]

    def batches(
        self,
        connection: psycopg.Connection[Any],
        parts: Sequence[BlockRange],
        since: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Copies the rows of parts, decoded into the columns of the view's table.

        Args:
            connection: A session.
            parts: The parts.
            since: If given, only rows that this transaction or a later one has written.

        Raises:
            UnholdableValueError: A value has no exact form in a table.
        """
        for part in parts:
            query = _rows(self.plan.schema.columns, part, since)
            for text in copy_format.blocks(connection, query):
                yield _batch(self, text)


def pieces_of(files: Sequence[TableFile], tasks: int) -> list[Piece]:
    """Divides a table into pieces of about equal size that are read sequentially.

    Args:
        files: The table, or those of its partitions.
        tasks: How many pieces are read at a time; their number is a multiple of that, as far as
            there are blocks.
    """
    total = sum(each.blocks for each in files)
    size_bytes = sum(each.blocks * each.block_bytes for each in files)
    rounds = max(1, -(-size_bytes // (PIECE_BYTES * tasks)))
    return divided(files, max(1, -(-total // (rounds * tasks))))


def divided(files: Sequence[TableFile], step: int) -> list[Piece]:
    """Divides tables into pieces of so many blocks; small ones share a piece.

    Args:
        files: The tables; one without blocks is a piece of its own.
        step: Blocks of a piece.
    """
    pieces: list[Piece] = []
    piece: list[BlockRange] = []
    capacity = step
    for schema, name, has_blocks, blocks, *_ in files:
        if not has_blocks:
            pieces.append((BlockRange(schema, name),))
            continue
        first = 0
        while blocks - first > capacity:
            pieces.append((*piece, BlockRange(schema, name, first, first + capacity)))
            first, capacity, piece = first + capacity, step, []
        # rows after the last known block are not in the snapshot, unless just being added
        piece.append(BlockRange(schema, name, first))
        capacity -= blocks - first
        if not capacity:
            pieces.append(tuple(piece))
            capacity, piece = step, []
    return [*pieces, tuple(piece)] if piece else pieces


def oldest_running(connection: psycopg.Connection[Any]) -> int:
    """Returns a transaction such that the session's snapshot has what all earlier ones wrote."""
    row = connection.execute("SELECT txid_snapshot_xmin(txid_current_snapshot())").fetchone()
    assert row is not None  # noqa: S101  # a SELECT without FROM has one row
    return int(row[0])


def shows_changes(connection: psycopg.Connection[Any], since: int) -> bool:
    """Returns whether `xmin` still shows which rows were written since a transaction."""
    return oldest_running(connection) - since < _SNAPSHOTS_AGE_MAX


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


def _rows(columns: Iterable[Column], part: BlockRange, since: int | None) -> sql.Composed:
    """Returns the query for a range of blocks."""
    conditions: list[sql.Composable] = []
    if part.first is not None:
        conditions.append(sql.SQL("ctid >= {}::tid").format(sql.Literal(f"({part.first},0)")))
    if part.end is not None:
        conditions.append(sql.SQL("ctid < {}::tid").format(sql.Literal(f"({part.end},0)")))
    if since is not None:
        xid = max(_FIRST_XID, since & 0xFFFF_FFFF)
        conditions.append(sql.SQL("age(xmin) <= age({}::xid)").format(sql.Literal(str(xid))))
    where = sql.SQL(" WHERE ") + sql.SQL(" AND ").join(conditions) if conditions else sql.SQL("")
    return sql.SQL("SELECT {} FROM ONLY {}{}").format(
        copy_format.selected(columns), sql.Identifier(part.schema, part.name), where
    )
