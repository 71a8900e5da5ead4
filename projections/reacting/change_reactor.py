"""ChangeReactorRunner: effects of the changes of captured tables, in a consumer group.

The changes come from `cdc.consumer`, which keeps positions, the order of each key, retries and
parked keys. Breaker, rate and effects are those of `eventstore.reactor`.
"""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import orjson

from cdc.consumer import Changes, ConsumerRetryPolicy, GroupStart, changes
from cdc.envelope import Operation
from eventstore.deciding.context import Context
from eventstore.errors import EventStoreError
from eventstore.model.callables import check_result
from eventstore.model.query import EVERYTHING
from eventstore.process import Dispatch
from eventstore.reactor.limit import EffectLimit
from foundation.json_numbers import with_number_texts
from projections.definition.views import DerivedView, EventsView, MirrorView
from projections.errors import DeclarationError, EffectKeyError, ProjectionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cdc import TableName
    from cdc.consumer import Change
    from eventstore.reactor import Effect, Reactor
    from eventstore.store import EventStore

_LOOK_S: Final = 0.25
"""How soon it reacts to a request to stop."""

_DIGITS: Final = 16


def reactor_changes(
    kafka: Any, reactor: Reactor, *, start: GroupStart = GroupStart.END, **options: Any
) -> Changes:
    """Opens the changes for a reactor: in a consumer group of its name, with its retry policy.

    Args:
        kafka: See `cdc.changes`.
        reactor: Its `react` takes a `Change`.
        start: Where the group begins; by default, earlier changes have no effects.
        options: `source`, `tables`, `dsn` and other options of `cdc.changes`. A mirror in `tables`
            stands for its table.

    Raises:
        CdcError: See `cdc.changes`.
        DeclarationError: One of `tables` is a view without positions of its own.
    """
    if options.get("tables") is not None:
        options["tables"] = tables_of(options["tables"])
    retry = ConsumerRetryPolicy(
        attempts_max=reactor.retry.attempts_max,
        wait_initial_s=reactor.retry.wait_initial_s,
        wait_max_s=reactor.retry.wait_max_s,
        factor=reactor.retry.factor,
        jitter=reactor.retry.jitter,
        permanent=reactor.retry.permanent,
    )
    return changes(kafka, group=reactor.name, start=start, retry=retry, **options)


def tables_of(tables: Iterable[str | TableName | MirrorView]) -> list[str | TableName]:
    """Returns the tables whose changes a reactor receives.

    Raises:
        DeclarationError: One of them is a derived view, or a view of events.
    """
    return [_table_of(each) for each in tables]


def _table_of(table: Any) -> str | TableName:
    if isinstance(table, MirrorView):
        return table.table
    if isinstance(table, DerivedView):
        raise DeclarationError(
            f"view {table.name} is derived, so a reactor cannot receive its changes",
            detail="its rows have no positions that a rebuild would repeat, so their effects would"
            " have no stable keys",
            hint="declare an alert on the view, or a reactor of the tables that it reads",
        )
    if isinstance(table, EventsView):
        raise DeclarationError(
            f"view {table.name} consists of events",
            hint="declare a reactor of the events: eventstore.reactor.runner.ReactorRunner",
        )
    name: str | TableName = table
    return name


