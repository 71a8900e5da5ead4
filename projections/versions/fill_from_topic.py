"""Topic rebuild: a version of a mirror filled from the compacted topic of its table.

The topic is copied up to its end, and the copy replayed as an archive would be. What comes
meanwhile is in the topic, every single change of it for as long as the topic leaves new records
alone. So the job has to take the version over by then, and a copy is used by then or not at all.
Values that no record has any more wait in the quarantine, for the job to read them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from cdc.broker.reading.compacted import CLOCKS_APART_S
from projections.archive import topic_coverage
from projections.archive.progress import ReplayProgress
from projections.archive.progress_note import ProgressWriter
from projections.archive.replay import replay
from projections.archive.task import ReplayOptions
from projections.archive.topic_copy import TopicCopy, copies_folder
from projections.common.throttle import Throttle
from projections.errors import (
    ArchiveIncompleteError,
    RebuildRefusedError,
    RecordsLostError,
    ReplayError,
)
from projections.versions import registry
from projections.versions.fill import note_swept, targets, whole_reads
from projections.versions.rate_estimate import share_of
from projections.versions.version import FillProgress, VersionState

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psycopg

    from projections.archive.topic_copy import Copied
    from projections.common.offsets import Offsets
    from projections.definition.views import View
    from projections.planning.job_config import JobConfig
    from projections.planning.job_spec import JobSpec
    from projections.planning.view_plan import ViewPlan
    from projections.versions.fill import Filling
    from projections.versions.version import ViewVersion

    Connection = psycopg.Connection[Any]

TAKEN_OVER_S: Final = 120.0
"""How long the job may need to take a version over once it is filled."""


def fill(
    connection: Connection, spec: JobSpec, version: ViewVersion, plan: ViewPlan, filling: Filling
) -> None:
    """Fills the places of a version from a topic; one that was killed goes on where it was.

    Args:
        connection: To the source; it holds the lock of the view's versions.
        spec: The job.
        version: The version.
        plan: It, bound to its table.
        filling: How.

    Raises:
        ReplayStoppedError: It was paused.
        ArchiveIncompleteError: The topic lacks records: the source has to be read.
        RebuildRefusedError: Too much time has passed since it was begun.
        SinkError: A store refuses everything or cannot be reached.
    """
    remove_left(connection, spec.config)
    _TopicRebuild(connection, spec, version, plan, filling).run()


@dataclass
class _TopicRebuild:
    connection: Connection
    spec: JobSpec
    version: ViewVersion
    plan: ViewPlan
    filling: Filling
    until: float = 0.0
    copy: TopicCopy = field(init=False)
    before: FillProgress = field(init=False)
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.copy = TopicCopy(self.spec.config, self.version.place)
        self.before = self.version.replayed or FillProgress({})
        self.until = self.before.until or 0.0

    def run(self) -> None:
        noting = ProgressWriter(
            self.before.progress, lambda now: self._noted({}, now, 0), self.filling.progress
        )
        resume, copied = noting.resumes, self.copy.finished()
        if self.before.progress is None and self.before.ends:  # it was killed right after it
            self._refuse_late()
            self.copy.remove()
            return
        if resume is not None and copied is None:
            raise self._too_late("its copy of the topic is gone")
        if resume is not None:
            self._refuse_late()
        elif copied is None or time.time() > self.until - TAKEN_OVER_S:
            copied = self._copied(noting)
        assert copied is not None  # noqa: S101  # it was found, or made just now
        options = ReplayOptions(
            copied=copied.offsets,
            taken=copied.taken(),
            whole=whole_reads(self.connection, self.spec.config),
            share=self.filling.share,
            stopped=self.filling.stopped,
            progress=noting.told,
            note=noting.note,
            resume=resume,
            scratch=self.spec.config.home,
        )
        into = targets(self.connection, self.spec.config, self.plan)
        done = replay(self.copy.archive, into, options)
        note_swept(self.connection, self.plan, done)
        self._refuse_late()
        self._noted(done.ends, None, done.records)
        self.copy.remove()

    def _copied(self, noting: ProgressWriter) -> Copied:
        """Copies the topic; looks before and afterwards whether it has all that it needs."""
        at = time.time()
        origin = self._origin()
        self.copy.remove()  # one that is too old, before it would count as this one
        self.until = at + origin.topic.keeps_s - CLOCKS_APART_S
        self._noted({}, {}, 0)
        throttle, span = (
            Throttle(self.filling.share, self.filling.stopped, error=ReplayError),
            origin.topic.span,
        )
        copied = self.copy.make(
            origin.topic,
            throttle,
            lambda count: noting.told(ReplayProgress(count, max(span, count))),
        )
        again = self._origin()
        if again.topic.identity != copied.identity or any(
            again.topic.bounds[number][0] != first
            for number, (first, _) in origin.topic.bounds.items()
        ):
            raise self._lacking(f"topic {copied.topic} was cut off while it was copied")
        return copied

    def _origin(self) -> topic_coverage.TopicOrigin:
        view = cast("View", self.version.declared(self.spec.views))
        current = registry.current_places(self.connection, self.spec.config.source)
        place = current.get(self.version.view, self.version.view)
        found = topic_coverage.of_view(self.connection, self.spec.config, view, place)
        if found is None:
            raise self._lacking(f"topic {self.plan.topic} keeps more than the newest records")
        why = found.lacking or (None if self.plan.schema.key else topic_coverage.SAYS_NOTHING)
        if why is not None:
            raise self._lacking(why)
        return found

    def _lacking(self, why: str) -> ArchiveIncompleteError:
        view, number = self.version.view, self.version.number
        return ArchiveIncompleteError(
            f"view {view} cannot be filled from the topic of its table",
            detail=why,
            hint=f"headwater view drop {view} {number} --yes, then headwater view rebuild {view}"
            " --from-source reads its table",
        )

    def _refuse_late(self) -> None:
        fault = self.version.fault
        if fault is not None and fault.code == RecordsLostError.code:
            raise self._too_late("its topic has lost records that it lacks")
        if time.time() > self.until - TAKEN_OVER_S:
            raise self._too_late("its topic keeps every change for less than has passed since")

    def _too_late(self, why: str) -> RebuildRefusedError:
        view, number = self.version.view, self.version.number
        return RebuildRefusedError(
            f"version {number} of view {view} cannot go on from the topic that it was begun with",
            detail=why,
            hint=f"headwater view drop {view} {number} --yes, then rebuild",
        )

    def _noted(self, ends: Offsets, progress: Mapping[str, Any] | None, records: int) -> None:
        took_s, before = time.monotonic() - self.began, self.before
        share = share_of(before, took_s, self.filling.share)
        seconds = round(before.seconds + took_s, 1)
        replayed = FillProgress(ends, progress, records, seconds, share, until=self.until)
        registry.note_replayed(
            self.connection, self.spec.config.source, self.version.place, replayed
        )


def remove_left(connection: Connection, config: JobConfig) -> None:
    """Removes copies that whoever was killed has left: all but those of versions being filled.

    Args:
        connection: To the source.
        config: The job's configuration.
    """
    folder = copies_folder(config)
    # before it is asked whose they are: a version is noted before its copy is begun, so that none
    # of a rebuild that begins meanwhile is taken for one that was left
    places = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    versions = registry.read(connection, config.source) if places else ()
    filled = {each.place for each in versions if each.state is VersionState.BUILDING}
    for place in sorted(places - filled):
        TopicCopy(config, place).remove()
