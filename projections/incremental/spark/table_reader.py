"""Versions of tables as DataFrames; small tables are read without Delta's planning.

Spark's Delta runs a job for each mention of a table in a query, to read statistics by which it
skips files. A derived view mentions each of its inputs several times, at every boundary, and most
inputs are a few files: reading those completely costs less.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql.types import StructType

from projections.common.delta_log import plain
from projections.definition.columns import BOOKKEEPING, VERSION_COLUMN
from projections.definition.operators.measures import quoted
from projections.stores.delta import merge_columns

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

FILES_MAX: Final = 96
"""Most files of a small table: more than accumulate between two compactions, and fewer than Spark
lists in a job of its own (see `session`)."""

BYTES_MAX: Final = 128 << 20
"""Most bytes of a small table; in a larger one, skipping files pays."""

ROWS_OF_A_TASK: Final = 250_000
"""Most rows of a table that one task reads: grouping or joining them then needs no other stage."""

CHANGES_MAX: Final = 20_000
"""Most changed rows that the driver holds; Spark's workers read more."""

_KEPT: Final = 64
_CHANGES_KEPT: Final = 4
"""Sets of changed rows that are cached: those of one boundary, for all views that read them."""
_OWN_COLUMNS: Final = (VERSION_COLUMN, *BOOKKEEPING)


class _Files(NamedTuple):
    """The files of a table version."""

    paths: tuple[str, ...]
    size_bytes: int
    rows: int | None
    schema: StructType
    plain: bool
    parted: bool


class FewChanges(NamedTuple):
    """Changed rows in the driver, before and after the change, in any order.

    Attributes:
        rows: The changed rows.
        schema: Their Spark schema.
    """

    rows: pa.Table
    schema: StructType