class ChangeReactorRunner:
    """Makes the effects of changes, one change at a time, until the changes are stopped.

    Args:
        source_changes: The changes of one member of the group; the caller closes them.
        reactor: The reactor. `query`, `partitions` and `start` only apply to events, and must have
            their defaults.
        store: Handles commands; None for a reactor without any.

    Raises:
        DeclarationError: The reactor is one of events.
    """

    def __init__(
        self, source_changes: Changes, reactor: Reactor, store: EventStore | None = None
    ) -> None:
        if reactor.query != EVERYTHING or reactor.partitions != 1:
            raise DeclarationError(
                f"reactor {reactor.name} is one of events",
                hint="leave out query and partitions; tables choose changes, and Kafka has"
                " the partitions",
            )
        self._changes = source_changes
        self._reactor = reactor
        self._store = store
        self._limit = EffectLimit(reactor)
        self._held: deque[Change] = deque()
        self._done: set[str] = set()
        self._pause = threading.Event()

    def run(self) -> None:
        """Makes effects until the changes are stopped, by `stop` or SIGTERM.

        Raises:
            ConsumerError: Reading has failed; see `cdc.consumer.Changes`.
        """
        while not self._changes.stopping:
            if self._changes.paused:
                self._put_back()
                self._pause.wait(_LOOK_S)
                continue
            wait_s = self._limit.wait_s()
            if wait_s > 0:
                self._pause.wait(min(wait_s, _LOOK_S))
                continue
            change = self._next()
            if change is not None:
                self._take(change)

    def stop(self) -> None:
        """Ends `run` after the effect under way; may be called from a signal handler."""
        self._changes.stop()
        self._pause.set()

    def _put_back(self) -> None:
        """Returns waiting changes to the group, so that a pause holds none."""
        while self._held:
            self._held.popleft().put_back()

    def _next(self) -> Change | None:
        """Returns the next change; for a probe, preferably one not attempted before."""
        if self._held and self._limit.closed:
            return self._held.popleft()
        change = self._changes.take(timeout_s=0 if self._held else _LOOK_S)
        if change is None and self._held and not self._changes.stopping:
            return self._held.popleft()
        return change

    def _take(self, change: Change) -> None:
        keys: list[str] = []
        try:
            counts = self._make(change, keys)
        except Exception as error:  # noqa: BLE001  # whatever it is, only this key waits
            counts = True
            _failed(change, error)
        else:
            if counts:
                change.ack()
        if counts:
            self._done.difference_update(keys)
        else:
            self._held.append(change)

    def _make(self, change: Change, keys: list[str]) -> bool:
        """Makes the effects of a change; returns False if it must wait for a dependency.

        Raises:
            Exception: The error of an attempt that counts.
        """
        if change.snapshot:
            return True
        commands = []
        for number, effect in enumerate(self._reactor.effects(change), 1):  # type: ignore[arg-type]  # takes changes
            key = f"{change_key(self._reactor.name, self._changes.spec.source, change)}:{number}"
            keys.append(key)
            if isinstance(effect, Dispatch):
                commands.append((key, effect))
            elif key not in self._done and not self._perform(key, effect):
                return False
        for key, command in commands:
            self._dispatch(change, key, command)
        return True

    def _perform(self, key: str, effect: Effect) -> bool:
        try:
            done = effect.perform(key)  # type: ignore[union-attr]  # commands are not performed
            check_result(f"an effect of reactor {self._reactor.name}", done)
        except Exception as error:
            if self._limit.failed(error):
                raise
            return False
        self._limit.succeeded()
        self._done.add(key)
        return True

    def _dispatch(self, change: Change, key: str, effect: Dispatch) -> None:
        if self._store is None:
            raise DeclarationError(
                f"reactor {self._reactor.name} dispatches a command, and has no store",
                hint="ChangeReactorRunner(changes, reactor, store)",
            )
        cause = f"{change.topic}/{change.partition}@{change.offset}"
        context = Context(causation_id=cause, actor=self._reactor.name)
        self._store.handle(effect.command, idempotency_key=key, context=context)


def change_key(name: str, source: str, change: Change) -> str:
    """Returns the name of a change for a reactor, the same at every delivery.

    It contains a digest of the row's key, because external systems receive it.

    Raises:
        EffectKeyError: The table has no key, so changes of rows cannot be told apart.
    """
    if change.key is None and change.operation is not Operation.TRUNCATE:
        raise EffectKeyError(
            f"changes of {change.table} have no key, so their effects cannot have one",
            hint="give the table a primary key, or a replica identity with a unique index",
        )
    row = [source, str(change.table), None if change.key is None else dict(change.key)]
    told = orjson.dumps(with_number_texts(row), default=str, option=orjson.OPT_SORT_KEYS)
    return f"{name}:{hashlib.sha256(told).hexdigest()[:_DIGITS]}:{change.position.version}"


def _failed(change: Change, error: Exception) -> None:
    """Schedules a retry of a change, or parks its key if retries cannot help."""
    final = isinstance(error, EventStoreError | ProjectionError) and not error.retriable
    if final:
        change.park(error)
    else:
        change.fail(error)
