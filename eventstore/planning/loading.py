"""Loading: the plan by which a stream's state is had, from a saved one if it can be believed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from eventstore.deciding.context import check_instant
from eventstore.deciding.fold_identity import fold_name
from eventstore.errors import BatchRefusedError, CompactionError, WrongExpectedVersionError
from eventstore.log import StreamPart
from eventstore.model.expected_version import VERSION_MAX
from eventstore.planning import snapshotting
from eventstore.planning.snapshotting import BEGINNING, Base

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from eventstore.deciding.decider import Decider
    from eventstore.log import StateSnapshot
    from eventstore.model.event import StoredEvent
    from eventstore.planning.operation import Access, Plan
    from eventstore.serialization.codec import Codec

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class State(Generic[S]):
    """The state of a stream.

    Attributes:
        value: The state.
        version: The stream's version at that time; 0 if the stream does not exist.
    """

    value: S
    version: int


@dataclass(frozen=True, slots=True)
class Loaded(Generic[S]):
    """A state and what it was made of.

    Attributes:
        value: The state.
        version: The stream's version then; 0 if there was no stream.
        global_position: Of its last event; 0 if there was none.
        base: Where the fold began.
        events: The events after that, as the log holds them.
    """

    value: S
    version: int
    global_position: int
    base: Base
    events: list[StoredEvent]


def folded(codec: Codec, decider: Decider[Any, Any, S], base: Base, events: list[StoredEvent]) -> S:
    """Returns the state after `events`, decoded and folded again."""
    return decider.fold(snapshotting.state_at(decider, base), map(codec.decode, events))


def loading(
    access: Access,
    decider: Decider[Any, Any, S],
    stream: str,
    *,
    at_version: int | None = None,
    as_of: datetime | None = None,
) -> Plan[Loaded[S]]:
    """Loads the state of a stream.

    Args:
        access: Through what.
        decider: Whose fold.
        stream: Name of the stream.
        at_version: The state after that many events; after all of them if not given.
        as_of: The state by the events recorded at or before this instant.

    Raises:
        WrongExpectedVersionError: The stream has not reached `at_version`.
        CompactionError: The stream's beginning is gone.
        UndeclaredError: An event is of an unknown type, or of a future version.
    """
    _check_time(at_version, as_of)
    saved: StateSnapshot | None = None
    if decider.snapshot_every is not None and as_of is None and at_version != 0:
        saved = yield access.snapshot(stream, fold_name(decider), at_version)
    base: Base | None = None
    found: list[StoredEvent] = []
    seen = 0
    live: list[StoredEvent] = []
    for part in _parts(saved, at_version, as_of):
        found = yield access.read(stream, part)
        live = live if part.archived else found
        seen = max(seen, found[-1].stream_position if found else 0)
        base = _base(access.codec, decider, saved if part.after else None, found)
        if base is not None and (at_version is None or _version(base, found) >= at_version):
            break
    if base is None or _version(base, found) < seen:
        base, found = _without_originals(access.codec, decider, live, at_version), live
    if base is None:
        raise CompactionError(
            f"the beginning of stream {stream} is missing",
            detail=f"its version is {seen}, and event 1 is missing",
            hint="the stream was compacted with another fold and its archive was dropped; if "
            "only the state class was renamed, set state_name to its old name",
        )
    version = _version(base, found)
    if at_version is not None and version < at_version:
        raise WrongExpectedVersionError(stream, expected=at_version, actual=version)
    events = [event for event in found if event.stream_position > base.stream_position]
    state = folded(access.codec, decider, base, events)
    return Loaded(state, version, found[-1].global_position if found else 0, base, events)


def _parts(
    saved: StateSnapshot | None, at_version: int | None, as_of: datetime | None
) -> Iterator[StreamPart]:
    """What to read, one after the other, until it gives the state."""
    if as_of is not None:
        yield StreamPart(as_of=as_of)
        return
    if saved is not None and saved.stream_position > 1:
        # with the last event that is in it: that one says whether it belongs to this stream
        yield StreamPart(after=saved.stream_position - 1, through=at_version)
    yield StreamPart(through=at_version)
    yield StreamPart(through=at_version, archived=True)


def _base(
    codec: Codec,
    decider: Decider[Any, Any, Any],
    saved: StateSnapshot | None,
    found: list[StoredEvent],
) -> Base | None:
    """Where the fold of what was found begins; None if nothing is known before it."""
    first = found[0] if found else None
    if first is not None and snapshotting.stands_for_prefix(first):
        return snapshotting.open_prefix(codec, decider, first)
    if saved is not None:
        return snapshotting.believed(codec, decider, saved, first)
    return BEGINNING if first is None or first.stream_position == 1 else None


def _without_originals(
    codec: Codec, decider: Decider[Any, Any, Any], live: list[StoredEvent], at_version: int | None
) -> Base | None:
    if not live or not snapshotting.stands_for_prefix(live[0]):
        return None
    base = snapshotting.open_earlier_prefix(codec, decider, live[0])
    beyond = base and at_version is not None and at_version < base.stream_position
    return None if beyond else base


def _version(base: Base, found: list[StoredEvent]) -> int:
    return found[-1].stream_position if found else base.stream_position


def _check_time(at_version: int | None, as_of: datetime | None) -> None:
    if at_version is not None and as_of is not None:
        raise BatchRefusedError("give a version or an instant, not both")
    if at_version is not None and not (type(at_version) is int and 0 <= at_version <= VERSION_MAX):
        raise BatchRefusedError(
            "stream versions start at 1",
            detail=f"{at_version!r:.80}",
        )
    check_instant("as_of", as_of)
