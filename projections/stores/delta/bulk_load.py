"""Bulk load: fills a view's new table directly from the source, in several parallel parts.

The rows are those of one database snapshot, taken after the log position of a whole-table snapshot
of the table, and have that snapshot's version. They are therefore ordered like its own records:
every change that the database snapshot does not see has a greater version and arrives by the
stream, from its exact position on; every older change loses. The records of the whole-table
snapshot add nothing that the load lacks, or that the stream does not remove again, so the sink
skips them (the table records which: `headwater.loaded`). The topic and the archive contain them all
the same.

Readers never see a partial load: the table is written beside its path and moved there when it is
complete. A killed load leaves a folder behind, which the next one removes.
"""

from __future__ import annotations

import base64
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from psycopg import sql
from pyarrow import csv

from cdc.postgres import catalog, session, treatment
from cdc.snapshot import expression
from cdc.table import ColumnKind
from projections.common.file_lock import WriterLock
from projections.errors import LoadFailedError, UnholdableValueError
from projections.stores.delta.arrow import arrow_type, deletes_schema, table_schema
from projections.stores.delta.table_format import COMPACTED_BYTES, CONFIGURATION, LOADED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from cdc.column_rule import ColumnRules
    from cdc.table import Column, TableName
    from projections.planning.view_plan import ViewPlan

PARTS_PER_WORKER: Final = 8
"""Parts for each worker: enough that all workers finish at about the same time."""

_BLOCK_BYTES: Final = 16 << 20
_PAGES: Final = """
WITH leaves AS (SELECT %(root)s::regclass AS relid
                 WHERE (SELECT relkind FROM pg_class WHERE oid = %(root)s::regclass) = 'r'
                UNION ALL
                SELECT relid FROM pg_partition_tree(%(root)s::regclass) WHERE isleaf)
SELECT DISTINCT n.nspname, c.relname,
       pg_relation_size(c.oid) / current_setting('block_size')::bigint, c.relkind = 'r'
  FROM leaves JOIN pg_class c ON c.oid = leaves.relid
  JOIN pg_namespace n ON n.oid = c.relnamespace
"""
_TIME: Final = "to_char({}, 'HH24:MI:SS.US')"
_NO_TIME: Final = "24:"  # 24:00:00, a time of day that neither Python nor any store supports
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
class Load:
    """Source and destination of a load.

    Attributes:
        plan: The view: a mirror of one table with a key.
        version: Version of the whole-table snapshot whose position has been reached; see
            `ChangePosition.version`.
        dsn: The source, with the capture role.
        root: Folder of the tables.
        rules: Rules for excluded, hashed and masked columns.
        salt: Salt for hashed columns.
        workers: Number of parts read in parallel.
    """

    plan: ViewPlan
    version: int
    dsn: str = field(repr=False)
    root: Path
    rules: Mapping[TableName, ColumnRules] = field(default_factory=dict)
    salt: str | None = field(default=None, repr=False)
    workers: int = 2


@dataclass(frozen=True, slots=True)
class _Part:
    """A range of blocks of a table or partition; of a foreign table, all rows."""

    relation: sql.Composable
    first: int | None = None
    end: int | None = None


def load(load: Load) -> int | None:
    """Fills the new table of a view.

    Returns:
        The number of rows; None if the view already has a table, which stays unchanged.

    Raises:
        LoadFailedError: The source cannot be read as planned, or the table cannot be written.
        UnholdableValueError: A value has no exact form in a table.
    """
    plan, root = load.plan, load.root
    place, staging = root / plan.name, root / f".{plan.name}.loading"
    with WriterLock(root / f".{plan.name}.lock", wait=True):
        if DeltaTable.is_deltatable(str(place)):
            return None
        shutil.rmtree(staging, ignore_errors=True)
        try:
            properties = {**CONFIGURATION, LOADED: str(load.version)}
            DeltaTable.create(
                str(staging),
                table_schema(plan),
                configuration=properties,
                raise_if_key_not_exists=False,
            )
            rows = _fill(load, str(staging))
            deleted = str(root / f"{plan.name}.deleted")
            if not DeltaTable.is_deltatable(deleted):
                DeltaTable.create(deleted, deletes_schema(plan), configuration=dict(CONFIGURATION))
            staging.rename(place)
        except (DeltaError, OSError, psycopg.Error, pa.ArrowException) as error:
            raise LoadFailedError(
                f"view {plan.name} cannot be loaded from the source",
                detail=getattr(error, "sqlstate", None) or type(error).__name__,
            ) from None
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return rows


def _fill(load: Load, table: str) -> int:
    with _session(load) as holder:
        _refuse_other_columns(holder, load)
        row = holder.execute("SELECT pg_export_snapshot()").fetchone()
        snapshot = str(row[0] if row else "")
        parts = _parts(holder, load)
        # every other part, so that no worker gets all the full ones
        shares = [parts[number :: load.workers] for number in range(load.workers)]
        with ThreadPoolExecutor(load.workers, thread_name_prefix="load") as pool:
            work = (pool.submit(_append, load, table, snapshot, share) for share in shares if share)
            return sum(future.result() for future in list(work))


