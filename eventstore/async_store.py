"""AsyncEventStore: commands and typed events, over any `AsyncEventLog`, for asyncio."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from eventstore.deciding.context import NO_CONTEXT, occurrences
from eventstore.log import WHOLE_LOG, WHOLE_STREAM, LogPart, StreamPart
from eventstore.model.expected_version import ANY, check_expected_version
from eventstore.model.names import DEFAULT_TENANT
from eventstore.model.query import Condition, Query
from eventstore.model.unknown import UnknownPolicy
from eventstore.planning.appending import Terms, wanted_of
from eventstore.planning.async_running import AsyncPlanRunner, mapped
from eventstore.planning.handling import ATTEMPTS_MAX, Handled
from eventstore.planning.planner import Planner, checked_part, codec_of, in_category
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


class AsyncEventStore:
    """Typed events and commands over a log, for asyncio; the same answers as `EventStore`.

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
        self._runner: Final = AsyncPlanRunner(log, in_threads=keyring is not None)
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
        """Appends events to a stream, all of them or none.

        Args:
            stream: Name of the stream.
            events: One or several: of declared classes, `EventData`, or `Occurrence`s of these.
            expected_version: The version that the writer expects of the stream.
            idempotency_key: Repeating the key with the same events returns the first result,
                whatever the expected version.
            condition: Refuses the append if an event exists that the decision has not seen.
            outbox: Messages to send if, and only if, the append commits. Events of a public type
                are sent automatically.
            context: Stored with the events.
            connection: The caller's connection, whose open transaction the append joins.

        Raises:
            WrongExpectedVersionError: The stream has another version.
            IdempotencyConflictError: The key was used for other events.
            ConditionFailedError: An event matches the condition.
            IsolationRefusedError: There is a condition, and the transaction is REPEATABLE READ or
                SERIALIZABLE.
            EventRefusedError: An event would not read back unchanged.
            BatchRefusedError: There are no events, too many, or they contradict each other.
            StoreUnavailableError: The database cannot perform it now.
        """
        wanted = [(stream, occurrences(events), check_expected_version(expected_version))]
        terms = Terms(idempotency_key, condition, outbox, context)
        return await self._runner.run(self._planner.append(wanted, terms, connection))

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
        """Appends events to several streams, all of them or none.

        Args:
            appends: A mapping from stream to events; or stream, events and expected version of
                each.
            idempotency_key: See `append`.
            condition: See `append`.
            outbox: See `append`.
            context: See `append`.
            connection: See `append`.

        Raises:
            EventStoreError: See `append`.
        """
        terms = Terms(idempotency_key, condition, outbox, context)
        return await self._runner.run(self._planner.append(wanted_of(appends), terms, connection))

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
        """Decides a command and appends the resulting events.

        If another writer was faster, the state is loaded and the command decided again.

        Args:
            command: A command of a class that one of the store's deciders handles.
            expected_version: The version that the caller expects of the stream. If it is a version,
                another writer's event is an error, without a retry.
            idempotency_key: Repeating the key with the same command returns the first result, even
                if the command would be rejected now. The key of a command without events is
                recorded, too.
            context: Stored with the events.
            connection: The caller's connection, whose open transaction is joined: the state is read
                through it, and an error that breaks that transaction is not retried.
            attempts_max: Maximum number of decisions.
            boundary: Events of other streams on which the decision depends, such as
                `tagged("email:ada@example.org")`; each item names a tag. The method that decides
                gets them as a further argument. If another such event arrives before the append,
                the command is decided again.

        Raises:
            Rejected: The domain's rules refuse it, by a subclass; nothing was written.
            EventRefusedError: An event would not read back unchanged, or the decider could not fold
                it.
            UndeclaredError: No decider handles it, its class lacks a method for one of its events,
                or the boundary is missing or unused.
            IsolationRefusedError: There is a boundary, and the transaction is REPEATABLE READ or
                SERIALIZABLE.
            WrongExpectedVersionError: The stream has another version.
            ContentionError: Other writers were faster each time.
            IdempotencyConflictError: The key was used for another command.
            ResultUnknownError: The connection broke during the commit. With a key, asking for the
                result failed too; without one, the command may or may not have been committed.
        """
        return await self._runner.run(
            self._planner.handle(
                command,
                expected_version=expected_version,
                idempotency_key=idempotency_key,
                context=context,
                connection=connection,
                attempts_max=attempts_max,
                boundary=boundary,
            ),
            self._planner.serial_key(command, connection),
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
        """Returns the state of a stream; the initial state if it does not exist.

        Args:
            decider: The decider that folds it, or a class declared by `aggregate`.
            identity: The id part of the stream's name.
            at_version: Returns the state after that many events.
            as_of: Returns the state by the events recorded at or before this instant.
            connection: The caller's connection, in whose open transaction the state is read.

        Raises:
            WrongExpectedVersionError: The stream has not reached `at_version`.
            UndeclaredError: An event is of an unknown type, or of a future version.
            CompactionError: The beginning of the stream no longer exists.
        """
        return await self._runner.run(
            self._planner.state(
                decider, identity, at_version=at_version, as_of=as_of, connection=connection
            )
        )

    def read_stream(
        self, stream: str, part: StreamPart = WHOLE_STREAM, *, connection: Any = None
    ) -> AsyncIterator[RecordedEvent]:
        """Reads a stream; yields nothing if it does not exist.

        If it was compacted, the first event represents the earlier ones, unless the part says
        `archived`.

        Args:
            stream: Name of the stream.
            part: The part of its events, and the direction.
            connection: The caller's connection; events appended in its open transaction are
                visible.
        """
        found = self.log.read_stream(*self._planner.checked(stream, part), connection=connection)
        return mapped(self._planner.recorded, found)

    def read_category(
        self, category: str, part: LogPart = WHOLE_LOG
    ) -> AsyncIterator[RecordedEvent]:
        """Reads all streams of a category in global order.

        Args:
            category: The category.
            part: The part of the events, and the direction.
        """
        return self.read_all(in_category(category, part))

    def read_all(self, part: LogPart = WHOLE_LOG) -> AsyncIterator[RecordedEvent]:
        """Reads the tenant's log in global order, up to the position at which it is complete.

        Args:
            part: Which events, and in which direction.
        """
        return mapped(self._planner.recorded, self.log.read_log(self.tenant, checked_part(part)))

    def read(self, query: Query, part: LogPart = WHOLE_LOG) -> AsyncIterator[RecordedEvent]:
        """Reads the events that match a query, in global order.

        Args:
            query: Which events.
            part: Which of them, and in which direction; its own query is not used.
        """
        return self.read_all(replace(checked_part(part), query=query))

    async def read_boundary(
        self, query: Query, *, connection: Any = None
    ) -> tuple[list[RecordedEvent], Condition]:
        """Reads the events on which a decision across streams depends.

        Args:
            query: The query; each of its items names a tag.
            connection: The caller's connection; events appended in its open transaction are
                visible.

        Returns:
            The events, oldest first, and the condition for the append: it fails if another matching
            event arrived meanwhile.

        Raises:
            IsolationRefusedError: The transaction is REPEATABLE READ or SERIALIZABLE, so it would
                not see later commits of others.
        """
        found = await self.log.read_boundary(self.tenant, query, connection=connection)
        return list(map(self._planner.recorded, found.events)), Condition(query, found.after)

    async def personal_tag(self, name: str, value: str) -> str:
        """Returns the stored form of `personal_tag(name, value)`, for queries.

        Args:
            name: Name of the value, such as `email`.
            value: The personal value.

        Raises:
            SubjectKeyError: There is no key ring, or the tenant's key for tags was shredded.
        """
        return await self._runner.compute(self.codec.personal_tag, self.tenant, name, value)

    async def wait_for(self, token: Token, timeout_s: float) -> None:
        """Waits until every reader of the log sees all events up to a token.

        Args:
            token: Token of a command or an append.
            timeout_s: Longest wait, seconds.

        Raises:
            WaitTimeoutError: A writer's transaction that began before it is still open.
        """
        await self._runner.run(waiting(token, timeout_s))

    async def close(self) -> None:
        """Closes the log, for its other tenants too; a wait ends when its task is cancelled."""
        await self._runner.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
