"""ProcessSimulation: a process manager with its store, in memory, by a clock that a test moves."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from eventstore.errors import SubscriptionError
from eventstore.log import LogPart
from eventstore.model.callables import check_function, check_result
from eventstore.process.journal import Journal, Process
from eventstore.process.reacting import Reacting
from eventstore.process.reaction import TimedOut
from eventstore.subscription.delivery import Delivery
from eventstore.subscription.session import RunnerSession, completed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from datetime import datetime

    from eventstore.model.event import StoredEvent
    from eventstore.process.manager import ProcessManager
    from eventstore.process.reaction import CommandRejected, Schedule
    from eventstore.store import EventStore
    from eventstore.testing.clock import MovedClock


class ProcessSimulation:
    """Simulates a `ProcessRunner`, synchronously in this thread.

    Reactions, refusals and idempotency keys use the runner's own code. Only the journal is in
    memory, and nothing is retried: `run` raises the errors of the manager and the store.

    Args:
        manager: What to run.
        store: A store with the deciders of the commands and a `MemoryEventLog`.
        clock: Clock of the timers and of the log: `MemoryEventLog(clock=clock)`.

    Attributes:
        timers: When each timer is due, by process and name.
        completed: Processes that have ended.
    """

    def __init__(self, manager: ProcessManager[Any], store: EventStore, clock: MovedClock) -> None:
        check_function("handle of the store of a ProcessSimulation", store.handle)
        self._manager = manager
        self._store = store
        self._clock = clock
        self._kept: dict[Process, _Kept] = {}
        self._session = _NoSession()
        self._reacting = Reacting(manager, store, self._journal)
        self._position = 0

    @property
    def timers(self) -> dict[tuple[str, str], datetime]:
        """See the class."""
        return {
            (process.process_id, name): due
            for process, kept in self._kept.items()
            for name, due in kept.timers.items()
        }

    @property
    def completed(self) -> set[str]:
        """See the class."""
        return {process.process_id for process, kept in self._kept.items() if kept.completed}

    def run(self) -> None:
        """Processes all events and due timers, and their consequences."""
        while self._take_events() or self._fire():
            pass

    def move(self, by: timedelta) -> None:
        """Moves the clock from one due timer to the next, and calls `run` at each."""
        until = self._clock() + by
        self.run()
        while due := [at for at in self.timers.values() if at <= until]:
            self._clock.move(max(min(due) - self._clock(), timedelta()))
            self.run()
        self._clock.move(until - self._clock())
        self.run()

    def _take_events(self) -> bool:
        part = LogPart(after=self._position)
        found = list(self._store.read(self._manager.query, part))
        for event in found:
            key = f"{self._manager.name}:{event.event_id}"
            delivery = Delivery(None, self._manager.name, event.tenant, True, 1, key)
            completed(self._reacting.take_event(event, delivery, self._session))
            self._position = event.global_position
        return bool(found)

    def _fire(self) -> bool:
        due = sorted((at, key) for key, at in self.timers.items() if at <= self._clock())
        if not due:
            return False
        at, (process_id, name) = due[0]
        del self._kept[Process(self._store.tenant, self._manager.name, process_id)].timers[name]
        timed_out = TimedOut(name, at)
        completed(self._reacting.take_timed_out(process_id, timed_out, self._session))
        return True

    def _journal(self, session: RunnerSession, process: Process) -> Journal:
        kept = self._kept.setdefault(process, _Kept())
        return _MemoryJournal(session, process, kept, self._clock, self._stored)

    def _stored(self, global_position: int) -> StoredEvent:
        part = LogPart(after=global_position - 1, through=global_position)
        (event,) = self._store.log.read_log(self._store.tenant, part)
        return event


@dataclass(slots=True)
class _Kept:
    """What is kept of one process."""

    inputs: list[Any] = field(default_factory=list)
    positions: set[int] = field(default_factory=set)
    timers: dict[str, datetime] = field(default_factory=dict)
    completed: bool = False


class _MemoryJournal(Journal):
    """A journal in memory."""

    def __init__(
        self,
        session: RunnerSession,
        process: Process,
        kept: _Kept,
        clock: MovedClock,
        stored: Callable[[int], StoredEvent],
    ) -> None:
        super().__init__(session, process)
        self._kept = kept
        self._clock = clock
        self._stored = stored

    async def lock(self) -> bool:
        return self._kept.completed

    async def knows(self, global_position: int) -> bool:
        return global_position in self._kept.positions

    async def take_event(self, global_position: int) -> int:
        self._kept.positions.add(global_position)
        return self._keep(self._stored(global_position))

    async def take_timed_out(self, timed_out: TimedOut) -> int:
        return self._keep(timed_out)

    async def take_refusal(self, refusal: CommandRejected) -> int:
        return self._keep(refusal)

    async def inputs(self) -> list[Any]:
        return list(self._kept.inputs)

    async def schedule(self, timer: Schedule) -> None:
        after = timer.after or timedelta()
        self._kept.timers[timer.name] = timer.at or self._clock() + after

    async def cancel(self, name: str) -> bool:
        return self._kept.timers.pop(name, None) is not None

    async def complete(self) -> None:
        self._kept.completed = True
        self._kept.timers.clear()

    def _keep(self, taken: Any) -> int:
        self._kept.inputs.append(taken)
        return len(self._kept.inputs)


class _NoSession(RunnerSession):
    """A session without a database: only functions are called."""

    connection = None

    async def rows(self, asked: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        raise _no_database(asked, parameters)

    async def events(self, asked: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        raise _no_database(asked, parameters)

    async def change(self, asked: str, parameters: Any = None) -> int:
        raise _no_database(asked, parameters)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        yield

    async def call(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        result = function(*arguments)
        check_result(what, result)
        return result

    async def compute(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)


def _no_database(asked: str, _: Any) -> SubscriptionError:
    return SubscriptionError("a simulation has no database", detail=asked[:200])
