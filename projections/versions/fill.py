"""Filling: the binding, inputs and bookkeeping of a replay that fills a version.

Records that the archive receives during a replay are replayed in catch-up rounds. Each round covers
the records that arrived during the previous one, so rounds get shorter; all are limited to the same
share of the time. The job reads the last records itself, at full speed.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import psycopg

from cdc.schema_change import history, trigger
from cdc.snapshot import reads
from projections.archive import coverage
from projections.archive.task import ReplayTarget
from projections.changes import sweeps
from projections.changes.quarantine import table as quarantine_table
from projections.definition.views import Store, tables_of
from projections.errors import ArchiveIncompleteError, RebuildRefusedError, SinkUnavailableError
from projections.planning import binding, view_schemas
from projections.stores.factory import open_sink

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc.snapshot.reads import Read
    from projections.archive.progress import ReplayProgress
    from projections.archive.task import ReplayResult as Done
    from projections.common.offsets import Offsets
    from projections.definition.views import View
    from projections.planning.job_config import JobConfig
    from projections.planning.job_spec import JobSpec
    from projections.planning.view_plan import ViewPlan
    from projections.versions.version import FillProgress, ViewVersion

    Connection = psycopg.Connection[Any]

AT_ONCE: Final = {Store.TABLE: 100_000, Store.SEARCH: 20_000, Store.CACHE: 10_000}
"""Changes per write, tuned for each store."""


@dataclass(frozen=True, slots=True)
class FillOptions:
    """How a version is filled.

    Attributes:
        share: Greatest share of the time that the fill uses, above 0 to 1.
        stopped: Set to pause it.
        progress: Receives the progress, about twice a second.
        waits: Receives a sentence when a catch-up round begins and, every few seconds, which
            stores a filled version waits for.
    """

    share: float = 1.0
    stopped: threading.Event = field(default_factory=threading.Event)
    progress: Callable[[ReplayProgress], None] = lambda _: None
    waits: Callable[[str], None] = lambda _: None


def bind(connection: Connection, spec: JobSpec, version: ViewVersion) -> ViewPlan:
    """Binds a version to its table.

    Raises:
        PlanError: Its definition does not fit the table.
        RebuildRefusedError: Its table was dropped or renamed.
    """
    view = cast("View", version.declared(spec.views))
    plan = _bound(connection, spec.config, view)
    if binding.read_unlogged(connection, spec.config.source, view, hiding=spec.config.hiding):
        return _bound(connection, spec.config, view)
    return plan


def _bound(connection: Connection, config: JobConfig, view: View) -> ViewPlan:
    bound = binding.bind(connection, config.source, [view], decides=True, hiding=config.hiding)
    if bound.paused:
        fault = bound.paused[0].fault
        raise RebuildRefusedError(fault.message, detail=fault.detail, hint=fault.hint)
    return replace(bound.plans[0], active=False)


def bind_again(connection: Connection, spec: JobSpec, version: ViewVersion) -> ViewPlan:
    """Binds a version to its table again, after the end of the archive is known.

    A change of a table commits before any row of the new shape can reach the archive. Binding at
    this time therefore sees every change of the table that its records depend on.
    """
    view = cast("View", version.declared(spec.views))
    if view_schemas.ready(connection) and not trigger.active(connection):
        with suppress(psycopg.errors.LockNotAvailable):  # no row of that shape exists yet
            history.observe(connection, tables_of(view))
    return _bound(connection, spec.config, view)


def prepare(config: JobConfig, plan: ViewPlan) -> None:
    """Creates the tables, indexes and keys of a version in its stores.

    Raises:
        SinkError: A store refuses or cannot be reached.
    """
    for store in sorted(plan.to):
        with closing(open_sink(store, config.addresses)) as sink:
            sink.prepare(plan)


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


def note_swept(connection: Connection, plan: ViewPlan, done: Done) -> None:
    """Records the rows that a replay removed because a snapshot does not have them."""
    stores = sorted(plan.to)
    for swept in done.swept:
        sweeps.note(connection, swept.view, stores[swept.target], swept.sweep, swept.removed)


def archived(config: JobConfig, plan: ViewPlan, version: int | None = None) -> Offsets:
    """Returns the offsets up to which the archive has the partitions of a view's topics."""
    return coverage.archived(config, frozenset(plan.topics), version)


def whole_reads(connection: Connection, config: JobConfig) -> dict[str, Read]:
    """Returns the newest finished snapshot of each table, by topic."""
    epoch = reads.epoch_of(connection, config.source, 1)
    return {
        read.topic: read
        for read in reads.of_source(connection, config.source, epoch)
        if read.whole and read.state == "done"
    }


FEW: Final = 2_000
"""Fewer records than this need no further round: the job reads them faster than a round starts."""

SOON_S: Final = 15.0
"""A round shorter than this needs no successor: the archive usually receives no record sooner."""

_SHORTER: Final = 0.95
"""Greatest size of a round relative to the one before; above it the rounds would never end."""


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


def left(config: JobConfig, plan: ViewPlan, replayed: FillProgress) -> int:
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
