"""Archive rebuild: fills a version from the archive, and updates it in catch-up rounds.

Records that the archive receives during a replay are replayed in catch-up rounds. Each round covers
the records that arrived during the previous one, so rounds get shorter; all are limited to the same
share of the time. The job reads the last records itself, at full speed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cdc.broker.topics import extent
from cdc.snapshot import reads
from projections.archive import coverage
from projections.archive.progress_note import ProgressWriter, state_of
from projections.archive.rebuilding.engine import TaskEngine
from projections.archive.rebuilding.own_tasks import OwnTasks
from projections.archive.replay import replay
from projections.archive.scan import newest_version
from projections.archive.task import Had, ReplayOptions, ReplayTarget
from projections.changes import sweeps
from projections.changes.quarantine import table as quarantine_table
from projections.definition.views import Store
from projections.errors import ArchiveIncompleteError, BulkLostError, SinkUnavailableError
from projections.stores.factory import open_sink
from projections.versions import handover, job_engine, registry
from projections.versions.fill import bind_again, whole_reads
from projections.versions.fill_way import way_of
from projections.versions.job_engine import JobEngine
from projections.versions.rate_estimate import share_of
from projections.versions.version import FillProgress

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psycopg

    from projections.archive.bulk import BulkEngine
    from projections.planning.job_config import JobConfig
    from projections.planning.job_spec import JobSpec
    from projections.planning.view_plan import ViewPlan
    from projections.versions.fill import FillOptions
    from projections.versions.version import ViewVersion

    Connection = psycopg.Connection[Any]


AT_ONCE: Final = {Store.TABLE: 100_000, Store.SEARCH: 20_000, Store.CACHE: 10_000}
"""Changes per write, tuned for each store."""

FEW: Final = 2_000
"""Fewer records than this need no further round: the job reads them faster than a round starts."""

SOON_S: Final = 15.0
"""A round shorter than this needs no successor: the archive usually receives no record sooner."""

_SHORTER: Final = 0.95
"""Greatest size of a round relative to the one before; above it the rounds would never end."""


def fill(  # noqa: PLR0913  # a fill and its options
    connection: Connection,
    spec: JobSpec,
    version: ViewVersion,
    plan: ViewPlan,
    filling: FillOptions,
    *,
    changes: int = 0,
) -> None:
    """Fills a version from the archive; resumes an interrupted fill.

    Records that the archive receives meanwhile are replayed in catch-up rounds, until few are left
    to the job.

    Args:
        connection: To the source; it holds the lock of the view's versions.
        spec: The job.
        version: The version.
        plan: The version, bound to its table.
        filling: How to fill it.
        changes: Number of archived changes for it; decides whether the job or the command replays
            them.

    Raises:
        ReplayStoppedError: It was paused.
        ArchiveIncompleteError: The archive lacks records: the source must be read.
        SinkError: A store refuses everything or cannot be reached.
        WriterLockedError: Another command fills this version.
    """
    filled = _ArchiveRebuild(connection, spec, version, plan, filling, _own_engine(spec, plan))
    with job_engine.fenced(spec.config, plan, filling.stopped):
        if way_of(spec.config, plan, changes).by_job:
            filled.engine = JobEngine(spec.config, plan)
        done = filled.run()
    done = replace(done, progress=None)  # a round without records may have recorded progress
    registry.note_replayed(connection, spec.config.source, version.physical_name, done)


@dataclass
class _ArchiveRebuild:
    connection: Connection
    spec: JobSpec
    version: ViewVersion
    plan: ViewPlan
    filling: FillOptions
    engine: BulkEngine | None

    def run(self) -> FillProgress:
        done, rounds = self.version.replayed or FillProgress({}), CatchUpRounds()
        while True:
            begun = state_of(done.progress) is not None
            try:
                if begun or done.archive is None:
                    rounds.begin(resumed=begun)
                    done = self._replayed(done)
                    continue
                left = records_left(self.spec.config, self.plan, done)
                if not rounds.worth(left):
                    if rounds.outrun:
                        self.filling.waits(self._outrun(left))
                    return done
                self.filling.waits(self._begins(done, left))
                rounds.begin(left)
                at = newest_version(self.spec.config.archive)
                self.plan = bind_again(self.connection, self.spec, self.version)
                done = self._replayed(done, at)
            except BulkLostError as error:
                self._go_on_alone(error)
            except ArchiveIncompleteError:
                if done.archive is None:
                    raise
                # the topics may still have records that the archive lacks
                bounds = extent.bounds(self.spec.config.bootstrap, frozenset(self.plan.topics))
                if not handover.too_late(self.plan, done.ends, bounds):
                    return done
                done = FillProgress({})

    def _replayed(self, before: FillProgress, at: int | None = None) -> FillProgress:
        """Replays the archive once; for a version that reached its end before, only newer records.

        Args:
            before: The progress so far.
            at: For a new catch-up round, the version of the archive that it replays up to.

        Returns:
            The new progress, as it was recorded.
        """
        began, lap = time.monotonic(), before.archive is not None

        def measured() -> FillProgress:
            if lap:  # few records do not determine a rate: most of the time is the start
                return before
            took_s = time.monotonic() - began
            share = share_of(before, took_s, self.filling.share)
            return replace(before, seconds=round(before.seconds + took_s, 1), share=share)

        def record(replayed: FillProgress) -> None:
            registry.note_replayed(
                self.connection, self.spec.config.source, self.plan.name, replayed
            )

        def note_progress(now: Mapping[str, Any]) -> None:
            record(replace(measured(), progress=now))

        number = before.rounds + 1 if lap else 0
        noting = ProgressWriter(before.progress, note_progress, self.filling.progress, number)
        into = targets(self.connection, self.spec.config, self.plan)
        if self.engine is not None and not lap:
            into = [replace(target, bulk=self.engine) for target in into]
        done = replay(self.spec.config.archive, into, self._options(before, at, noting))
        stores = sorted(self.plan.to)
        for swept in done.swept:  # rows that a snapshot does not have
            store = stores[swept.target]
            sweeps.note(self.connection, swept.view, store, swept.sweep, swept.removed)
        progress = replace(
            measured(),
            ends=done.ends,
            progress=None,
            records=before.records if lap else done.records,
            archive=done.archive,
            rounds=before.rounds + lap,
        )
        record(progress)
        return progress

    def _options(
        self, before: FillProgress, at: int | None, noting: ProgressWriter
    ) -> ReplayOptions:
        connection, spec, plan = self.connection, self.spec, self.plan
        lap = before.archive is not None
        ends = [(topic, number, end) for (topic, number), end in before.ends.items()]
        to_sweep, topics = not lap or self._to_sweep(), frozenset(plan.topics)
        return ReplayOptions(
            had=Had(ends, before.archive) if lap else None,
            version=at,
            # a resumed replay was checked at its start
            archived={} if lap and noting.resumes else coverage.archived(spec.config, topics, at),
            whole=whole_reads(connection, spec.config) if to_sweep else {},
            spans=sweeps.spans(connection, plan),
            share=self.filling.share,
            stopped=self.filling.stopped,
            progress=noting.report,
            note=noting.note,
            resume=noting.resumes,
            scratch=spec.config.home,
        )

    def _go_on_alone(self, error: BulkLostError) -> None:
        """Runs the job's tasks in this process; if those fail, too, goes on record by record."""
        by_job = isinstance(self.engine, JobEngine)
        version, why = self.version, ": ".join(filter(None, (error.message, error.detail)))
        how = "by this command" if by_job else "record by record"
        self.filling.waits(
            f"version {version.number} of view {version.view} is filled {how}: {why}"
        )
        self.engine = _own_engine(self.spec, self.plan) if by_job else None
        job_engine.fence(self.spec.config, self.plan, self.filling.stopped)

    def _to_sweep(self) -> bool:
        """Returns whether a snapshot allows removing rows that still exist."""
        whole = reads.whole_reads(self.connection, self.plan.source)
        done = sweeps.swept_versions(self.connection)
        pending = (sweeps.pending(self.plan, store, whole, done) for store in self.plan.to)
        return any(each is not None for each in pending)

    def _begins(self, done: FillProgress, left: int) -> str:
        version = self.version
        return (
            f"version {version.number} of view {version.view}, catch-up round {done.rounds + 1}:"
            f" about {left:,} records came while it was filled"
        )

    def _outrun(self, left: int) -> str:
        version, share = self.version, self.filling.share
        return (
            f"version {version.number} of view {version.view}: more comes than {share:.0%} of the"
            f" time can replay; about {left:,} records are left to the job"
        )


