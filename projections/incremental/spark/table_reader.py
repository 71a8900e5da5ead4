"""Versions of tables as DataFrames, read without Delta's planning where they are small.

Spark's Delta runs a job for each mention of a table in a query, to look up statistics that let it
pass files over. A derived view mentions each of its inputs several times, at every boundary, and
the inputs of most are a few files: reading those whole costs less than to ask.
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

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

FILES_MAX: Final = 96
"""Files of a small table: more than lie there between two compactions, and fewer than those that
Spark lists in a job of its own (see `session`)."""

BYTES_MAX: Final = 128 << 20
"""Bytes of a small table; in a larger one, files are worth passing over."""

ROWS_OF_A_TASK: Final = 250_000
"""Rows of a table that one task reads: what is grouped or joined is not sent to another stage."""

CHANGES_MAX: Final = 20_000
"""Changed rows that the driver holds; more are read by Spark's workers."""

_KEPT: Final = 64
_CHANGES_KEPT: Final = 4
"""Sets of changed rows that are kept: those of one boundary, for all views that read them."""
_OWN_COLUMNS: Final = (VERSION_COLUMN, *BOOKKEEPING)


class _Files(NamedTuple):
    """What a version of a table consists of."""

    paths: tuple[str, ...]
    size_bytes: int
    rows: int | None
    schema: StructType
    plain: bool
    parted: bool


class FewChanges(NamedTuple):
    """Changed rows that the driver holds: as they were and as they are, in whatever order.

    Attributes:
        rows: The changed rows.
        schema: Their columns as Spark has them.
    """

    rows: pa.Table
    schema: StructType


class TableVersions:
    """Reads views' tables, each at a version, and their changes between two.

    A frame that was made once is given again, so a table that many views read is planned once.
    Used by several threads at once.

    Args:
        session: Where.
        root: Folder of the tables.
        files_max: Files of the tables that are read without Delta's planning; 0 for none at all.
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
        """Returns how many rows a version has as its log says; None if it does not say.

        Rows that deletion vectors take away count as well.
        """
        try:
            return self._files_of(name, version).rows
        except DeltaError:
            return None

    def rows(self, name: str, version: int) -> DataFrame:
        """Returns a view's rows at a version of its table.

        Raises:
            PySparkException: The table is not there, or the version is not any more.
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
        """Returns rows as they were and as they are, of all changes between two versions.

        Args:
            name: The view.
            after: The last version whose changes are left out.
            through: The last version whose changes are included.

        Raises:
            PySparkException: The feed of changes does not reach back so far; also later, when the
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
        found = reader.load(str(self._root / name))
        return found.drop(*_OWN_COLUMNS, "_change_type", "_commit_version", "_commit_timestamp")

    def forget(self) -> None:
        """Forgets all frames: a table that is recreated counts its versions from the start."""
        with self._lock:
            self._frames.clear()
            self._files.clear()
            self._changes.clear()

    def _small(self, name: str, version: int) -> DataFrame | None:
        """A table's rows from its files; None if they are many, or not read as they are."""
        if not self._files_max:
            return None
        try:
            files = self._files_of(name, version)
        except DeltaError:
            return None  # Spark says what is wrong
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
        # columns that a table is parted by are in no file: the folders in its own are called so
        found = reader.option("basePath", str(self._root / name)).parquet(*files.paths)
        return found.select(*(quoted(each) for each in files.schema.names))

    def _files_of(self, name: str, version: int) -> _Files:
        key = name, version
        with self._lock:
            if key in self._files:
                return self._files[key]
        table = DeltaTable(str(self._root / name), version=version)
        actions = pa.table(table.get_add_actions(flatten=True))
        rows = actions["num_records"].to_pylist()
        found = _Files(
            tuple(table.file_uris()),
            sum(actions["size_bytes"].to_pylist()),
            None if None in rows else sum(rows),
            _schema(table),
            plain(table),
            bool(table.metadata().partition_columns),
        )
        with self._lock:
            self._files[key] = found
            while len(self._files) > _KEPT:
                self._files.popitem(last=False)
        return found

    def few_changes(self, name: str, after: int, through: int) -> FewChanges | None:
        """Returns what `changes` does as rows that the driver holds; None if they are many.

        Args:
            name: The view.
            after: The last version whose changes are left out.
            through: The last version whose changes are included.
        """
        key = name, after, through
        with self._lock:
            if key in self._changes:
                return self._changes[key]
        found = self._read_changes(name, after, through) if self._files_max else None
        with self._lock:
            self._changes[key] = found
            while len(self._changes) > _CHANGES_KEPT:
                self._changes.popitem(last=False)
        return found

    def _read_changes(self, name: str, after: int, through: int) -> FewChanges | None:
        path = str(self._root / name)
        try:
            table, before = DeltaTable(path, version=through), DeltaTable(path, version=after)
            schema = _schema(table)
            if not plain(table) or schema != _schema(before):
                return None
            names = [field.name for field in schema if field.name not in _OWN_COLUMNS]
            reader = pa.RecordBatchReader.from_stream(
                table.load_cdf(starting_version=after + 1, ending_version=through, columns=names)
            )
            batches, count = [], 0
            for batch in reader:
                count += batch.num_rows
                if count > CHANGES_MAX:
                    return None
                batches.append(batch)
            rows = pa.Table.from_batches(batches, reader.schema).select(names)
        except (DeltaError, pa.ArrowException, OSError):
            return None  # Spark says what is wrong
        return FewChanges(rows, StructType([schema[name] for name in names]))


def _schema(table: DeltaTable) -> StructType:
    return StructType.fromJson(orjson.loads(table.schema().to_json()))
