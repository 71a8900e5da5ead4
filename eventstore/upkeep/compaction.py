"""Compaction: a stream's first events are folded into one `$snapshot`; the originals are archived.

What it means for those who read:

- *Folding*: the `$snapshot` at position k has the state after event k. It replaces whatever state
  there was, so a reader who had events up to j < k already goes on with it and is right.
- *The stream's version* and every event after k stay as they are; expected versions go on.
- *The log*, subscriptions, tags, and reads of a stream with `archived=True` or `as_of` see the
  original events, in their places, always.
- *Another fold*: a `$snapshot` is the state of one decider's fold. A reader that cannot read it
  (another fold or version, or a state encrypted with a destroyed key) folds the originals.

Before a prefix is replaced, the state is encoded, decoded, and carried on beside the original fold:
both must encode alike at every later version that the stream has.

A stream is folded outside of any lock; its writers wait only while at most `EVENTS_MAX` rows move.
A longer prefix is folded in steps, each a transaction of its own: whatever happens between any two
statements, the stream is as before the step or as after it, and the next run goes on from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from eventstore.errors import CompactionError
from eventstore.model.event import EVENT_BYTES_MAX, SNAPSHOT_TYPE
from eventstore.model.names import DEFAULT_TENANT, check_category
from eventstore.planning.snapshotting import (
    BEGINNING,
    decode_state,
    encode_state,
    open_earlier_prefix,
    open_prefix,
    prefix_data,
    state_at,
    subjects_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventstore.deciding.decider import Decider
    from eventstore.errors import EventStoreError
    from eventstore.model.event import StoredEvent
    from eventstore.planning.snapshotting import Base
    from eventstore.serialization.codec import Codec

EVENTS_MAX: Final = 10_000
"""Of one step: their rows move while the stream's writers wait, about a tenth of a second."""


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """The streams of a category to compact, and how far.

    Attributes:
        category: Of the streams.
        larger_than: Streams with at most this number of rows are not compacted.
        keep_events: Number of the last events to keep; 0 folds the head, too.
    """

    category: str
    larger_than: int = 1_000
    keep_events: int = 100

    def __post_init__(self) -> None:
        check_category(self.category)
        for what in ("larger_than", "keep_events"):
            number = getattr(self, what)
            if type(number) is not int or number < 0:
                raise CompactionError(
                    f"a compaction policy counts events in {what}", detail=f"{number!r:.80}"
                )
        if self.larger_than < self.keep_events:
            raise CompactionError(
                "a compaction policy keeps more events than its threshold",
                detail=f"larger_than {self.larger_than:,}, keep_events {self.keep_events:,}",
            )

    def through(self, extent: StreamExtent) -> int | None:
        """Returns the stream position through which a stream is to be folded; None if not now."""
        if extent.rows <= max(self.larger_than, 1):
            return None
        through = extent.head - self.keep_events
        return through if through > extent.compacted else None


class StreamExtent(NamedTuple):
    """How much of a stream its folders read.

    Attributes:
        stream: Its name.
        first: Stream position of its first row.
        first_type: Type of that row; `$snapshot` if the stream is compacted.
        head: Stream position of its last row: its version.
    """

    stream: str
    first: int
    first_type: str
    head: int

    @property
    def rows(self) -> int:
        """Rows that a fold reads."""
        return self.head - self.first + 1

    @property
    def compacted(self) -> int:
        """Stream position through which it is compacted; 0 if it is not."""
        return self.first if self.first_type == SNAPSHOT_TYPE else 0


class CompactionStep(NamedTuple):
    """One transaction of a compaction.

    Attributes:
        through: The `$snapshot` stands at this stream position afterwards.
        checked_through: The folds are compared up to here; None up to the head.
    """

    through: int
    checked_through: int | None


def steps(compacted: int, through: int, events_max: int = EVENTS_MAX) -> Iterator[CompactionStep]:
    """Yields the steps of a compaction.

    The last one compares up to the head; one before it up to the end of the next, which compares
    what comes after. So a long stream is read twice, not once for each step.

    Args:
        compacted: Position through which the stream is compacted already; 0 if not.
        through: Position through which it shall be.
        events_max: Originals that one step may move.
    """
    ends = [*range(compacted + events_max, through, events_max), through]
    for place, end in enumerate(ends[:-1]):
        yield CompactionStep(end, ends[place + 1])
    yield CompactionStep(through, None)


