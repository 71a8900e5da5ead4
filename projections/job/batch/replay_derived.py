"""Replay of derived views: runs their queries over tables of one boundary, in one batch each.

It runs the job's definitions once over all rows, with the job's writer, without an earlier boundary
or stored state. A view that was maintained change by change can thus be compared with its complete
computation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from projections.errors import DuplicateKeyError, QueryFailedError, ViewHaltedError, ViewQueryError
from projections.incremental.spark.maintainer import DerivedMaintainer
from projections.incremental.spark.query_fault import query_fault
from projections.incremental.spark.table_reader import TableVersions
from projections.job.batch.compare_derived import counted, wrong
from projections.job.spark.session import session_beside
from projections.publishing.published_content import PublishedVersion, TableVersion
from projections.verification.report import KeyFinding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from projections.definition.views import DerivedView
    from projections.job.batch.compare_derived import Counts
    from projections.planning.job_config import JobConfig

_NAMED: Final = 10
"""Most wrong keys that are named; a repair computes the whole view again."""

_WHY: Final = {each.code: each for each in (DuplicateKeyError, ViewHaltedError, QueryFailedError)}


@dataclass(frozen=True, slots=True)
class ReplayComparison:
    """The active version of a view, beside its query's result over former tables.

    Attributes:
        counts: Rows that differ; None if the columns do.
        examples: Some of their keys.
        columns: Columns that only one of both has, or with another type.
    """

    counts: Counts | None
    examples: tuple[KeyFinding, ...] = ()
    columns: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether both have the same rows."""
        counts = self.counts
        return counts is not None and not (counts.missing or counts.extra or counts.different)


class DerivedReplay:
    """Computes derived views from tables of one boundary.

    Args:
        session: The Spark session.
        root: Folder of the tables, in which the views get theirs.
        physical_names: Folder in `root` of each table that is no derived view's, by view.
        epoch: Incarnation of the source, of the boundary.
        lsn: The boundary, in bytes.
    """

    def __init__(
        self,
        session: SparkSession,
        root: Path,
        physical_names: Mapping[str, str],
        epoch: int,
        lsn: int,
    ) -> None:
        self._versions = TableVersions(session, root, files_max=0)
        self._root = root
        self._physical_names = dict(physical_names)
        self._known = {
            physical_name: TableVersion(DeltaTable(str(root / physical_name)).version(), epoch, lsn)
            for physical_name in physical_names.values()
        }
        self._boundary = PublishedVersion(1, epoch, lsn, 0, {})

    def make(self, views: Sequence[DerivedView]) -> int:
        """Computes views, each after its inputs.

        Returns:
            The row count of the last one.

        Raises:
            ViewQueryError: A query does not fit these tables.
            QueryFailedError: Spark cannot run it.
            DuplicateKeyError: The key of a view does not identify its rows.
            ViewHaltedError: A row does not meet an expectation.
        """
        for view in views:
            maintainer = DerivedMaintainer(self._root, view, self._versions)
            try:
                made = maintainer.maintain(self._boundary, self._known, None, self._physical_names)
            except (PySparkException, Py4JJavaError) as error:
                fault = query_fault(view.name, error)
                why = _WHY.get(fault.code, ViewQueryError)
                raise why(fault.message, detail=fault.detail, hint=fault.hint) from None
            if made is None:
                missing = ", ".join(view.inputs)
                raise ViewQueryError(f"view {view.name} lacks what it reads", detail=missing)
            self._known[view.name] = made
        return self._made(views[-1]).count()

    def compare(
        self, view: DerivedView, tables: Path, physical_name: str, version: int
    ) -> ReplayComparison:
        """Compares a computed view with the stored one.

        Args:
            view: The view.
            tables: Folder of the job's tables.
            physical_name: Folder there of the view's table.
            version: Version of that table.

        Raises:
            ViewQueryError: One of both cannot be read.
        """
        stored = TableVersions(self._versions.session, tables, files_max=0)
        try:
            return _compared(self._made(view), stored.rows(physical_name, version), view.keys)
        except (PySparkException, Py4JJavaError) as error:
            fault = query_fault(view.name, error)
            raise ViewQueryError(
                f"the table of view {view.name} cannot be read", detail=fault.detail
            ) from None

    def _made(self, view: DerivedView) -> DataFrame:
        return self._versions.rows(view.name, self._known[view.name].version)


def replay_beside(
    config: JobConfig, root: Path, physical_names: Mapping[str, str], epoch: int, lsn: int
) -> DerivedReplay:
    """Begins a replay in a driver beside the job's; see `DerivedReplay`.

    Args:
        config: How Spark is run.
        root: Folder of the tables.
        physical_names: Folder in `root` of each table that is no derived view's, by view.
        epoch: Incarnation of the source, of the boundary.
        lsn: The boundary, in bytes.
    """
    return DerivedReplay(session_beside(config), root, physical_names, epoch, lsn)


def _compared(made: DataFrame, stored: DataFrame, keys: Sequence[str]) -> ReplayComparison:
    types = [{f.name: f.dataType.simpleString() for f in each.schema} for each in (made, stored)]
    names = [*made.columns, *(name for name in stored.columns if name not in types[0])]
    unlike = tuple(name for name in names if types[0].get(name) != types[1].get(name))
    if unlike:
        return ReplayComparison(None, columns=unlike)
    counts = counted(made, stored, keys)
    comparison = ReplayComparison(counts)
    if comparison.same:
        return comparison
    examples = wrong(made, stored, keys, counts, _NAMED)
    return ReplayComparison(
        counts,
        tuple(
            KeyFinding(", ".join(_text(part) for part in each.key), each.verdict, 0, each.columns)
            for each in examples
        ),
    )


def _text(part: object) -> str:
    return "NULL" if part is None else str(part)