class CatchUpRounds:
    """Decides, between replays of one version, whether another catch-up round is worthwhile."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._left: int | None = None
        self.outrun = False

    def begin(self, left: int | None = None, *, resumed: bool = False) -> None:
        """Records that a replay begins.

        Args:
            left: Approximate number of records for a catch-up round.
            resumed: It was begun at an unknown time, so any number of records may have arrived
                since.
        """
        self._began = None if resumed else time.monotonic()
        self._left = left

    def worth(self, left: int) -> bool:
        """Returns whether to begin another round; sets `outrun` if rounds would never end."""
        soon = self._began is not None and time.monotonic() - self._began <= SOON_S
        self.outrun = (
            left > FEW and not soon and self._left is not None and left > _SHORTER * self._left
        )
        return left > FEW and not soon and not self.outrun


def _own_engine(spec: JobSpec, plan: ViewPlan) -> TaskEngine:
    """Returns the engine that does in this process what the job's does in Spark's tasks."""
    addresses = spec.config.addresses
    return TaskEngine(OwnTasks(), addresses.tables, plan.name, addresses=addresses)


def records_left(config: JobConfig, plan: ViewPlan, replayed: FillProgress) -> int:
    """Estimates the number of archived records that a version lacks.

    Raises:
        BrokerError: The broker does not answer.
        SinkUnavailableError: The archive cannot be read.
        ArchiveIncompleteError: It cannot be determined: a topic was recreated, or the archive's
            state at the time of the replay is no longer available.
    """
    topics = frozenset(plan.topics)
    version = None if replayed.archive is None else replayed.archive[0]
    try:
        had = coverage.archived(config, topics, version)
    except SinkUnavailableError as error:
        raise ArchiveIncompleteError(
            f"the archive no longer has its state at version {version}", detail=error.detail
        ) from None
    # offsets of a recreated topic restart
    if any(had.get(place, 0) < end for place, end in replayed.ends.items()):
        raise ArchiveIncompleteError("a topic was recreated since it was read from the archive")
    now = coverage.archived(config, topics)
    return sum(max(0, end - replayed.ends.get(place, 0)) for place, end in now.items())


def targets(connection: Connection, config: JobConfig, plan: ViewPlan) -> list[ReplayTarget]:
    """Returns the targets of a replay: the version in each of its stores."""
    return [
        ReplayTarget(
            # the engine uses the store that a plan names
            (replace(plan.in_store(store), to=frozenset({store})),),
            partial(open_sink, store, config.addresses),
            # a key quarantined before a crash or in an earlier round stays quarantined: an older
            # row must not supply values for it
            held=quarantine_table.held(connection, config.source, store),
            set_aside=partial(quarantine_table.write, config.ledger, store),
            changes_per_write=AT_ONCE[store],
        )
        for store in sorted(plan.to)
    ]
