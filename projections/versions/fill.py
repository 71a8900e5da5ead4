"""Filling: the options of a fill, and what a version needs before it: its table and its stores."""

from __future__ import annotations

import threading
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import psycopg

from cdc.schema_change import history, trigger
from cdc.snapshot import reads
from projections.definition.views import tables_of
from projections.errors import RebuildRefusedError
from projections.planning import binding, view_schemas
from projections.stores.factory import open_sink

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc.snapshot.reads import Read
    from projections.archive.progress import ReplayProgress
    from projections.definition.views import View
    from projections.planning.job_config import JobConfig
    from projections.planning.job_spec import JobSpec
    from projections.planning.view_plan import ViewPlan
    from projections.versions.version import ViewVersion

    Connection = psycopg.Connection[Any]


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


def prepare(connection: Connection, spec: JobSpec, version: ViewVersion) -> ViewPlan:
    """Binds a version to its table, and creates its tables, indexes and keys in its stores.

    Raises:
        PlanError: Its definition does not fit the table.
        RebuildRefusedError: Its table was dropped or renamed.
        SinkError: A store refuses or cannot be reached.
    """
    config, view = spec.config, cast("View", version.declared(spec.views))
    plan = _bound(connection, config, view)
    if binding.read_unlogged(connection, config.source, view, hiding=config.hiding):
        plan = _bound(connection, config, view)
    for store in sorted(plan.to):
        with closing(open_sink(store, config.addresses)) as sink:
            sink.prepare(plan)
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


def whole_reads(connection: Connection, config: JobConfig) -> dict[str, Read]:
    """Returns the newest finished snapshot of each table, by topic."""
    epoch = reads.epoch_of(connection, config.source, 1)
    return {
        read.topic: read
        for read in reads.of_source(connection, config.source, epoch)
        if read.whole and read.state == "done"
    }
