"""Filling: what a replay is told that fills a version, whatever it is filled from."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cdc.snapshot import reads
from projections.archive import coverage
from projections.archive.task import Target
from projections.changes import sweeps
from projections.changes.quarantine import table as quarantine_table
from projections.definition.views import Store
from projections.stores.factory import open_sink

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

    from cdc.snapshot.reads import Read
    from projections.archive.progress import ReplayProgress
    from projections.archive.task import Replayed as Done
    from projections.common.offsets import Offsets
    from projections.planning.job_spec import JobSpec
    from projections.planning.view_plan import ViewPlan

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


def targets(connection: Connection, spec: JobSpec, plan: ViewPlan) -> list[Target]:
    """Returns what a replay fills: the places of a version, one in each store."""
    return [
        Target(
            (plan.in_store(store),),
            partial(open_sink, store, spec.addresses),
            # what waited when it was killed, or came to wait in an earlier lap, still does: an
            # older row must lend it no values
            held=quarantine_table.held(connection, spec.source, store),
            set_aside=partial(quarantine_table.write, spec.ledger, store),
            changes_per_write=AT_ONCE[store],
        )
        for store in sorted(plan.to)
    ]


def note_swept(connection: Connection, plan: ViewPlan, done: Done) -> None:
    """Notes what a replay has removed, as whole reads allow."""
    stores = sorted(plan.to)
    for swept in done.swept:
        sweeps.note(connection, swept.view, stores[swept.target], swept.sweep, swept.removed)


def archived(spec: JobSpec, plan: ViewPlan, version: int | None = None) -> Offsets:
    """Returns how far the archive says that it has had each partition of a view's topics."""
    return coverage.archived(spec, frozenset(plan.topics), version)


def whole_reads(connection: Connection, spec: JobSpec) -> dict[str, Read]:
    """Returns the newest whole read of each table that is done, by topic."""
    epoch = reads.epoch_of(connection, spec.source, 1)
    return {
        read.table.topic(spec.source): read
        for read in reads.of_source(connection, spec.source, epoch)
        if read.whole and read.state == "done"
    }
