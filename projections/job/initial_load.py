"""Initial load: large tables are loaded into a new view's table directly from the source.

That applies to a mirror of a table with a key, without expectations and without a Delta table,
while a snapshot of its source table is under way or done; the rows get the snapshot's position. If
anything prevents it, the stream fills the view like any other: the load is only faster.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
import structlog
from deltalake import DeltaTable

from cdc.errors import CdcError
from cdc.position import ChangePosition
from cdc.postgres import table_size
from cdc.postgres.session import connect
from cdc.snapshot import reads
from projections.definition.views import Store
from projections.errors import ProjectionError, ReplayStoppedError
from projections.job import bulk_load
from projections.job.bulk_load import Load
from projections.stores.delta.source_copy import SourceCopy

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from cdc.snapshot.reads import Read
    from projections.planning.job_config import JobConfig
    from projections.planning.job_spec import JobSpec
    from projections.planning.view_plan import ViewPlan

BEGIN_WAIT_S: Final = 15.0
"""How long a requested read may take to begin, seconds."""

_POLL_S: Final = 0.25
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a running load is.

    Attributes:
        view: The view.
        rows: Approximate number of copied rows.
        rows_expected: Approximate number of rows of its table.
        left_s: Seconds until all are copied, at the present rate; None before the first range is.
    """

    view: str
    rows: int
    rows_expected: int
    left_s: float | None


class LoadRate:
    """Estimates the rest of a load, which may continue one that was stopped."""

    def __init__(self) -> None:
        self._begun: tuple[float, float] | None = None

    def left_s(self, share: float) -> float | None:
        """Returns the seconds until all rows are copied; None as long as no rate is known.

        Args:
            share: The copied share of the rows, 0 to 1; that of the first call was copied before.
        """
        now_s = time.monotonic()
        if self._begun is None:
            self._begun = now_s, share
        begun_s, before = self._begun
        return (now_s - begun_s) * (1 - share) / (share - before) if share > before else None


def load_new(
    session: SparkSession,
    spec: JobSpec,
    stopped: Callable[[], bool] = lambda: False,
    on_progress: Callable[[LoadProgress | None], None] = lambda _: None,
) -> dict[str, int]:
    """Loads the new and large views of a job; returns their row counts by name.

    Args:
        session: The job's session.
        spec: The job.
        stopped: Returns whether to give up loads; asked several times a second.
        on_progress: Receives the progress of each load several times a second; None after it.

    Raises:
        ReplayStoppedError: They were given up. A view whose load has not ended has no table, and
            must not get one yet: the load continues at the next start.
    """
    row_counts = {}
    for plan in _large(spec, [plan for plan in spec.plans_in(Store.TABLE) if _new(spec, plan)]):
        _check(stopped)
        try:
            rows = _load(session, spec.config, plan, stopped, on_progress)
        except (CdcError, ProjectionError, psycopg.Error) as error:
            _check(stopped)  # Spark ends, too
            _log.warning(
                "view is not loaded, the stream fills it",
                view=plan.name,
                error=getattr(error, "code", type(error).__name__),
            )
            continue
        finally:
            on_progress(None)
        if rows is not None:
            _log.info("view loaded from the source", view=plan.name, rows=rows)
            row_counts[plan.name] = rows
        _check(stopped)
    # the stream fills the views of what is left
    bulk_load.remove_unfinished(spec.config.addresses.tables, spec.config.source)
    return row_counts


def _check(stopped: Callable[[], bool]) -> None:
    if stopped():
        raise ReplayStoppedError("initial loads were stopped")


def _new(spec: JobSpec, plan: ViewPlan) -> bool:
    """Returns whether a view's definition and table permit a load."""
    if plan.events is not None or plan.history is not None or plan.append_only:
        return False
    if plan.expectations:
        return False  # they are checked only for rows of the stream
    return not DeltaTable.is_deltatable(str(spec.config.addresses.tables / plan.name))


def _large(spec: JobSpec, plans: list[ViewPlan]) -> list[ViewPlan]:
    """Returns the views whose tables may be large; for others, no snapshot is awaited."""
    if not plans:
        return []
    try:
        with connect(spec.config.source_dsn) as connection:
            tables = [plan.schema.table for plan in plans]
            rows = table_size.rows_at_most(connection, tables)
    except (CdcError, psycopg.Error):
        return plans  # loading each view reports the error
    least = spec.config.load_rows_min
    return [plan for plan in plans if rows.get(plan.schema.table, least) >= least]


def _load(
    session: SparkSession,
    config: JobConfig,
    plan: ViewPlan,
    stopped: Callable[[], bool],
    on_progress: Callable[[LoadProgress], None],
) -> int | None:
    with connect(config.source_dsn) as connection:
        read = _read(connection, config, plan, stopped)
    if read is None or read.read_lsn is None:
        return None
    expected = read.rows_expected or 0
    if expected < config.load_rows_min:
        return None  # the stream is fast enough
    version = ChangePosition.of_read(read.epoch, read.read_lsn).version
    root, hiding = config.addresses.tables, config.hiding
    source = SourceCopy(plan, version, config.source_dsn, hiding.rules, hiding.salt)
    rate = LoadRate()

    def report(share: float) -> None:
        rows = round(expected * share)
        on_progress(LoadProgress(plan.name, rows, expected, rate.left_s(share)))

    return bulk_load.load(session, Load(source, root, config.load_connections), stopped, report)


def _read(
    connection: psycopg.Connection[Any],
    config: JobConfig,
    plan: ViewPlan,
    stopped: Callable[[], bool],
) -> Read | None:
    """Returns the newest snapshot of the view's table, once it has begun."""
    deadline = time.monotonic() + BEGIN_WAIT_S
    while not stopped():
        epoch = reads.epoch_of(connection, config.source, 1)
        snapshots = [
            read
            for read in reads.of_source(connection, config.source, epoch)
            if read.whole and read.table == plan.schema.table
        ]
        newest = snapshots[-1] if snapshots else None
        if newest is None or newest.state in ("failed", "cancelled"):
            return None
        if newest.read_lsn is not None or time.monotonic() > deadline:
            return newest
        time.sleep(_POLL_S)
    return None
