"""EventLog: the port behind which events are kept. Postgres is one; memory is its twin.

Guarantees that every implementation gives, proved by `eventstore.testing.EventLogContract`:

- *Atomic*: an append is stored whole or not at all, across streams.
- *Contiguous*: a stream's positions are 1, 2, 3, … without gaps; no two events share one.
- *Ordered*: within a stream, global positions ascend with stream positions. Across streams they
  are a total order that never changes; it has gaps.
- *Complete*: a read of the log up to `high_water_mark()` sees every event that will ever be there.
  Nothing commits below it later.
- *Immutable*: what was read once reads the same for ever. Compaction replaces the beginning of a
  stream for those who fold it; readers of the log still see the original events.
- *Isolated*: a tenant's reads and appends never touch another's.
- *Durable*: when `append` has returned, the events outlive a crash of the server (not in memory).

Threads: all methods may be called from several threads at once; an iterator belongs to one.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from eventstore.errors import BatchRefusedError
from eventstore.model.callables import check_kind
from eventstore.model.query import EVERYTHING, POSITION_MAX, Query

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from eventstore.model.event import Appended, AppendRequest, StoredEvent


class Boundary(NamedTuple):
    """The events on which a decision across streams depends.

    Attributes:
        events: Every event that the query matches, oldest first.
        after: Global position for the append's `Condition`.
    """

    events: list[StoredEvent]
    after: int


class StateSnapshot(NamedTuple):
    """Saved state of one stream, to spare reading its beginning.

    Attributes:
        stream: Name of the stream.
        fold: Name and version of the code that made it; another fold never reads it.
        stream_position: The last event that it has.
        state: JSON, possibly sealed.
        digest: SHA-256 of what it was made of; a snapshot that does not fit it is damaged.
        subjects: Persons whose fields are in it.
    """

    stream: str
    fold: str
    stream_position: int
    state: bytes
    digest: bytes
    subjects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StreamPart:
    """A selection of events of a stream.

    Attributes:
        after: Only stream positions greater than this.
        through: Only stream positions up to this one.
        as_of: Only events recorded at or before this instant.
        backwards: Newest event first.
        limit: Maximum number of events.
        archived: Read the original events of a compacted stream; otherwise one `$snapshot` event
            replaces them.
    """

    after: int = 0
    through: int | None = None
    as_of: datetime | None = None
    backwards: bool = False
    limit: int | None = None
    archived: bool = False

    def __post_init__(self) -> None:
        _check_bounds(self.after, self.through, self.limit)
        if self.as_of is not None:
            check_kind("as_of", self.as_of, datetime, "datetime.now(UTC)")
        if self.as_of is not None and self.as_of.utcoffset() is None:
            raise BatchRefusedError(
                "an instant needs a UTC offset", detail="as_of", hint="datetime.now(UTC)"
            )


@dataclass(frozen=True, slots=True)
class LogPart:
    """A selection of events of the log.

    Attributes:
        query: Types, tags and category.
        after: Only global positions greater than this.
        through: Only global positions up to this one.
        backwards: Newest event first.
        limit: Maximum number of events.
    """

    query: Query = EVERYTHING
    after: int = 0
    through: int | None = None
    backwards: bool = False
    limit: int | None = None

    def __post_init__(self) -> None:
        check_kind("the query of a part of the log", self.query, Query, "such as tagged(...)")
        _check_bounds(self.after, self.through, self.limit)


def _check_bounds(after: int, through: int | None, limit: int | None) -> None:
    for name, bound in (("after", after), ("through", through), ("limit", limit)):
        absent = bound is None and name != "after"
        if not absent and (type(bound) is not int or not 0 <= bound <= POSITION_MAX):
            raise BatchRefusedError(f"{name} must be 0 or more", detail=f"{bound!r:.80}")


WHOLE_STREAM: Final = StreamPart()
WHOLE_LOG: Final = LogPart()


class EventLog(Protocol):
    """Stores events. The module's docstring lists the guarantees."""

    def append(self, request: AppendRequest, *, connection: Any = None) -> Appended:
        """Stores events, or nothing.

        Args:
            request: The events.
            connection: The caller's database connection, session or cursor, whose open transaction
                the append joins; the caller commits. None for a transaction of its own.

        Raises:
            WrongExpectedVersionError: A stream has another version. The caller's transaction stays
                usable.
            IdempotencyConflictError: The key was used for another payload, whatever the expected
                version says.
            ConditionFailedError: An event matches the condition.
            IsolationRefusedError: There is a condition, and the transaction keeps one snapshot
                (REPEATABLE READ, SERIALIZABLE), which would hide a matching event. A stream's
                version and an idempotency key are safe there, too: the slower writer gets
                ContentionError.
            StoreUnavailableError: The subclass says whether a retry can succeed.
        """
        ...

    def read_stream(
        self,
        tenant: str,
        stream: str,
        part: StreamPart = WHOLE_STREAM,
        *,
        connection: Any = None,
    ) -> Iterator[StoredEvent]:
        """Reads a stream; yields nothing if it does not exist.

        Args:
            tenant: Whose.
            stream: Which.
            part: Which of its events, and in which direction.
            connection: See `append`; sees what that transaction has appended.
        """
        ...

    def read_log(
        self,
        tenant: str | None,
        part: LogPart = WHOLE_LOG,
    ) -> Iterator[StoredEvent]:
        """Reads the log in its order, up to the high-water mark of the start, originals always.

        Who reads in turns goes on after the last event that it has read. It does not go on after a
        mark of another process: this one's may be behind it.

        Args:
            tenant: Whose; None for all tenants, where the role may see them.
            part: Which events, and in which direction.
        """
        ...

    def high_water_mark(self) -> int:
        """Returns the global position up to which the log is complete; 0 if it is empty."""
        ...

    def stream_version(self, tenant: str, stream: str, *, connection: Any = None) -> int:
        """Returns the position of the stream's last event; 0 if there is none."""
        ...

    def result_of(self, tenant: str, key: str, *, connection: Any = None) -> Repeated | None:
        """Returns what was done under an idempotency key; None if nothing was."""
        ...

    def read_boundary(self, tenant: str, query: Query, *, connection: Any = None) -> Boundary:
        """Reads what a decision across streams depends on, with the position to append after.

        Waits for writers that are about to add events with the same tags, and for no others. Every
        item of the query needs a tag.

        Args:
            tenant: Whose.
            query: Which events.
            connection: See `append`; sees what that transaction has appended, and makes writers of
                the same tags wait until it ends.

        Raises:
            IsolationRefusedError: The transaction keeps one snapshot.
        """
        ...

    def snapshot(
        self, tenant: str, stream: str, fold: str, *, through: int | None = None
    ) -> StateSnapshot | None:
        """Returns the saved state of a stream for a fold, if it is not beyond `through`."""
        ...

    def save_snapshot(self, tenant: str, snapshot: StateSnapshot) -> None:
        """Saves state in the place of an older one of the same stream and fold."""
        ...

    def close(self) -> None:
        """Closes connections and releases resources."""
        ...