class TableVersions:
    """Reads views' tables, each at a version, and their changes between two.

    Frames are cached, so a table that many views read is planned once. Thread-safe.

    Args:
        session: The session.
        root: Folder of the tables.
        files_max: Most files that are read without Delta's planning; 0 to always use it.
    """

    def __init__(self, session: SparkSession, root: Path, files_max: int = FILES_MAX) -> None:
        self.session = session
        self._root = root
        self._files_max = files_max
        self._frames: OrderedDict[tuple[str, int], DataFrame] = OrderedDict()
        self._files: OrderedDict[tuple[str, int], _Files] = OrderedDict()
        self._changes: OrderedDict[tuple[str, int, int], FewChanges | None] = OrderedDict()
        self._lock = threading.Lock()

    def count(self, name: str, version: int) -> int | None:
        """Returns the number of rows of a version from its log; None if unknown.

        Rows removed by deletion vectors are included.
        """
        try:
            return self._files_of(name, version).rows
        except DeltaError:
            return None

    def rows(self, name: str, version: int) -> DataFrame:
        """Returns the rows of a view's table at a version.

        Raises:
            PySparkException: The table or the version no longer exists.
        """
        key = name, version
        with self._lock:
            if key in self._frames:
                self._frames.move_to_end(key)
                return self._frames[key]
        frame = self._small(name, version)
        if frame is None:
            reader = self.session.read.format("delta").option("versionAsOf", version)
            frame = reader.load(str(self._root / name))
        frame = frame.drop(*_OWN_COLUMNS)
        with self._lock:
            self._frames[key] = frame
            while len(self._frames) > _KEPT:
                self._frames.popitem(last=False)
        return frame

    def changes(self, name: str, after: int, through: int) -> DataFrame:
        """Returns rows before and after, of all changes between two versions.

        Args:
            name: The view.
            after: The last version whose changes are left out.
            through: The last version whose changes are included.

        Raises:
            PySparkException: The change feed does not reach back that far; possibly raised when the
                rows are read.
        """
        few = self.few_changes(name, after, through)
        if few is not None:
            return self.session.createDataFrame(few.rows, few.schema).coalesce(1)
        reader = (
            self.session.read.format("delta")
            .option("readChangeFeed", "true")
            .option("startingVersion", after + 1)
            .option("endingVersion", through)
        )
        frame = reader.load(str(self._root / name))
        return frame.drop(*_OWN_COLUMNS, "_change_type", "_commit_version", "_commit_timestamp")

    def forget(self) -> None:
        """Clears the cache: a recreated table numbers its versions from the start."""
        with self._lock:
            self._frames.clear()
            self._files.clear()
            self._changes.clear()

    def _small(self, name: str, version: int) -> DataFrame | None:
        """Returns a table's rows from its files; None if they are many, or need Delta's reader."""
        if not self._files_max:
            return None
        try:
            files = self._files_of(name, version)
        except DeltaError:
            return None  # Spark reports the error
        small = len(files.paths) <= self._files_max and files.size_bytes <= BYTES_MAX
        if not small or not files.plain:
            return None
        if not files.paths:
            return self.session.createDataFrame([], files.schema)
        rows = self._of_files(name, files)
        few = files.rows is not None and files.rows <= ROWS_OF_A_TASK
        return rows.coalesce(1) if few else rows

    def _of_files(self, name: str, files: _Files) -> DataFrame:
        reader = self.session.read.schema(files.schema)
        if not files.parted:
            return reader.parquet(*files.paths)
        # partition columns are not in files, but in the table's folder names
        frame = reader.option("basePath", str(self._root / name)).parquet(*files.paths)
        return frame.select(*(quoted(each) for each in files.schema.names))

    def _files_of(self, name: str, version: int) -> _Files:
        key = name, version
        with self._lock:
            if key in self._files:
                return self._files[key]
        table = DeltaTable(str(self._root / name), version=version)
        actions = pa.table(table.get_add_actions(flatten=True))
        rows = actions["num_records"].to_pylist()
        files = _Files(
            tuple(table.file_uris()),
            sum(actions["size_bytes"].to_pylist()),
            None if None in rows else sum(rows),
            _schema(table),
            plain(table),
            bool(table.metadata().partition_columns),
        )
        with self._lock:
            self._files[key] = files
            while len(self._files) > _KEPT:
                self._files.popitem(last=False)
        return files

    def few_changes(self, name: str, after: int, through: int) -> FewChanges | None:
        """Returns the rows of `changes` in the driver; None if they are many.

        Args:
            name: The view.
            after: The last version whose changes are left out.
            through: The last version whose changes are included.
        """
        key = name, after, through
        with self._lock:
            if key in self._changes:
                return self._changes[key]
        few = self._read_changes(name, after, through) if self._files_max else None
        with self._lock:
            self._changes[key] = few
            while len(self._changes) > _CHANGES_KEPT:
                self._changes.popitem(last=False)
        return few

    def _read_changes(self, name: str, after: int, through: int) -> FewChanges | None:
        path = str(self._root / name)
        try:
            table, before = DeltaTable(path, version=through), DeltaTable(path, version=after)
            schema = _schema(table)
            if not plain(table) or schema != _schema(before):
                return None
            names = [field.name for field in schema if field.name not in _OWN_COLUMNS]
            read = [merge_columns.quoted(name) for name in names]  # it takes them for SQL
            reader = pa.RecordBatchReader.from_stream(
                table.load_cdf(starting_version=after + 1, ending_version=through, columns=read)
            )
            batches, count = [], 0
            for batch in reader:
                count += batch.num_rows
                if count > CHANGES_MAX:
                    return None
                batches.append(batch)
            rows = pa.Table.from_batches(batches, reader.schema).select(names)
        except (DeltaError, pa.ArrowException, OSError):
            return None  # Spark reports the error
        return FewChanges(rows, StructType([schema[name] for name in names]))


def _schema(table: DeltaTable) -> StructType:
    return StructType.fromJson(orjson.loads(table.schema().to_json()))
