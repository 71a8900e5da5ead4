"""AsyncEventStore: `EventStore` for asyncio; same names, same plans, same answers."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from eventstore.deciding.context import NO_CONTEXT, occurrences
from eventstore.log import WHOLE_LOG, WHOLE_STREAM, LogPart, StreamPart
from eventstore.model.callables import check_log
from eventstore.model.expected_version import ANY, check_expected_version
from eventstore.model.names import DEFAULT_TENANT
from eventstore.model.query import Condition, Query
from eventstore.model.unknown import UnknownPolicy
from eventstore.planning.appending import Terms, wanted_of
from eventstore.planning.handling import ATTEMPTS_MAX, Handled
from eventstore.planning.operation import Call, Finished, Pause, Plan, advanced
from eventstore.planning.planner import Planner, codec_of, in_category
from eventstore.planning.waiting import waiting
from eventstore.serialization.registry import EventTypes, declared

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from datetime import datetime
    from uuid import UUID

    from eventstore.deciding.context import Context
    from eventstore.deciding.decider import Decider
    from eventstore.log import AsyncEventLog
    from eventstore.model.event import Appended, IntegrationEvent
    from eventstore.model.token import Token
    from eventstore.planning.loading import State
    from eventstore.privacy.keyring import KeyRing
    from eventstore.serialization.recorded import RecordedEvent

S = TypeVar("S")
T = TypeVar("T")


class AsyncEventStore:
    """Typed events and commands over a log, for asyncio; see `EventStore` for each method.

    A key ring may query its database. With a key ring, planning runs in a thread, including
    `decide` and `evolve`, and the first access to `.event` of a read event may block.

    Args:
        log: The log that stores the events, such as `AsyncPostgresEventLog(dsn)`.
        types: Registry of the event types.
        deciders: Deciders of its commands, or classes declared by `aggregate`.
        tenant: The tenant of its streams.
        keyring: Keys of subjects, for personal fields; None if no event has any.
        unknown: What a subscription does with events of undeclared types.

    Attributes:
        log: As given.
        codec: Encodes and decodes its events.
        unknown: As given.

    Raises:
        UndeclaredError: Two deciders handle the same command, or fold one category differently.
        WrongKindError: The log, the registry or the key ring is a class or of another kind.
        NameRefusedError: The tenant's name is invalid.
    """

    def __init__(  # noqa: PLR0913  # each is one thing that a caller can want
        self,
        log: AsyncEventLog,
        *,
        types: EventTypes = declared,
        deciders: Sequence[Decider[Any, Any, Any] | type] = (),
        tenant: str = DEFAULT_TENANT,
        keyring: KeyRing | None = None,
        unknown: UnknownPolicy = UnknownPolicy.HALT,
    ) -> None:
        check_log(log, asynchronous=True)
        self.log: Final = log
        self.codec: Final = codec_of(types, keyring)
        self.unknown: Final = UnknownPolicy(unknown)
        self._planner = Planner(self.codec, deciders, tenant)

    @property
    def tenant(self) -> str:
        """The tenant of the streams that it reads and writes."""
        return self._planner.tenant

    def for_tenant(self, tenant: str) -> Self:
        """Returns the same store for another tenant, over the same log.

        Raises:
            NameRefusedError: The tenant's name is invalid.
        """
        made = copy.copy(self)
        made._planner = self._planner.for_tenant(tenant)  # noqa: SLF001  # its own class
        return made

    async def append(  # noqa: PLR0913  # each is one thing that a caller can want
        self,
        stream: str,
        events: Any,
        *,
        expected_version: int = ANY,
        idempotency_key: str | None = None,
        condition: Condition | None = None,
        outbox: Sequence[IntegrationEvent] = (),
        context: Context = NO_CONTEXT,
        connection: Any = None,
    ) -> Appended:
        """See `EventStore.append`."""
        wanted = [(stream, occurrences(events), check_expected_version(expected_version))]
        terms = Terms(idempotency_key, condition, outbox, context)
        return await self._run(self._planner.append(wanted, terms, connection))

    async def append_all(  # noqa: PLR0913  # each is one thing that a caller can want
        self,
        appends: Any,
        *,
        idempotency_key: str | None = None,
        condition: Condition | None = None,
        outbox: Sequence[IntegrationEvent] = (),
        context: Context = NO_CONTEXT,
        connection: Any = None,
    ) -> Appended:
        """See `EventStore.append_all`."""
        terms = Terms(idempotency_key, condition, outbox, context)
        return await self._run(self._planner.append(wanted_of(appends), terms, connection))

    async def handle(  # noqa: PLR0913  # each is one thing that a caller can want
        self,
        command: object,
        *,
        expected_version: int = ANY,
        idempotency_key: str | None = None,
        context: Context = NO_CONTEXT,
        connection: Any = None,
        attempts_max: int = ATTEMPTS_MAX,
        boundary: Query | None = None,
    ) -> Handled:
        """See `EventStore.handle`."""
        return await self._run(
            self._planner.handle(
                command,
                expected_version=expected_version,
                idempotency_key=idempotency_key,
                context=context,
                connection=connection,
                attempts_max=attempts_max,
                boundary=boundary,
            )
        )

    async def state(
        self,
        decider: Decider[Any, Any, S] | type[S],
        identity: str | int | UUID,
        *,
        at_version: int | None = None,
        as_of: datetime | None = None,
        connection: Any = None,
    ) -> State[S]:
        """See `EventStore.state`."""
        return await self._run(
            self._planner.state(
                decider, identity, at_version=at_version, as_of=as_of, connection=connection
            )
        )

    async def read_stream(
        self, stream: str, part: StreamPart = WHOLE_STREAM, *, connection: Any = None
    ) -> AsyncIterator[RecordedEvent]:
        """See `EventStore.read_stream`."""
        recorded = self._planner.recorded
        asked = self._planner.checked(stream, part)
        async for stored in self.log.read_stream(*asked, connection=connection):
            yield recorded(stored)

    def read_category(
        self, category: str, part: LogPart = WHOLE_LOG
    ) -> AsyncIterator[RecordedEvent]:
        """See `EventStore.read_category`."""
        return self.read_all(in_category(category, part))

    async def read_all(self, part: LogPart = WHOLE_LOG) -> AsyncIterator[RecordedEvent]:
        """See `EventStore.read_all`."""
        recorded = self._planner.recorded
        async for stored in self.log.read_log(self.tenant, part):
            yield recorded(stored)

    def read(self, query: Query, part: LogPart = WHOLE_LOG) -> AsyncIterator[RecordedEvent]:
        """See `EventStore.read`."""
        return self.read_all(replace(part, query=query))

    async def read_boundary(
        self, query: Query, *, connection: Any = None
    ) -> tuple[list[RecordedEvent], Condition]:
        """See `EventStore.read_boundary`."""
        found = await self.log.read_boundary(self.tenant, query, connection=connection)
        return list(map(self._planner.recorded, found.events)), Condition(query, found.after)

    async def personal_tag(self, name: str, value: str) -> str:
        """See `EventStore.personal_tag`."""
        return await asyncio.to_thread(self.codec.personal_tag, self.tenant, name, value)

    async def wait_for(self, token: Token, timeout_s: float) -> None:
        """See `EventStore.wait_for`."""
        await self._run(waiting(token, timeout_s))

    async def close(self) -> None:
        """Closes the log; a wait ends when its task is cancelled."""
        await self.log.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, plan: Plan[T]) -> T:
        step = await self._advanced(plan)
        while not isinstance(step, Finished):
            try:
                answer = await self._perform(step)
            except Exception as error:  # noqa: BLE001  # the plan knows what it means, or raises it
                step = await self._advanced(plan, error=error)
            else:
                step = await self._advanced(plan, answer)
        value: T = step.value
        return value

    async def _advanced(
        self, plan: Plan[Any], answer: object = None, error: Exception | None = None
    ) -> Call | Pause | Finished:
        if self.codec.keyring is None:
            return advanced(plan, answer, error)
        return await asyncio.to_thread(advanced, plan, answer, error)

    async def _perform(self, step: Call | Pause) -> object:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return False
        answer = getattr(self.log, step.method)(*step.arguments, **step.options)
        if step.method == "read_stream":
            return [stored async for stored in answer]
        return await answer
