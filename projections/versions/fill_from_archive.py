"""Archive rebuild: fills a version from the archive, and updates it in catch-up rounds."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cdc.broker.topics import extent
from cdc.snapshot import reads
from projections.archive.progress_note import ProgressWriter, state_of
from projections.archive.replay import replay
from projections.archive.scan import newest_version
from projections.archive.task import Had, ReplayOptions
from projections.changes import sweeps
from projections.errors import ArchiveIncompleteError, BulkLostError
from projections.versions import fill as fill_rounds
from projections.versions import handover, job_engine, registry
from projections.versions.fill import CatchUpRounds, archived, note_swept, targets, whole_reads
from projections.versions.fill_way import way_of
from projections.versions.job_engine import JobEngine
from projections.versions.rate_estimate import share_of
from projections.versions.version import FillProgress

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psycopg

    from projections.planning.job_spec import JobSpec
    from projections.planning.view_plan import ViewPlan
    from projections.versions.fill import FillOptions
    from projections.versions.version import ViewVersion

    Connection = psycopg.Connection[Any]


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
    filled = _ArchiveRebuild(connection, spec, version, plan, filling)
    with job_engine.fenced(spec.config, plan, filling.stopped):
        if way_of(spec.config, plan, changes).by_job:
            filled.engine = JobEngine(spec.config, plan, filling)
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
    engine: JobEngine | None = None

    def run(self) -> FillProgress:
        done, rounds = self.version.replayed or FillProgress({}), CatchUpRounds()
        while True:
            begun = state_of(done.progress) is not None
            try:
                if begun or done.archive is None:
                    rounds.begin(resumed=begun)
                    done = self._replayed(done)
                    continue
                left = fill_rounds.left(self.spec.config, self.plan, done)
                if not rounds.worth(left):
                    if rounds.outrun:
                        self.filling.waits(self._outrun(left))
                    return done
                self.filling.waits(self._begins(done, left))
                rounds.begin(left)
                at = newest_version(self.spec.config.archive)
                self.plan = fill_rounds.bind_again(self.connection, self.spec, self.version)
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
        note_swept(self.connection, self.plan, done)
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
        to_sweep = not lap or self._to_sweep()
        return ReplayOptions(
            had=Had(ends, before.archive) if lap else None,
            version=at,
            # a resumed replay was checked at its start
            archived={} if lap and noting.resumes else archived(spec.config, plan, at),
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
        """Stops the job's work, so that the next replay goes record by record."""
        self.engine = None
        version, why = self.version, ": ".join(filter(None, (error.message, error.detail)))
        self.filling.waits(
            f"version {version.number} of view {version.view} is filled record by record: {why}"
        )
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
