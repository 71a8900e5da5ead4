"""Reacting: records an input of a process and performs its reactions in one transaction."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from eventstore.deciding.context import Context, listed
from eventstore.errors import NameRefusedError, Rejected, SubscriptionError
from eventstore.model.callables import check_instance, check_result
from eventstore.model.event import StoredEvent
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
from eventstore.subscription import Start

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventstore.async_store import AsyncEventStore
    from eventstore.process.manager import ProcessManager
    from eventstore.process.reaction import Reaction
    from eventstore.serialization.recorded import RecordedEvent
    from eventstore.store import EventStore
    from eventstore.subscription import Delivery
    from eventstore.subscription.session import RunnerSession

BATCH_SIZE: Final = 20
"""Each event may append to several streams, whose locks are held until the batch commits."""

PROCESS_ID_BYTES_MAX: Final = 128
"""It is part of an idempotency key, beside the manager's name and the event's id."""

REACTIONS_MAX: Final = 100
"""Reactions to one input; a process that exceeds it probably reacts to its own refusals."""


class _Cause(NamedTuple):
    """The input that a process reacts to.

    Attributes:
        taken: The input as `react` receives it.
        identity: Identifies it in idempotency keys and as the causation id of commands.
    """

    taken: Any
    identity: str


class Reacting:
    """Passes events and timeouts to the processes of one manager.

    Threads: for use by one thread.
    """

    def __init__(
        self,
        manager: ProcessManager[Any],
        store: EventStore | AsyncEventStore,
        journal: Callable[[RunnerSession, Process], Journal] = Journal,
    ) -> None:
        check_instance("a process manager", manager, ["correlate", "react"])
        self._manager = manager
        self._store = store
        self._journal = journal

    def subscription(self, options: dict[str, Any]) -> dict[str, Any]:
        """Returns the attributes of the manager's subscription besides its handler.

        Args:
            options: Given by the caller; see `ProcessRunner`.
        """
        return dict(
            name=self._manager.name,
            query=self._manager.query,
            tenant=self._store.tenant,
            unknown=self._store.unknown,
            **{"batch_size": BATCH_SIZE, "start": Start.BEGINNING, **options},
        )

    async def take_event(
        self, event: RecordedEvent, delivery: Delivery, session: RunnerSession
    ) -> None:
        """Handles an event. Before `effects_from`, and in a replay, it only records the event."""
        process_id = self._manager.correlate(event)
        check_result(f"correlate of process manager {self._manager.name}", process_id)
        if process_id is None:
            return
        process = self._process(process_id)
        journal = self._journal(session, process)
        if await journal.lock() or await journal.knows(event.global_position):
            return
        await journal.take_event(event.global_position)
        if delivery.live:
            cause = _Cause(event.event, str(event.event_id))
            await self._react(session, process, journal, cause)

    async def take_timed_out(
        self, process_id: str, timed_out: TimedOut, session: RunnerSession
    ) -> None:
        """Handles a timeout. The caller has locked the process and deleted the timer."""
        process = self._process(process_id)
        journal = self._journal(session, process)
        number = await journal.take_timed_out(timed_out)
        cause = _Cause(timed_out, f"timer-{number}")
        await self._react(session, process, journal, cause)

    async def _react(
        self, session: RunnerSession, process: Process, journal: Journal, cause: _Cause
    ) -> None:
        manager = self._manager
        state = await session.compute(self._state, await journal.inputs())
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
                    hint="check that it does not answer a refusal with a command refused again",
                )
            if isinstance(reaction, Dispatch):
                refusal = await self._dispatch(session, process, cause, reaction.command, number)
                if refusal is not None:
                    await journal.take_refusal(refusal)
                    state = manager.evolve(state, refusal)
                    waiting.extend(self._reactions(state, refusal))
            elif isinstance(reaction, Schedule):
                await journal.schedule(reaction)
            elif isinstance(reaction, Cancel):
                await journal.cancel(reaction.name)
            elif isinstance(reaction, Complete):
                completed = True
            else:
                raise SubscriptionError(
                    f"react of process manager {manager.name} returned an unsupported reaction",
                    detail=type(reaction).__qualname__,
                    hint="return Dispatch, Schedule, Cancel or Complete",
                )
        if completed:
            await journal.complete()

    def _state(self, taken: list[Any]) -> Any:
        decode = self._store.codec.decode
        return self._manager.state(
            decode(one) if isinstance(one, StoredEvent) else one for one in taken
        )

    def _reactions(self, state: Any, taken: Any) -> tuple[Reaction, ...]:
        reactions = self._manager.react(state, taken)
        check_result(f"react of process manager {self._manager.name}", reactions)
        return listed(reactions)

    async def _dispatch(
        self,
        session: RunnerSession,
        process: Process,
        cause: _Cause,
        command: Any,
        number: int,
    ) -> CommandRejected | None:
        """Handles a command in the open transaction; returns the refusal, None if accepted."""
        try:
            handle = partial(
                self._store.handle,
                command,
                idempotency_key=(
                    f"{process.manager}:{process.process_id}:{cause.identity}:{number}"
                ),
                context=Context(
                    correlation_id=process.process_id,
                    causation_id=cause.identity,
                    actor=process.manager,
                ),
                connection=session.connection,
            )
            await session.call(f"handle of the store of {process.manager}", handle)
        except Rejected as refused:
            return CommandRejected(type(command).__qualname__, type(refused).__qualname__)
        return None

    def _process(self, process_id: str) -> Process:
        check_label("process id", process_id)
        if len(process_id.encode()) > PROCESS_ID_BYTES_MAX:
            raise NameRefusedError(
                f"a process id has {PROCESS_ID_BYTES_MAX} bytes at most",
                detail=f"{len(process_id.encode())} bytes",
            )
        return Process(self._store.tenant, self._manager.name, process_id)
