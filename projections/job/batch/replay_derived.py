"""Replay of derived views: what their queries make of tables that stand still, in one batch each.

It is the definition that the job keeps, run once over all rows by the writer that the job has, with
no boundary before it and nothing remembered. So what a view has become change by change can be
compared with what it is when everything is there from the start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from projections.errors import DuplicateKeyError, QueryFailedError, ViewHaltedError, ViewQueryError
from projections.incremental.spark.maintainer import DerivedKeeper, query_fault
from projections.incremental.spark.table_reader import TableVersions
from projections.job.batch.compare_derived import counted, wrong
from projections.job.spark.session import session_beside
from projections.publishing.published_versions import PublishedVersion, TableVersion
from projections.verification.report import KeyFinding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from projections.definition.views import DerivedView
    from projections.job.batch.compare_derived import Counts
    from projections.planning.job_config import JobConfig

_NAMED: Final = 10
"""Keys that are named of those that are wrong: a view is made anew as a whole."""

_WHY: Final = {each.code: each for each in (DuplicateKeyError, ViewHaltedError, QueryFailedError)}


@dataclass(frozen=True, slots=True)
class ReplayComparison:
    """What readers see of a view, beside what its query makes of former tables.

    Attributes:
        counts: Rows that differ; None if the columns do.
        examples: A few of them by their keys.
        columns: Columns that only one of both has, or that have another type there.
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
    """Makes derived views from tables that stand still.

    Args:
        session: Where.
        root: Folder of the tables, in which the views get theirs.
        places: Folder in `root` of the table of each view that is no derived one, by view.
        epoch: Incarnation of the source at which the tables stand.
        lsn: Their position, in bytes.
    """

    def __init__(
        self, session: SparkSession, root: Path, places: Mapping[str, str], epoch: int, lsn: int
    ) -> None:
        self._versions = TableVersions(session, root, files_max=0)
        self._root = root
        self._places = dict(places)
        self._known = {
            place: TableVersion(DeltaTable(str(root / place)).version(), epoch, lsn)
            for place in places.values()
        }
        self._boundary = PublishedVersion(1, epoch, lsn, 0, {})

    def make(self, views: Sequence[DerivedView]) -> int:
        """Makes views, each after those that it is made from.

        Args:
            views: They, in that order.

        Returns:
            How many rows the last one has.

        Raises:
            ViewQueryError: A query does not fit these tables.
            QueryFailedError: Spark cannot run it.
            DuplicateKeyError: The key of a view does not identify its rows.
            ViewHaltedError: A row is not as it has to be.
        """
        for view in views:
            keeper = DerivedKeeper(self._root, view, self._versions)
            try:
                made = keeper.keep(self._boundary, self._known, None, self._places)
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
        self, view: DerivedView, tables: Path, place: str, version: int
    ) -> ReplayComparison:
        """Compares a view that was made with one that is kept.

        Args:
            view: The view.
            tables: Folder of the tables that the job keeps.
            place: Folder there of the view's table.
            version: Version of the view's table there.

        Raises:
            ViewQueryError: One of both cannot be read.
        """
        kept = TableVersions(self._versions.session, tables, files_max=0)
        try:
            return _compared(self._made(view), kept.rows(place, version), view.keys)
        except (PySparkException, Py4JJavaError) as error:
            fault = query_fault(view.name, error)
            raise ViewQueryError(
                f"the table of view {view.name} cannot be read", detail=fault.detail
            ) from None

    def _made(self, view: DerivedView) -> DataFrame:
        return self._versions.rows(view.name, self._known[view.name].version)


def replay_beside(
    config: JobConfig, root: Path, places: Mapping[str, str], epoch: int, lsn: int
) -> DerivedReplay:
    """Begins a replay in a driver beside the job's; see `DerivedReplay`.

    Args:
        config: How Spark is run.
        root: Folder of the tables.
        places: Folder in `root` of the table of each view that is no derived one, by view.
        epoch: Incarnation of the source at which the tables stand.
        lsn: Their position, in bytes.
    """
    return DerivedReplay(session_beside(config), root, places, epoch, lsn)


def _compared(made: DataFrame, kept: DataFrame, keys: Sequence[str]) -> ReplayComparison:
    types = [{f.name: f.dataType.simpleString() for f in each.schema} for each in (made, kept)]
    names = [*made.columns, *(name for name in kept.columns if name not in types[0])]
    unlike = tuple(name for name in names if types[0].get(name) != types[1].get(name))
    if unlike:
        return ReplayComparison(None, columns=unlike)
    counts = counted(made, kept, keys)
    found = ReplayComparison(counts)
    if found.same:
        return found
    examples = wrong(made, kept, keys, counts, _NAMED)
    return ReplayComparison(
        counts,
        tuple(
            KeyFinding(", ".join(_text(part) for part in each.key), each.verdict, 0, each.columns)
            for each in examples
        ),
    )


def _text(part: object) -> str:
    return "NULL" if part is None else str(part)