def _append(load: Load, table: str, snapshot: str, parts: Sequence[_Part]) -> int:
    """Appends parts of the source's table in one commit; returns the number of rows."""
    rows = 0
    failure: list[Exception] = []
    with _session(load, snapshot) as connection:

        def batches() -> Iterator[pa.RecordBatch]:
            nonlocal rows
            try:
                for part in parts:
                    for batch in _read(connection, load, part):
                        rows += batch.num_rows
                        yield batch
            except Exception as error:  # an error that passes through the library loses its class
                failure.append(error)
                raise

        reader = pa.RecordBatchReader.from_batches(table_schema(load.plan), batches())
        try:
            write_deltalake(table, reader, mode="append", target_file_size=COMPACTED_BYTES)
        except Exception:
            if failure:
                raise failure[0] from None
            raise
    return rows


def _read(connection: psycopg.Connection[Any], load: Load, part: _Part) -> Iterator[pa.RecordBatch]:
    columns = load.plan.schema.columns
    where: sql.Composable = sql.SQL("")
    if part.first is not None:
        where = sql.SQL(" WHERE ctid >= {}::tid").format(sql.Literal(f"({part.first},0)"))
    if part.end is not None:
        where += sql.SQL(" AND ctid < {}::tid").format(sql.Literal(f"({part.end},0)"))
    query = sql.SQL("COPY (SELECT {} FROM {}{}) TO STDOUT (FORMAT csv)").format(
        sql.SQL(", ").join(_expression(column) for column in columns), part.relation, where
    )
    rows: list[bytes | bytearray | memoryview] = []
    size = 0
    with connection.cursor().copy(query) as copy:
        for row in copy:
            rows.append(row)
            size += len(row)
            if size >= _BLOCK_BYTES:
                yield _batch(load, b"".join(rows))
                rows, size = [], 0
    if rows:
        yield _batch(load, b"".join(rows))


def _batch(load: Load, text: bytes) -> pa.RecordBatch:
    """Converts rows in Postgres' CSV form: NULL is an empty field, and an empty text is quoted."""
    columns = load.plan.schema.columns
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
        raise _unholdable(load.plan) from None
    arrays = [
        _array(load.plan, column, table.column(number)) for number, column in enumerate(columns)
    ]
    version = pa.chunked_array([pa.repeat(pa.scalar(load.version, pa.int64()), table.num_rows)])
    schema = table_schema(load.plan)
    # a row read from the table has no record, so its commit time is unknown
    times = [pa.nulls(table.num_rows, schema.field(name).type) for name, _ in load.plan.times]
    if load.plan.inserted_at:
        times.append(pa.repeat(pa.scalar(0, pa.int64()), table.num_rows))
    found = pa.Table.from_arrays([*arrays, *times, version], schema=schema)
    return found.combine_chunks().to_batches()[0]


def _array(plan: ViewPlan, column: Column, values: pa.ChunkedArray) -> pa.ChunkedArray:
    if column.kind is ColumnKind.TIME and pc.any(pc.starts_with(values, _NO_TIME)).as_py():
        raise _unholdable(plan)
    if _csv_type(column) == arrow_type(column):
        return values
    decoded = [None if text is None else base64.b64decode(text) for text in values.to_pylist()]
    return pa.chunked_array([pa.array(decoded, arrow_type(column))])


def _csv_type(column: Column) -> pa.DataType:
    return pa.string() if column.kind is ColumnKind.BYTES else arrow_type(column)


def _expression(column: Column) -> sql.Composable:
    name = sql.Identifier(column.name)
    if column.treatment is None:
        if column.kind in (ColumnKind.BOOLEAN, ColumnKind.INTEGER):
            return name
        if column.kind is ColumnKind.TIME:
            return sql.SQL(_TIME).format(name)
    return expression.as_text(column)


def _parts(connection: psycopg.Connection[Any], load: Load) -> list[_Part]:
    """Divides the table into block ranges, each of which is read sequentially."""
    table = load.plan.schema.table
    root = sql.Identifier(table.schema, table.name).as_string(connection)
    relations = connection.execute(_PAGES, {"root": root}).fetchall()
    total = sum(pages for _, _, pages, _ in relations)
    step = max(1, -(-total // (load.workers * PARTS_PER_WORKER)))
    found = []
    for schema, name, pages, plain in relations:
        relation = sql.SQL("ONLY {}").format(sql.Identifier(schema, name))
        if not plain:
            found.append(_Part(relation))
            continue
        # rows after the last known block are not in this snapshot, unless just being added
        bounds: list[int | None] = [*range(0, max(pages, 1), step), None]
        found += [_Part(relation, first, end) for first, end in pairwise(bounds)]
    return found


def _refuse_other_columns(connection: psycopg.Connection[Any], load: Load) -> None:
    table = load.plan.schema.table
    found = catalog.describe(connection, [table], load.rules).get(table)
    left_out = {column.name for column in load.plan.left_out}
    columns = () if found is None else tuple(c for c in found.columns if c.name not in left_out)
    if columns != load.plan.schema.columns:
        raise LoadFailedError(
            f"the columns of table {table} changed since view {load.plan.name} was planned"
        )


@contextmanager
def _session(load: Load, snapshot: str | None = None) -> Iterator[psycopg.Connection[Any]]:
    """Opens a transaction on the given snapshot, or on a new one."""
    with session.connect(load.dsn, autocommit=False, options=_OPTIONS) as connection:
        if snapshot is not None:
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        treatment.prepare(connection, load.salt)
        yield connection


def _unholdable(plan: ViewPlan) -> UnholdableValueError:
    return UnholdableValueError(
        f"view {plan.name}: a value has no exact representation in a table",
        hint="the stream loads the rows instead, and quarantines those that do not fit",
    )
