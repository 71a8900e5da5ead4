"""Reacting: a process takes something in, and what it wants done is done, in one transaction."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from eventstore.deciding.context import Context, listed
from eventstore.errors import NameRefusedError, Rejected, SubscriptionError
from eventstore.model.callables import check_result
from eventstore.model.names import check_label
from eventstore.process.journal import Journal, Process
from eventstore.process.reaction import (
    Cancel,
    CommandRejected,
    Complete,
    Dispatch,
    Schedule,
    TimedOut,
)

if TYPE_CHECKING:
    from psycopg import Connection

    from eventstore.process.manager import ProcessManager
    from eventstore.process.reaction import Reaction
    from eventstore.serialization.recorded import RecordedEvent
    from eventstore.store import EventStore
    from eventstore.subscription import Delivery

PROCESS_ID_BYTES_MAX: Final = 128
"""It is part of an idempotency key, beside the manager's name and the event's id."""

REACTIONS_MAX: Final = 100
"""To one event: more is a process that reacts to its own refusals without end."""


class _Cause(NamedTuple):
    """What a process reacts to.

    Attributes:
        taken: As `react` sees it.
        identity: Names it in keys and as the cause of what follows.
    """

    taken: Any
    identity: str


class Reacting:
    """Lets the processes of one manager take in events and timeouts.

    Threads: belongs to one.
    """

    def __init__(self, manager: ProcessManager[Any], store: EventStore) -> None:
        self._manager = manager
        self._store = store

    def take_event(self, event: RecordedEvent, delivery: Delivery) -> None:
        """The subscription's handler. Before `effects_from`, and in a replay, it only remembers."""
        process_id = self._manager.correlate(event)
        check_result(f"correlate of process manager {self._manager.name}", process_id)
        if process_id is None:
            return
        process = self._process(process_id)
        journal = Journal(delivery.connection, process)
        if journal.lock() or journal.knows(event.global_position):
            return
        journal.take_event(event.global_position)
        if delivery.live:
            cause = _Cause(event.event, str(event.event_id))
            self._react(delivery.connection, process, journal, cause)

    def take_timeout(self, process_id: str, timeout: TimedOut, connection: Connection[Any]) -> None:
        """Takes in a timeout; its timer is gone, and the process locked, already."""
        process = self._process(process_id)
        journal = Journal(connection, process)
        number = journal.take_timeout(timeout)
        cause = _Cause(timeout, f"timer-{number}")
        self._react(connection, process, journal, cause)

    def _react(
        self, connection: Connection[Any], process: Process, journal: Journal, cause: _Cause
    ) -> None:
        manager = self._manager
        state = manager.state(journal.taken(self._store.codec.decode))
        waiting: deque[Reaction] = deque(self._reactions(state, cause.taken))
        completed = False
        number = 0
        while waiting:
            reaction = waiting.popleft()
            number += 1
            if number > REACTIONS_MAX:
                raise SubscriptionError(
                    f"a process of {manager.name} reacts more than {REACTIONS_MAX} times to one"
                    " event",
                    hint="does it react to refusals with what is refused?",
                )
            if isinstance(reaction, Dispatch):
                refusal = self._dispatch(connection, process, cause, reaction.command, number)
                if refusal is not None:
                    journal.take_refusal(refusal)
                    state = manager.evolve(state, refusal)
                    waiting.extend(self._reactions(state, refusal))
            elif isinstance(reaction, Schedule):
                journal.schedule(reaction)
            elif isinstance(reaction, Cancel):
                journal.cancel(reaction.name)
            elif isinstance(reaction, Complete):
                completed = True
            else:
                raise SubscriptionError(
                    f"a process of {manager.name} reacted with what is no reaction",
                    detail=type(reaction).__qualname__,
                    hint="Dispatch, Schedule, Cancel or Complete",
                )
        if completed:
            journal.complete()

    def _reactions(self, state: Any, taken: Any) -> tuple[Reaction, ...]:
        reactions = self._manager.react(state, taken)
        check_result(f"react of process manager {self._manager.name}", reactions)
        return listed(reactions)

    def _dispatch(
        self,
        connection: Connection[Any],
        process: Process,
        cause: _Cause,
        command: Any,
        number: int,
    ) -> CommandRejected | None:
        """Has a command handled in the open transaction; returns how it was refused, if it was."""
        try:
            self._store.handle(
                command,
                idempotency_key=(
                    f"{process.manager}:{process.process_id}:{cause.identity}:{number}"
                ),
                context=Context(
                    correlation_id=process.process_id,
                    causation_id=cause.identity,
                    actor=process.manager,
                ),
                connection=connection,
            )
        except Rejected as refused:
            return CommandRejected(type(command).__qualname__, type(refused).__qualname__)
        return None

    def _process(self, process_id: str) -> Process:
        check_label("process id", process_id)
        if len(process_id.encode()) > PROCESS_ID_BYTES_MAX:
            raise NameRefusedError(
                f"a process id takes {PROCESS_ID_BYTES_MAX} bytes at most",
                detail=f"{len(process_id.encode())} bytes",
            )
        return Process(self._store.tenant, self._manager.name, process_id)
