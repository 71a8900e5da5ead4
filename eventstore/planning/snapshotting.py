"""Snapshotting: a state as bytes, what it was made of, and whether it can be believed.

Two things hold a state: a saved aggregate snapshot, and the `$snapshot` event that stands for the
beginning of a compacted stream. Neither is the truth; the events are. So what is damaged, ahead of
the stream, of another history, or made by another fold is not an error but ignored, and the state
comes from the events. A state in which a forgotten person's fields are cannot be opened any more,
and is ignored as well: folded again, those fields are redacted.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec
import structlog

from eventstore.deciding.fold_identity import earlier_fold_name, fold_name, state_type
from eventstore.errors import EventRefusedError, EventStoreError, UndeclaredError, UpcastError
from eventstore.log import StateSnapshot
from eventstore.model.callables import check_result
from eventstore.model.event import SNAPSHOT_TYPE, StoredEvent
from eventstore.privacy.personal import Redacted
from eventstore.serialization.exactness import fault_of
from eventstore.serialization.wire import decoded, decoder, described, encoded, written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from eventstore.deciding.decider import Decider
    from eventstore.serialization.codec import Codec

S = TypeVar("S")
_log = structlog.get_logger(__name__)


class Base(NamedTuple):
    """Where a fold begins.

    Attributes:
        stream_position: The last event that is in it; 0 for the beginning.
        state: State as JSON, opened; None for the initial state.
        subjects: Persons whose fields are in it.
    """

    stream_position: int
    state: bytes | None
    subjects: frozenset[str]


BEGINNING: Final = Base(0, None, frozenset())
_NOTHING: Final[Base | None] = None


class _Prefix(msgspec.Struct, frozen=True):
    """Payload of a `$snapshot` event."""

    fold: str
    state: msgspec.Raw
    subjects: tuple[str, ...] = ()


_read_prefix: Final = msgspec.json.Decoder(_Prefix).decode


def encode_state(decider: Decider[Any, Any, S], state: S) -> bytes:
    """Returns a state as JSON, if that reads back equal.

    Raises:
        EventRefusedError: It does not.
        UndeclaredError: The state's type cannot be determined from JSON.
    """
    read_state = _reader(decider)
    try:
        data = encoded(state)
        fault = fault_of(state, read_state(data))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        fault = fault_of(state, state)
        rule = described(error)[1] if fault is None else f"{fault.path} {fault.rule}"
    else:
        if fault is None:
            return data
        rule = f"{fault.path} {fault.rule}"
    raise EventRefusedError(
        f"a state of {decider.category} would not read back unchanged",
        detail=rule.strip(),
        hint=("use values that JSON can represent in the state, and name its type: state_type=..."),
    )


def decode_state(decider: Decider[Any, Any, S], data: bytes) -> S:
    """Returns the state that `encode_state` was given.

    Raises:
        UpcastError: It does not fit the state's type any more, or only with fields left out or
            filled up with defaults.
        UndeclaredError: The state's type cannot be determined from JSON.
    """
    read_state = _reader(decider)
    try:
        state: S = read_state(data)
        same = decoded(written(state)) == decoded(data)
    except Exception as error:  # noqa: BLE001  # a class may check itself
        what = described(error)[1] if isinstance(error, msgspec.MsgspecError) else None
        raise _misfit(decider, what or type(error).__qualname__) from None
    if not same:
        raise _misfit(decider, "its fields differ from those of the state")
    return state


def _misfit(decider: Decider[Any, Any, Any], what: str) -> UpcastError:
    return UpcastError(
        f"a saved state of {decider.category} does not fit the type of its state",
        detail=what,
        hint="increase the decider's version when the type of its state changes",
    )


def state_at(decider: Decider[Any, Any, S], base: Base) -> S:
    """Returns the state where a fold begins, its own copy each time."""
    if base.state is not None:
        return decode_state(decider, base.state)
    state = decider.initial_state()
    check_result(f"initial_state of decider {decider.category}", state)
    return state


@lru_cache(maxsize=1024)
def _reader(decider: Decider[Any, Any, Any]) -> Callable[[bytes], Any]:
    return decoder(f"the state of {decider.category}", state_type(decider))


def subjects_of(codec: Codec, events: Iterable[object]) -> frozenset[str]:
    """Returns the persons of whom something readable is in these events."""
    return frozenset(
        subject
        for event in events
        if (subject := codec.subject_of(event)) is not None and _readable(codec, event)
    )


def _readable(codec: Codec, event: object) -> bool:
    names = codec.types.of(event).personal
    return any(not isinstance(getattr(event, name), Redacted) for name in names)


def take_snapshot(
    codec: Codec,
    decider: Decider[Any, Any, S],
    state: S,
    subjects: Iterable[str],
    place: tuple[str, str, int, UUID],
) -> StateSnapshot:
    """Returns a state as it is saved.

    Args:
        codec: Has the key ring.
        decider: Whose state it is.
        state: The state.
        subjects: Persons whose fields are in it.
        place: Tenant, stream, position and id of the last event that is in it.

    Raises:
        EventRefusedError: It would not read back equal.
        SubjectKeyError: One of the subjects is forgotten.
    """
    tenant, stream, stream_position, event_id = place
    names = tuple(sorted(set(subjects)))
    sealed = _sealed(codec, encode_state(decider, state), tenant, stream, names)
    made = StateSnapshot(stream, fold_name(decider), stream_position, sealed, b"", names)
    return made._replace(digest=_digest(tenant, made, event_id))


def believed(
    codec: Codec, decider: Decider[Any, Any, Any], saved: StateSnapshot, first: StoredEvent | None
) -> Base | None:
    """Returns what a saved snapshot holds; None, with a warning, if it is to be ignored.

    Args:
        codec: Has the key ring.
        decider: Whose state it should be.
        saved: The snapshot.
        first: The event at the snapshot's position, or the next one that is there.
    """
    if saved.fold != fold_name(decider):
        return _ignored("made by another fold", decider, saved.stream_position)
    if first is None or first.stream_position != saved.stream_position:
        return _ignored("ahead of the stream", decider, saved.stream_position)
    if saved.digest != _digest(first.tenant, saved, first.event_id):
        return _ignored("damaged, or of another history", decider, saved.stream_position)
    return _opened(
        codec, decider, (first.tenant, saved.stream, saved.stream_position),
        saved.state, saved.subjects,
    )  # fmt: skip


def prefix_data(
    codec: Codec,
    decider: Decider[Any, Any, S],
    state: S,
    subjects: Iterable[str],
    place: tuple[str, str],
) -> bytes:
    """Returns the payload of the `$snapshot` event that stands for a stream's beginning.

    Args:
        codec: Has the key ring.
        decider: Whose state it is.
        state: The state after the last of the events that it stands for.
        subjects: Persons whose fields are in it; see `subjects_of`.
        place: Tenant and stream.

    Raises:
        EventRefusedError: The state would not read back equal.
        SubjectKeyError: One of the subjects is forgotten.
    """
    names = tuple(sorted(set(subjects)))
    sealed = _sealed(codec, encode_state(decider, state), *place, names)
    return encoded(_Prefix(fold_name(decider), msgspec.Raw(sealed), names))


def open_prefix(codec: Codec, decider: Decider[Any, Any, Any], stored: StoredEvent) -> Base | None:
    """Returns what a `$snapshot` event holds; None if its originals are to be folded instead."""
    place = stored.tenant, stored.stream, stored.stream_position
    try:
        found = _read_prefix(stored.data)
    except msgspec.MsgspecError:
        return _ignored("damaged", decider, stored.stream_position)
    if found.fold != fold_name(decider):
        return _ignored("made by another fold", decider, stored.stream_position)
    return _opened(codec, decider, place, bytes(found.state), found.subjects)


def open_earlier_prefix(
    codec: Codec, decider: Decider[Any, Any, Any], stored: StoredEvent
) -> Base | None:
    """Returns what a `$snapshot` event holds that names no state, for a stream without originals.

    Such an event was written before a fold's name had the state in it. Which decider of the
    category made it is unknown, so the originals go first; where they were dropped, a state
    that fits exactly is all that is left of the stream's beginning.
    """
    found = _read_prefix(stored.data)
    if found.fold != earlier_fold_name(decider):
        return None
    place = stored.tenant, stored.stream, stored.stream_position
    base = _opened(codec, decider, place, bytes(found.state), found.subjects)
    if base is not None:
        _log.warning(
            "aggregate snapshot of an earlier version read, its originals are gone",
            fold=found.fold,
            stream_position=stored.stream_position,
        )
    return base


def stands_for_prefix(stored: StoredEvent | None) -> bool:
    """Returns whether an event stands for the beginning of a compacted stream."""
    return stored is not None and stored.type == SNAPSHOT_TYPE


def _opened(
    codec: Codec,
    decider: Decider[Any, Any, Any],
    place: tuple[str, str, int],
    state: bytes,
    subjects: tuple[str, ...],
) -> Base | None:
    tenant, stream, stream_position = place
    try:
        plain = _unsealed(codec, state, tenant, stream, subjects)
        if plain is None:
            return _ignored("a subject is forgotten", decider, stream_position)
        decode_state(decider, plain)
    except EventStoreError as error:
        return _ignored("cannot be opened", decider, stream_position, error.code)
    return Base(stream_position, plain, frozenset(subjects))


def _sealed(codec: Codec, state: bytes, tenant: str, stream: str, names: tuple[str, ...]) -> bytes:
    if not names:
        return state
    from eventstore.privacy.sealing import seal_state  # noqa: PLC0415  # loads cryptography

    if codec.keyring is None:
        raise UndeclaredError(
            "a state has personal fields, and there is no key ring", detail=f"stream {stream}"
        )
    return seal_state(state, tenant, stream, names, codec.keyring)


def _unsealed(
    codec: Codec, state: bytes, tenant: str, stream: str, subjects: tuple[str, ...]
) -> bytes | None:
    if not subjects:
        return state
    if codec.keyring is None:
        return None
    from eventstore.privacy.sealing import open_state  # noqa: PLC0415  # loads cryptography

    return open_state(state, tenant, stream, subjects, codec.keyring)


def _ignored(
    why: str, decider: Decider[Any, Any, Any], stream_position: int, code: str | None = None
) -> Base | None:
    _log.warning(
        "aggregate snapshot ignored",
        reason=why,
        fold=fold_name(decider),
        stream_position=stream_position,
        **({"code": code} if code else {}),
    )
    return _NOTHING


def _digest(tenant: str, saved: StateSnapshot, event_id: UUID) -> bytes:
    # The event's id tells this history from another one, after a restore, with as many events.
    parts = (
        tenant.encode(),
        saved.stream.encode(),
        saved.fold.encode(),
        str(saved.stream_position).encode(),
        event_id.bytes,
        saved.state,
        *(subject.encode() for subject in saved.subjects),
    )
    total = hashlib.sha256()
    for part in parts:
        total.update(b"%d:" % len(part))
        total.update(part)
    return total.digest()