class Repeated(NamedTuple):
    """The first result for an idempotency key.

    Attributes:
        digest: Digest of its payload.
        appended: Its result, with `repeated` set.
    """

    digest: bytes
    appended: Appended


class AsyncEventLog(Protocol):
    """`EventLog` for asyncio; same names, same guarantees."""

    async def append(self, request: AppendRequest, *, connection: Any = None) -> Appended:
        """See `EventLog.append`."""
        ...

    def read_stream(
        self,
        tenant: str,
        stream: str,
        part: StreamPart = WHOLE_STREAM,
        *,
        connection: Any = None,
    ) -> AsyncIterator[StoredEvent]:
        """See `EventLog.read_stream`."""
        ...

    def read_log(
        self,
        tenant: str | None,
        part: LogPart = WHOLE_LOG,
    ) -> AsyncIterator[StoredEvent]:
        """See `EventLog.read_log`."""
        ...

    async def high_water_mark(self) -> int:
        """See `EventLog.high_water_mark`."""
        ...

    async def stream_version(self, tenant: str, stream: str, *, connection: Any = None) -> int:
        """See `EventLog.stream_version`."""
        ...

    async def result_of(self, tenant: str, key: str, *, connection: Any = None) -> Repeated | None:
        """See `EventLog.result_of`."""
        ...

    async def read_boundary(self, tenant: str, query: Query, *, connection: Any = None) -> Boundary:
        """See `EventLog.read_boundary`."""
        ...

    async def snapshot(
        self, tenant: str, stream: str, fold: str, *, through: int | None = None
    ) -> StateSnapshot | None:
        """See `EventLog.snapshot`."""
        ...

    async def save_snapshot(self, tenant: str, snapshot: StateSnapshot) -> None:
        """See `EventLog.save_snapshot`."""
        ...

    async def close(self) -> None:
        """See `EventLog.close`."""
        ...