@dataclass(frozen=True, slots=True)
class StreamFold:
    """How one tenant's streams of a category are folded.

    Attributes:
        decider: Its `evolve`, `initial_state`, category and version.
        codec: Decodes the events; has the key ring.
        tenant: The tenant of its streams.
    """

    decider: Decider[Any, Any, Any]
    codec: Codec
    tenant: str = DEFAULT_TENANT

    def base_of(self, first: StoredEvent) -> Base | None:
        """Returns where to begin to fold a stream that begins with this row.

        None if it is a `$snapshot` that this fold cannot read: the originals are folded instead.
        """
        if first.type != SNAPSHOT_TYPE:
            return BEGINNING
        return open_prefix(self.codec, self.decider, first)

    def base_without_originals(self, first: StoredEvent) -> Base | None:
        """Returns where to begin where the originals are gone that `first` stands for."""
        return open_earlier_prefix(self.codec, self.decider, first)


class Folding:
    """Folds one stream twice: as it is, and over the `$snapshot` that is to be.

    Args:
        fold: How.
        stream: Which stream.
        through: Position of the `$snapshot`.
        base: Where to begin.

    Attributes:
        position: Stream position of the last event that was added.
        payload: Of the `$snapshot`, once the event at `through` was added.
    """

    def __init__(self, fold: StreamFold, stream: str, through: int, base: Base = BEGINNING) -> None:
        self._fold = fold
        self._stream = stream
        self._through = through
        self._subjects = set(base.subjects)
        self._state = state_at(fold.decider, base)
        self._carried_on: Any = None
        self.position = base.stream_position
        self.payload: bytes | None = None

    def add(self, stored: StoredEvent) -> None:
        """Takes the stream's next event.

        Raises:
            CompactionError: It is not the next one, it cannot be folded, or the two folds differ.
            EventStoreError: It cannot be read, or the state would not read back equal.
        """
        if stored.stream_position != self.position + 1 or stored.type == SNAPSHOT_TYPE:
            raise CompactionError(
                f"stream {self._stream} cannot be folded from its first event",
                detail=f"event {self.position + 1} is missing",
                hint=(
                    "its originals were dropped, and its $snapshot has another fold or is encrypted"
                ),
            )
        event = self._fold.codec.decode(stored)
        self.position += 1
        self._state = self._evolved(self._state, event)
        if self.position <= self._through:
            self._subjects |= subjects_of(self._fold.codec, (event,))
        else:
            self._carried_on = self._evolved(self._carried_on, event)
            self._compare()
        if self.position == self._through:
            self._fold_prefix()

    def _fold_prefix(self) -> None:
        fold, decider = self._fold, self._fold.decider
        place = fold.tenant, self._stream
        payload = prefix_data(fold.codec, decider, self._state, self._subjects, place)
        if len(payload) > EVENT_BYTES_MAX:
            raise CompactionError(
                f"the state of stream {self._stream} is too large for an event",
                detail=f"{len(payload):,} bytes, {EVENT_BYTES_MAX:,} at most",
            )
        self._carried_on = decode_state(decider, encode_state(decider, self._state))
        self._compare()
        self.payload = payload

    def _compare(self) -> None:
        decider = self._fold.decider
        if encode_state(decider, self._state) != encode_state(decider, self._carried_on):
            raise CompactionError(
                f"stream {self._stream} folds differently over its $snapshot",
                detail=f"folded through {self._through}, different at version {self.position}",
                hint="evolve modifies the state, or depends on data outside it",
            )

    def _evolved(self, state: Any, event: Any) -> Any:
        try:
            return self._fold.decider.evolve(state, event)
        except Exception as error:
            raise CompactionError(
                f"stream {self._stream} cannot be folded",
                detail=f"{type(error).__name__} at version {self.position}",
            ) from error


class Compacted(NamedTuple):
    """The result of compacting one stream.

    Attributes:
        stream: Its name.
        through: Present position of its `$snapshot`; 0 if it has none.
        events: Originals that were archived.
    """

    stream: str
    through: int
    events: int


class Refusal(NamedTuple):
    """A stream that was not compacted.

    Attributes:
        stream: Its name.
        error: Why.
    """

    stream: str
    error: EventStoreError


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """The result of compacting a category.

    Attributes:
        streams: Streams that were compacted.
        events: Originals that were archived.
        refused: Streams that could not be compacted; all others were.
    """

    streams: int
    events: int
    refused: tuple[Refusal, ...] = ()


class Compactor(Protocol):
    """Compacts streams. Several may run concurrently, beside writers and readers.

    If it is killed, each stream is as before or after a step, and the next run continues.
    """

    def compact(self, fold: StreamFold, stream: str, through: int | None = None) -> Compacted:
        """Folds a stream's first events into a `$snapshot`.

        Args:
            fold: How.
            stream: Which stream.
            through: Up to this stream position; None means all, the head included. Where the
                stream is compacted further already, nothing is done.

        Raises:
            CompactionError: The stream has fewer events, or does not fold the same afterwards.
            EventStoreError: An event cannot be read.
        """
        ...

    def compact_category(self, fold: StreamFold, policy: CompactionPolicy) -> CompactionReport:
        """Compacts every stream of a category to which a policy applies."""
        ...
