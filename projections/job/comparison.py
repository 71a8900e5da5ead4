"""A mirror's table compared with its source by Spark's tasks; see `comparison_tasks`.

The source is read first and the table afterwards, as in `verification.column_pass`, so the same
follows from equal rows. Each task reads ranges of the source's key in statements of half a second
at most, so that none holds back vacuum.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from projections.archive.rebuilding.task_errors import named_errors
from projections.common.task_files import TaskFiles
from projections.errors import SinkUnavailableError
from projections.job.comparison_tasks import (
    HashedParts,
    HashSource,
    HashTable,
    MatchParts,
    PartedFiles,
    pieces_of,
)
from projections.job.spark_tasks import SparkTasks
from projections.stores.delta.row_hashes import new_seed
from projections.verification import source_rows
from projections.verification.source_rows import SourceRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from projections.archive.rebuilding.tasks import RebuildTask
    from projections.planning.job_config import JobConfig
    from projections.planning.view_plan import ViewPlan

PIECE_ROWS: Final = 500_000
"""Rows of the table's files in a piece of work, and of both sides in a part, approximately."""

KEYS_MAX: Final = 2_000_000
"""Most keys that differ and are returned, to bound the driver's memory."""

_PARTS_MAX: Final = 2_000


@dataclass(frozen=True, slots=True)
class ComparedTable:
    """The result of a comparison.

    Attributes:
        rows: Number of rows read from the source that the view should have.
        withheld: Number of rows read that it excludes.
        keys: Texts of the keys that differ.
    """

    rows: int
    withheld: int
    keys: list[str]


class TableComparison:
    """Compares the tables of mirrors with their source in a session.

    Args:
        session: The session.
        config: The job's configuration.
    """

    def __init__(self, session: SparkSession, config: JobConfig) -> None:
        self._runs = ComparisonRuns(session, config)
        self._config = config

    def compared(
        self, plan: ViewPlan, rows_expected: int, on_progress: Callable[[], None]
    ) -> ComparedTable:
        """Compares a view's table with its source once.

        Args:
            plan: The view; see `source_batches.supported`.
            rows_expected: Approximate number of its rows.
            on_progress: Called several times a second; an exception ends the comparison.

        Raises:
            VerificationError: The source cannot be read.
            SinkUnavailableError: A task failed, the rows have to be compared as documents, or more
                keys differ than the driver takes.
            RebuildSpaceError: A disk is full.
        """
        with (
            named_errors(f"view {plan.name}: its table cannot be compared", self._runs.folder),
            self._runs.files(3) as (of_source, of_table, matched),
        ):
            seed, parts = new_seed(), parts_of(rows_expected)
            sides = [
                HashedParts(plan, PartedFiles(files, parts), seed)
                for files in (of_source, of_table)
            ]
            source = self._source(sides[0], rows_expected, on_progress)
            table = self._table(sides[1], on_progress)
            require_equal_hashes(source, table)
            names = flat(source, "files"), flat(table, "files")
            match = MatchParts((sides[0], sides[1]), names, matched, -(-KEYS_MAX // parts))
            found = self._runs.run(match, parts, on_progress)
        keys = flat(found, "keys")
        if len(keys) < sum(flat(found, "differing")):
            raise SinkUnavailableError(f"view {plan.name}: too many keys of its table differ")
        rows, withheld = (sum(flat(source, name)) for name in ("rows", "withheld"))
        return ComparedTable(rows, withheld, keys)

    def _source(
        self, into: HashedParts, rows_expected: int, on_progress: Callable[[], None]
    ) -> pa.Table:
        dsn, salt = self._config.source_dsn, self._config.hiding.salt
        with source_rows.session_of(dsn, salt) as connection:
            ranges = SourceRows(connection, into.plan).ranges(rows_expected)
        work = HashSource(into, ranges, dsn, salt)
        most = self._config.load_connections
        return self._runs.run(work, len(ranges), on_progress, most)

    def _table(self, into: HashedParts, on_progress: Callable[[], None]) -> pa.Table:
        path = self._config.addresses.tables / into.plan.name
        pieces = pieces_of(DeltaTable(str(path)), path, PIECE_ROWS)
        work = HashTable(into, pieces)
        return self._runs.run(work, len(pieces), on_progress)


class ComparisonRuns:
    """Runs of tasks that compare large tables.

    Args:
        session: The session.
        config: The job's configuration.

    Attributes:
        folder: The folder of all their files.
    """

    def __init__(self, session: SparkSession, config: JobConfig) -> None:
        self.folder = comparing_folder(config)
        self._tasks = SparkTasks(session, "comparison")

    def run(
        self,
        task: RebuildTask,
        pieces: int,
        on_progress: Callable[[], None],
        tasks_max: int = _PARTS_MAX,
    ) -> pa.Table:
        """Runs tasks on pieces of work, by number, and returns the result of each.

        Args:
            task: The task.
            pieces: Number of pieces.
            on_progress: Called several times a second; an exception ends the tasks.
            tasks_max: Most tasks at a time.
        """
        results = partial(self._tasks.results, task, pieces, tasks_max=tasks_max)
        return self._tasks.watched(results, on_progress)

    @contextmanager
    def files(self, count: int) -> Iterator[list[TaskFiles]]:
        """Returns folders for runs of tasks, and removes them at the end."""
        made = [TaskFiles.made(self.folder) for _ in range(count)]
        try:
            yield made
        finally:
            for each in made:
                each.remove()


def comparing_folder(config: JobConfig) -> Path:
    """Returns the folder of the files of comparisons; a killed job leaves some there."""
    return config.addresses.tables / f".{config.source}.comparing"


def parts_of(rows: int) -> int:
    """Returns in how many parts so many rows are compared."""
    return min(_PARTS_MAX, 1 + rows // PIECE_ROWS)


def require_equal_hashes(*results: pa.Table) -> None:
    """Checks that all tasks have hashed texts equally.

    Raises:
        SinkUnavailableError: They have not.
    """
    if len({value for each in results for value in flat(each, "text_hash")}) > 1:
        raise SinkUnavailableError(
            "tasks hash texts differently", hint="PYTHONHASHSEED is set on some machines"
        )


def flat(results: pa.Table, name: str) -> list[Any]:
    """Returns a column of the results of pieces; of lists, all their values."""
    column = results[name]
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        column = pc.list_flatten(column)
    values: list[Any] = column.to_pylist()
    return values
