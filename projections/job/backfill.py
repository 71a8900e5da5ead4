"""Backfill: views whose store's query is past records that they lack.

A query reads a topic once, for all views of its store, and a topic keeps its records for a limited
time. A view that is declared later, or that a store has lost, may therefore lack rows that no
coming record has. Its table is read completely, and until that read is in the view, the view claims
no position.

The views that a query has had are recorded beside its checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import orjson
import structlog

from cdc.broker.topics import extent
from cdc.postgres import session
from cdc.snapshot import reads
from cdc.snapshot.reads import SnapshotRequest
from foundation.atomic_file import write_atomically
from projections.common.spark_checkpoint import committed, take_back
from projections.definition.views import Store
from projections.errors import SinkError
from projections.stores import identity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from cdc.broker.topics.extent import PartitionId
    from cdc.table import TableName
    from projections.common.offsets import Offsets
    from projections.planning.job_config import JobConfig
    from projections.planning.job_spec import JobSpec
    from projections.planning.view_plan import ViewPlan

Awaited = dict[str, int]
"""By topic, the number of the snapshot, or a later one, that a view waits for."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The views of one store's query.

    Attributes:
        known: Views that it has had before, and the reads that they wait for; None if it has run
            without recording them.
        lacking: Views that need a backfill, and the topics whose records they lack.
    """

    known: Mapping[str, Awaited] | None = None
    lacking: Mapping[str, frozenset[str]] = field(default_factory=dict)


def arrivals(
    known: Mapping[str, Awaited] | None,
    plans: Iterable[ViewPlan],
    at: Offsets,
    bounds: Mapping[PartitionId, tuple[int, int]],
) -> Arrivals:
    """Returns the views of a store that lack records which its query has passed.

    Args:
        known: Views that the query has had; None if it has not recorded them.
        plans: Views that it shall have.
        at: Next offset of each partition, as of its last finished batch; empty before the first.
        bounds: First offset of every partition of their topics, and the one after its last record.
    """
    if known is None and at:
        return Arrivals()
    gone = {topic for (topic, _), offset in at.items() if offset > 0}
    gone |= {topic for (topic, _), (first, _) in bounds.items() if first > 0}
    lacking = {
        plan.name: missing
        for plan in plans
        if plan.name not in (known or {}) and (missing := frozenset(plan.topics) & gone)
    }
    return Arrivals(known or {}, lacking)


def admitted(spec: JobSpec) -> JobSpec:
    """Requests the reads that views need; returns the job with the reads that they wait for.

    Raises:
        CdcError: The source or the broker does not answer; nothing is lost.
    """
    arriving = {store: _arrivals(spec, store) for store in Store if spec.plans_in(store)}
    lacking = frozenset[str]().union(
        *(topics for each in arriving.values() for topics in each.lacking.values())
    )
    requested = _request(spec, lacking) if lacking else {}
    awaited: dict[tuple[str, Store], Awaited] = {}
    for store, each in arriving.items():
        known = _awaited(spec, store, each, requested)
        write(_file(spec.config, store), known)
        awaited |= {(view, store): reads for view, reads in known.items() if reads}
    return replace(spec, awaited=awaited)


def forget(spec: JobSpec, store: Store, views: Iterable[str]) -> None:
    """Lets views count as new in a store, so that the records that they lack are requested."""
    gone = set(views)
    known = read(_file(spec.config, store))
    if known is None:  # without a record, the other views become the record
        known = {plan.name: {} for plan in spec.plans_in(store)}
    write(_file(spec.config, store), {name: had for name, had in known.items() if name not in gone})


def forget_lost(spec: JobSpec, store: Store) -> None:
    """Lets views count as new that a store has lost.

    Raises:
        SinkUnavailableError: The store does not answer.
    """
    if read(_file(spec.config, store)) is None or not (lost := identity.lost(spec, store)):
        return
    _log.warning("views were lost by a store", store=store, views=sorted(lost))
    forget(spec, store, lost)
    identity.forget(spec.config, store, lost)  # last: after a crash before it, they are found again


def leave_out(spec: JobSpec, store: Store, views: Iterable[str]) -> None:
    """Lets views count as new when they return to a store that cannot have them now."""
    if read(_file(spec.config, store)) is not None:
        forget(spec, store, views)


def joined(config: JobConfig, store: Store, view: str) -> None:
    """Lets a version count as one that a store's query has had, since it lacks nothing."""
    known = read(_file(config, store))
    if known is not None and view not in known:
        write(_file(config, store), {**known, view: {}})


def read(path: Path) -> dict[str, Awaited] | None:
    """Returns the views that a query has had; None if they were not recorded."""
    if not path.is_file():
        return None
    views: dict[str, Awaited] = orjson.loads(path.read_bytes())
    return views


def write(path: Path, known: Mapping[str, Awaited]) -> None:
    """Records the views that a query has, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, orjson.dumps(known))


def _arrivals(spec: JobSpec, store: Store) -> Arrivals:
    take_back(spec.config.checkpoint(store))
    try:
        forget_lost(spec, store)
    except SinkError as error:  # `identity.check` repeats this before anything is created there
        _log.warning("positions of views cannot be read yet", store=store, code=error.code)
    plans, known = spec.plans_in(store), read(_file(spec.config, store))
    if known is not None:  # a joining version gets all that it lacks from its query
        known = {**{view: {} for view in spec.joining}, **known}
    if known is not None and all(plan.name in known for plan in plans):
        return Arrivals(known)
    topics = {topic for plan in plans for topic in plan.topics}
    bounds = extent.bounds(spec.config.bootstrap, topics)
    return arrivals(known, plans, committed(spec.config.checkpoint(store)), bounds)


def _awaited(
    spec: JobSpec, store: Store, arriving: Arrivals, requested: Mapping[str, int]
) -> dict[str, Awaited]:
    """Returns the record of a store's views: the declared ones and the paused ones."""
    known = arriving.known or {}
    names = {plan.name for plan in spec.plans_in(store)}
    paused = {view.name for view in spec.paused if store in view.to} & known.keys()
    awaited = {name: dict(known.get(name, {})) for name in sorted(names | paused)}
    for view, topics in arriving.lacking.items():
        awaited[view] = {topic: requested[topic] for topic in sorted(topics)}
    return awaited


def _request(spec: JobSpec, topics: frozenset[str]) -> dict[str, int]:
    """Requests one snapshot of each topic's table; returns their numbers."""
    tables: dict[str, TableName] = {
        topic: schema.table for plan in spec.plans for topic, schema in plan.topics.items()
    }
    requested = {}
    with session.connect(spec.config.source_dsn) as connection:
        epoch = reads.epoch_of(connection, spec.config.source, 1)
        for topic in sorted(topics):
            wish = SnapshotRequest(tables[topic])
            requested[topic], _ = reads.ask(connection, spec.config.source, epoch, wish)
            _log.info("table is read for a new view", table=str(wish.table), read=requested[topic])
    return requested


def _file(config: JobConfig, store: Store) -> Path:
    return config.checkpoint(store).with_suffix(".json")
