"""Filling: what a replay is told that fills a version, whatever it is filled from.

Laps: what the archive gets while a version is filled from it is replayed too, lap after lap.

Each lap takes what came during the one before, so it is shorter, and held to the same share of the
time. The last of it is left to the job, which takes a version over as fast as it reads anything.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cdc.snapshot import reads
from projections.archive import coverage
from projections.archive.task import ReplayTarget
from projections.changes import sweeps
from projections.changes.quarantine import table as quarantine_table
from projections.definition.views import Store
from projections.errors import ArchiveIncompleteError, SinkUnavailableError
from projections.stores.factory import open_sink

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

    from cdc.snapshot.reads import Read
    from projections.archive.progress import ReplayProgress
    from projections.archive.task import ReplayResult as Done
    from projections.common.offsets import Offsets
    from projections.planning.job_config import JobConfig
    from projections.planning.view_plan import ViewPlan
    from projections.versions.version import FillProgress

    Connection = psycopg.Connection[Any]

AT_ONCE: Final = {Store.TABLE: 100_000, Store.SEARCH: 20_000, Store.CACHE: 10_000}
"""Changes that are written at once, each as many as its store takes best."""


@dataclass(frozen=True, slots=True)
class Filling:
    """How a version is filled.

    Attributes:
        share: Of the time, how much it takes at most, above 0 to 1.
        stopped: Set to pause it.
        progress: Is told how far it is, about twice a second.
        waits: Is told, every few seconds, what a version waits for that is filled; and before that,
            which lap begins.
    """

    share: float = 1.0
    stopped: threading.Event = field(default_factory=threading.Event)
    progress: Callable[[ReplayProgress], None] = lambda _: None
    waits: Callable[[str], None] = lambda _: None


def targets(connection: Connection, config: JobConfig, plan: ViewPlan) -> list[ReplayTarget]:
    """Returns what a replay fills: the places of a version, one in each store."""
    return [
        ReplayTarget(
            # an engine goes by the store that a plan names
            (replace(plan.in_store(store), to=frozenset({store})),),
            partial(open_sink, store, config.addresses),
            # what waited when it was killed, or came to wait in an earlier lap, still does: an
            # older row must lend it no values
            held=quarantine_table.held(connection, config.source, store),
            set_aside=partial(quarantine_table.write, config.ledger, store),
            changes_per_write=AT_ONCE[store],
        )
        for store in sorted(plan.to)
    ]


def note_swept(connection: Connection, plan: ViewPlan, done: Done) -> None:
    """Notes what a replay has removed, as whole reads allow."""
    stores = sorted(plan.to)
    for swept in done.swept:
        sweeps.note(connection, swept.view, stores[swept.target], swept.sweep, swept.removed)


def archived(config: JobConfig, plan: ViewPlan, version: int | None = None) -> Offsets:
    """Returns how far the archive says that it has had each partition of a view's topics."""
    return coverage.archived(config, frozenset(plan.topics), version)


def whole_reads(connection: Connection, config: JobConfig) -> dict[str, Read]:
    """Returns the newest whole read of each table that is done, by topic."""
    epoch = reads.epoch_of(connection, config.source, 1)
    return {
        read.topic: read
        for read in reads.of_source(connection, config.source, epoch)
        if read.whole and read.state == "done"
    }


FEW: Final = 2_000
"""So many records are not worth a lap: the job reads them in less time than it needs to begin."""

SOON_S: Final = 15.0
"""What came while a lap of so few seconds lasted is not worth another: as a rule the archive itself
gets no record sooner."""

_SHORTER: Final = 0.95
"""Of the records of a lap, how many the next may have: with more, there is no end to them."""


class Laps:
    """Tells, between replays of one version, whether another lap is worth it."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._left: int | None = None
        self.outrun = False

    def begin(self, left: int | None = None, *, resumed: bool = False) -> None:
        """A replay begins.

        Args:
            left: Of a lap, about how many records it has to take.
            resumed: It was begun before, no one knows when: what came since can be anything.
        """
        self._began = None if resumed else time.monotonic()
        self._left = left

    def worth(self, left: int) -> bool:
        """Tells whether what came since is worth a lap; `outrun` if it is, and would be no end.

        Args:
            left: About how many records that are.
        """
        soon = self._began is not None and time.monotonic() - self._began <= SOON_S
        self.outrun = (
            left > FEW and not soon and self._left is not None and left > _SHORTER * self._left
        )
        return left > FEW and not soon and not self.outrun


def left(config: JobConfig, plan: ViewPlan, replayed: FillProgress) -> int:
    """Returns about how many records the archive has by now that a version lacks.

    Args:
        config: The job's configuration.
        plan: The version.
        replayed: How far it is filled.

    Raises:
        BrokerError: The broker does not answer.
        SinkUnavailableError: The archive cannot be read.
        ArchiveIncompleteError: No one can tell: a topic was recreated meanwhile, or what the
            archive was like when it was read is forgotten.
    """
    topics = frozenset(plan.topics)
    version = None if replayed.archive is None else replayed.archive[0]
    try:
        had = coverage.archived(config, topics, version)
    except SinkUnavailableError as error:
        raise ArchiveIncompleteError(
            f"no one knows any more what the archive had at version {version}", detail=error.detail
        ) from None
    # of a topic that was deleted and made anew, offsets begin again
    if any(had.get(place, 0) < end for place, end in replayed.ends.items()):
        raise ArchiveIncompleteError("a topic was made anew since it was read from the archive")
    now = coverage.archived(config, topics)
    return sum(max(0, end - replayed.ends.get(place, 0)) for place, end in now.items())
