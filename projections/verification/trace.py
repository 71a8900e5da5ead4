"""Trace: follows one row from its commits to each store.

Its changes are searched by key in the archive and, after its end, in the topic. The stores are
asked for the row.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from cdc.broker.group.position_search import SearchedPartition, searching
from cdc.broker.topics import extent
from cdc.errors import CdcError
from cdc.lsn import Lsn
from cdc.position import lsn_of
from cdc.postgres import session
from cdc.values import decode
from projections.archive.key_search import changes_of_key, key_patterns
from projections.changes.documents import DocumentForm
from projections.changes.quarantine import admin as quarantine_admin
from projections.changes.row_change import RowChange
from projections.common import spark_checkpoint
from projections.errors import TraceError
from projections.publishing import positions
from projections.stores.factory import open_sink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdc.change_event import ChangeEvent
    from projections.definition.views import Store
    from projections.planning.job_config import JobConfig
    from projections.planning.view_plan import ViewPlan

CHANGES_MAX: Final = 10
"""Default number of changes: the newest ones."""


class StoredState(StrEnum):
    """The state of a store relative to a row's newest change; determined on request."""

    HAS_IT = "has it"
    BEHIND = "behind"
    WAITS = "waits"  # in quarantine
    NEVER_SEEN = "never seen"


@dataclass(frozen=True, slots=True)
class LoggedChange:
    """A change of the row, in the log.

    Attributes:
        topic: Its topic.
        partition: Its partition.
        offset: Its offset.
        operation: `c`, `u`, `d`; `r` for a snapshot row.
        position: Its log position; for a snapshot row, that of the snapshot.
        epoch: Incarnation of the source.
        transaction_id: Postgres' transaction number; None for a snapshot row.
        committed_at_us: Commit time, microseconds since 1970, UTC; for a snapshot row, when it was
            read.
        archived: Whether the archive has it.
        version: The number that orders the changes of a key.
    """

    topic: str
    partition: int
    offset: int
    operation: str
    position: Lsn
    epoch: int
    transaction_id: int | None
    committed_at_us: int
    archived: bool
    version: int


@dataclass(frozen=True, slots=True)
class StoredRow:
    """The state of the row in a store.

    Attributes:
        store: The store.
        state: State relative to the newest change.
        position: Log position through which the store has everything of the row.
        applied_through: Position of the view in the store; None if it reports none yet.
        batch: Number of the batch with the newest change; None if unknown.
        waiting: Number of its quarantined records.
        cause: Error code of the first of them.
    """

    store: Store
    state: StoredState
    position: Lsn | None
    applied_through: Lsn | None
    batch: int | None
    waiting: int = 0
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """The path of a row.

    Attributes:
        view: The view.
        key: The row's key, as caches and search engines name it.
        changes: Its newest changes, the oldest of them first.
        stores: The state of the row in each store.
    """

    view: str
    key: str
    changes: tuple[LoggedChange, ...]
    stores: tuple[StoredRow, ...]


def trace(config: JobConfig, plan: ViewPlan, key: str, changes_max: int = CHANGES_MAX) -> Trace:
    """Follows a row from its commits to the stores of a view.

    Args:
        config: The job's configuration.
        plan: The view.
        key: The row's key; parts of a longer one as `projections.changes.documents.key_text` joins
            them.
        changes_max: Maximum number of changes, the newest ones.

    Raises:
        TraceError: The keys of the view are not those of its table.
        BrokerError: No broker answers.
        SinkError: A store cannot be read.
    """
    if plan.events is not None or plan.append_only:
        raise TraceError(
            f"rows of view {plan.name} cannot be traced",
            detail="they are not identified by the key of a table",
            hint="headwater events stream shows an event; headwater query finds a row",
        )
    logged = sorted(_logged_changes(config, plan, key), key=lambda each: each.sighting.version)
    newest = logged[-1] if logged else None
    stores = tuple(_stored(config, plan, store, newest) for store in sorted(plan.to))
    changes = [each.sighting for each in logged[-changes_max:]]
    return Trace(plan.name, key, tuple(changes), stores)


class _Row:
    """Finds the changes of one row by key."""

    def __init__(self, plan: ViewPlan, key: str) -> None:
        self._form = DocumentForm(plan)
        self._columns = [plan.schema.by_name[name] for name in plan.keys]
        self._name = key

    def change_of(
        self, topic: str, place: tuple[int, int], event: ChangeEvent, *, archived: bool
    ) -> _KeyedChange | None:
        """Returns a change if it belongs to the row."""
        fields = event.key or {}
        try:
            key = tuple([decode(column, fields[column.name]) for column in self._columns])
        except (CdcError, KeyError):
            return None  # from a time when the table had other columns
        if self._form.name_of(key) != self._name:
            return None
        sighting = LoggedChange(
            topic,
            *place,
            str(event.operation),
            event.position.lsn,
            event.position.epoch,
            event.transaction_id,
            event.committed_at_us,
            archived,
            event.position.version,
        )
        return _KeyedChange(sighting, key, orjson.dumps(fields).decode())


class _KeyedChange(NamedTuple):
    sighting: LoggedChange
    key: tuple[object, ...]
    record_key: str  # the key under which its records wait


def _logged_changes(config: JobConfig, plan: ViewPlan, key: str) -> Iterator[_KeyedChange]:
    row, patterns = _Row(plan, key), key_patterns(plan, key)
    for topic in plan.topics:
        archived_to: dict[int, int] = {}
        for place, event in changes_of_key(config.archive, topic, patterns, archived_to):
            if change := row.change_of(topic, place, event, archived=True):
                yield change
        with searching(config.bootstrap) as client:
            for _, partition in sorted(extent.bounds(config.bootstrap, [topic])):
                part = SearchedPartition(client, (topic, partition))
                begin = max(part.begin, archived_to.get(partition, 0))
                for offset, event in part.changes(begin, part.end):
                    if change := row.change_of(topic, (partition, offset), event, archived=False):
                        yield change


def _stored(
    config: JobConfig, plan: ViewPlan, store: Store, newest: _KeyedChange | None
) -> StoredRow:
    with session.connect(config.source_dsn) as connection:
        reached = {(p.view, p.store): p.applied_through for p in positions.read(connection)}
        through = reached.get((plan.name, store))
        if newest is None:
            return StoredRow(store, StoredState.NEVER_SEEN, None, through, None)
        picked = quarantine_admin.KeySelection(plan.name, store, newest.record_key)
        waiting = quarantine_admin.keys(connection, config.source, picked)
    with closing(open_sink(store, config.addresses)) as sink:
        (version,) = sink.versions(plan, [RowChange(newest.key, 0, None, 0)])
    sighting = newest.sighting
    state = StoredState.HAS_IT if version >= sighting.version else StoredState.BEHIND
    place = sighting.topic, sighting.partition
    return StoredRow(
        store,
        StoredState.WAITS if waiting else state if version else StoredState.NEVER_SEEN,
        Lsn(lsn_of(version)) if version else None,
        through,
        spark_checkpoint.batch_of(config.checkpoint(store), place, sighting.offset),
        sum(each.records for each in waiting),
        waiting[0].code if waiting else None,
    )
