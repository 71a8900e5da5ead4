"""Bounded rebuild: rows of the version that readers see, made anew where they are.

A version of which only some rows are filled lacks all others, so no one could ever be moved to it.
What is made anew in part are therefore rows of what readers see: those that a store has lost, or
has an older state of, come to what the archive says, while the job goes on.

It takes exactly what every store has been given already. Nothing older will do: a change that a
store has lost and the archive has not yet would stay lost, and what is before it would come back.
Nothing newer either: readers would see rows of transactions of which the others are not there yet.
So it notes how far each query has begun to write, and waits until all of that is finished in every
store and archived. What comes later is the job's.

Every write is guarded as the job's own are. So it harms nothing that both write at once, or that it
is ended halfway; and a row that was altered in place, and bears the version that it should, stays.

A sink that counts what its store has and should not: rows that it does not take.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from projections.archive.replay import replay
from projections.archive.scan import ArchiveScan
from projections.archive.selection import count, select
from projections.archive.survey import RecordFilter
from projections.archive.task import ReplayOptions, ReplayTarget
from projections.changes import sweeps
from projections.changes.quarantine import table as quarantine_table
from projections.changes.row_change import Applied
from projections.common import spark_checkpoint
from projections.common.table_pins import pinned
from projections.definition.diff import DefinitionChangeKind
from projections.errors import RebuildEarlyError, RebuildRefusedError, RebuildStoppedError
from projections.publishing import positions
from projections.stores.factory import open_sink
from projections.versions import rebuild, registry
from projections.versions.fill import AT_ONCE, archived, whole_reads
from projections.versions.rate_estimate import rate_of
from projections.versions.version import VersionState

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import psycopg

    from projections.archive.bounds import Bounds
    from projections.archive.task import ReplayResult
    from projections.changes.applier import UnappliedRecord
    from projections.changes.row_batch import RowPart
    from projections.changes.row_change import ReadSpan, RowChange
    from projections.changes.sink import Holding, Sink
    from projections.common.offsets import Offsets
    from projections.definition.views import Store, View
    from projections.planning.job_config import JobConfig
    from projections.planning.job_spec import JobSpec
    from projections.planning.view_plan import ViewPlan
    from projections.versions.fill import Filling
    from projections.versions.rebuild import RebuildPlan
    from projections.versions.version import ViewVersion

    Connection = psycopg.Connection[Any]

WAIT_S: Final = 120.0
"""How long the stores and the archive may take to have what is under way, seconds; the archive is
written every 15."""

_POLL_S: Final = 0.3
_LOOKED_AT: Final = 20
"""So many records are looked at in the time that one takes to be written."""


@dataclass(frozen=True, slots=True)
class Remade:
    """What became of the rows within bounds in one store.

    Attributes:
        store: The store.
        applied: What the store said of the changes that it was given.
        waiting: Records that it cannot take: they wait in the quarantine.
        left: Changes that it lacks and does not take: `view repair` reads those rows again.
    """

    store: Store
    applied: Applied
    waiting: int
    left: int


@dataclass(frozen=True, slots=True)
class BoundedRebuild:
    """What a bounded rebuild came to.

    Attributes:
        view: The view.
        number: The version that readers see.
        rows: Keys within the bounds.
        stores: What became of them, by store.
    """

    view: str
    number: int
    rows: int
    stores: tuple[Remade, ...]


def plan_rows(
    connection: Connection, spec: JobSpec, view: View, bounds: Bounds, share: float = 1.0
) -> RebuildPlan:
    """Tells what a bounded rebuild will do; looks through the archive and changes nothing.

    Args:
        connection: To the source, in autocommit.
        spec: The job, its views bound.
        view: The view as it is declared now.
        bounds: Which rows.
        share: Of the time, how much the replay takes at most, above 0 to 1.

    Raises:
        RebuildRefusedError: It cannot be rebuilt in part.
        BoundsError: It has no such bounds.
        ArchiveMissingError: There is no archive.
    """
    current = chosen(connection, spec.config, view)
    plan = _bound(spec, current)
    bounds.check(plan)
    every = RecordFilter()
    scan = ArchiveScan(spec.config.archive, frozenset(plan.topics))
    with pinned(spec.config.archive, scan.version):
        found = select(scan, plan, bounds, every)
        changes = count(scan, plan, found.keys, every)
    rate = rate_of(registry.read(connection, spec.config.source), view, share)
    seconds = (2 * found.records / _LOOKED_AT + changes) / rate.per_s
    return rebuild.RebuildPlan(
        view.name,
        (),
        "archive",
        changes,
        round(seconds, 1),
        _room(spec.config, current),
        shutil.disk_usage(spec.config.home).free,
        rebuild.followers(spec, view),
        bounds.said(),
        len(found.keys),
        known_by=rate.known_by,
    )


def chosen(connection: Connection, config: JobConfig, view: View) -> ViewVersion:
    """Returns the version whose rows are made anew: the one that readers see.

    Raises:
        RebuildRefusedError: There is none, or its definition is not the declared one.
    """
    own = registry.of_view(connection, config.source, view.name)
    current = next((each for each in own if each.state is VersionState.CURRENT), None)
    if current is None:
        raise RebuildRefusedError(
            f"view {view.name} was never built", hint="headwater up builds it from its first row"
        )
    change = registry.changed(connection, current, view)
    if change.kind is DefinitionChangeKind.REBUILD:
        raise RebuildRefusedError(
            f"the definition of view {view.name} has changed: that asks for the whole of it",
            detail="; ".join(change.said),
            hint=f"headwater view rebuild {view.name}, without bounds, builds another version",
        )
    return current


def rebuild_rows(  # noqa: PLR0913, PLR0917  # who asks for it knows all of this
    connection: Connection,
    spec: JobSpec,
    view: View,
    bounds: Bounds,
    filling: Filling,
    running: Callable[[], bool],
    spare_bytes: int = 0,
) -> BoundedRebuild:
    """Makes rows of the version that readers see anew, in every store.

    Args:
        connection: To the source, in autocommit; it holds the lock of the view's versions.
        spec: The job, its views bound.
        view: The view as it is declared now.
        bounds: Which rows.
        filling: How, and what ends it.
        running: Tells whether the job runs.
        spare_bytes: Room that has to be left on the disk.

    Raises:
        RebuildRefusedError: It cannot be rebuilt in part, or there is no room.
        BoundsError: It has no such bounds.
        RebuildEarlyError: A store or the archive does not have what is under way.
        RebuildStoppedError: It was told to stop, while it waited.
        ReplayStoppedError: It was told to stop.
        ArchiveIncompleteError: The archive lacks records.
        SinkError: A store refuses everything or cannot be reached.
    """
    current = chosen(connection, spec.config, view)
    plan = _bound(spec, current)
    bounds.check(plan)
    free = shutil.disk_usage(spec.config.home).free
    rebuild.refuse_small(view, _room(spec.config, current), free, spare_bytes)
    through = _settled(connection, spec.config, plan, filling.stopped, running)
    filled = [_Filled(connection, spec, plan, store) for store in sorted(plan.to)]
    options = ReplayOptions(
        bounds=bounds,
        through=through,
        archived=archived(spec.config, plan),
        whole=whole_reads(connection, spec.config),
        share=filling.share,
        stopped=filling.stopped,
        progress=filling.progress,
        scratch=spec.config.home,
    )
    done = replay(spec.config.archive, [each.target() for each in filled], options)
    stores = tuple(each.remade(done, number) for number, each in enumerate(filled))
    return BoundedRebuild(view.name, current.number, done.chosen or 0, stores)


class _Filled:
    """One store whose rows are made anew."""

    def __init__(self, connection: Connection, spec: JobSpec, plan: ViewPlan, store: Store) -> None:
        self._spec = spec
        self._store = store
        self._waiting = 0
        self._held = quarantine_table.held(connection, spec.config.source, store)
        self._sink = CheckedSink(open_sink(store, spec.config.addresses))
        # what a whole read has not found is gone, even if the store has lost that it was
        below = sweeps.done(connection).get((plan.name, store), 0)
        own = next(each for each in spec.plans_in(store) if each.name == plan.name)
        self._plan = replace(own, left_to_read=max(own.left_to_read, below))

    def target(self) -> ReplayTarget:
        return ReplayTarget(
            (self._plan,),
            lambda: self._sink,
            held=self._held,
            set_aside=self._set_aside,
            changes_per_write=AT_ONCE[self._store],
        )

    def remade(self, done: ReplayResult, number: int) -> Remade:
        had = done.counts[number].get(self._plan.name)
        applied = Applied() if had is None else had.changes
        return Remade(self._store, applied, self._waiting, self._sink.left)

    def _set_aside(self, waiting: Sequence[UnappliedRecord], swept: Mapping[str, int]) -> None:
        self._waiting += len(waiting)
        quarantine_table.write(self._spec.config.ledger, self._store, waiting, swept)


def _bound(spec: JobSpec, current: ViewVersion) -> ViewPlan:
    for paused in spec.paused:
        if paused.name == current.place:
            fault = paused.fault
            raise RebuildRefusedError(fault.message, detail=fault.detail, hint=fault.hint)
    return next(plan for plan in spec.plans if plan.name == current.place)


def _room(config: JobConfig, current: ViewVersion) -> int:
    """About how much disk it takes: a table writes anew each file of which a row changes."""
    return int(rebuild.size_bytes(config, current) * rebuild.DISK_SPARE)


def _settled(
    connection: Connection,
    config: JobConfig,
    plan: ViewPlan,
    stopped: threading.Event,
    running: Callable[[], bool],
) -> Offsets:
    """Waits until all that any query has begun to write is in every store and in the archive.

    Returns:
        The offset after the last of it, of each partition.
    """
    begun = {
        store: _of(plan, spark_checkpoint.begun(config.checkpoint(store))) for store in plan.to
    }
    there = {(each.view, each.store) for each in positions.read(connection)}
    if lacking := [store for store in sorted(plan.to) if (plan.name, store) not in there]:
        raise RebuildEarlyError(
            f"view {plan.view} is not built yet",
            detail="not in " + ", ".join(lacking),
            hint="headwater status shows how far it is; then try again",
        )
    through: Offsets = {}
    for ends in begun.values():
        for place, end in ends.items():
            through[place] = max(end, through.get(place, 0))
    deadline = time.monotonic() + WAIT_S
    while behind := _behind(config, plan, through):
        if stopped.is_set():
            raise RebuildStoppedError(
                f"the rebuild of rows of view {plan.view} was ended before it began"
            )
        runs = running()
        if not runs or time.monotonic() > deadline:
            raise RebuildEarlyError(
                f"rows of view {plan.view} cannot be made anew yet",
                detail=f"not yet with what is under way: {', '.join(behind)}"
                + ("" if runs else "; the job does not run"),
                hint="headwater status shows how far the job is; then try again",
            )
        stopped.wait(_POLL_S)
    return through


def _behind(config: JobConfig, plan: ViewPlan, through: Offsets) -> list[str]:
    ends = {str(s): spark_checkpoint.committed(config.checkpoint(s)) for s in sorted(plan.to)}
    ends["archive"] = archived(config, plan)
    return [
        name
        for name, reached in ends.items()
        if any(reached.get(place, 0) < end for place, end in through.items())
    ]


def _of(plan: ViewPlan, offsets: Offsets) -> Offsets:
    return {place: end for place, end in offsets.items() if place[0] in plan.topics}


class CheckedSink:
    """Writes to a store, and looks whether it has at least what it was given.

    A table that was loaded straight from the source takes nothing of that load a second time, as
    it has that. If it has lost some of it, only a read of those rows brings them back.

    Args:
        sink: The store.

    Attributes:
        left: Changes that it has not, and has not refused either.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.left = 0

    def prepare(self, plan: ViewPlan) -> None:
        """See `Sink.prepare`."""
        self._sink.prepare(plan)

    def apply(self, plan: ViewPlan, changes: Sequence[RowChange]) -> Applied:
        """Writes changes and looks whether they are there; see `Sink.apply`."""
        applied = self._sink.apply(plan, changes)
        if applied.stale:
            refused = {(each.change.key, each.change.version) for each in applied.refused}
            there = self._sink.versions(plan, changes)
            self.left += sum(
                version < change.version and (change.key, change.version) not in refused
                for change, version in zip(changes, there, strict=True)
            )
        return applied

    def versions(self, plan: ViewPlan, changes: Sequence[RowChange]) -> list[int]:
        """See `Sink.versions`."""
        return self._sink.versions(plan, changes)

    def stored(self, plan: ViewPlan, keys: Sequence[tuple[object, ...]]) -> list[Holding]:
        """See `Sink.stored`."""
        return self._sink.stored(plan, keys)

    def sweep(self, plan: ViewPlan, below_version: int, reads: Sequence[ReadSpan] = ()) -> int:
        """See `Sink.sweep`."""
        return self._sink.sweep(plan, below_version, reads)

    def documents(self, plan: ViewPlan) -> Iterator[Mapping[str, object]]:
        """See `Sink.documents`."""
        return self._sink.documents(plan)

    def parts(self, plan: ViewPlan) -> Iterator[RowPart]:
        """See `Sink.parts`."""
        return self._sink.parts(plan)

    def versioned(self, plan: ViewPlan) -> Iterator[tuple[int, Mapping[str, object]]]:
        """See `Sink.versioned`."""
        return self._sink.versioned(plan)

    def close(self) -> None:
        """See `Sink.close`."""
        self._sink.close()
