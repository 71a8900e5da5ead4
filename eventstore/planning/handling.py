"""Handling: the plan by which a command is refused or becomes events."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

import structlog

from eventstore.deciding.context import Occurrence
from eventstore.deciding.decider import check_boundary
from eventstore.deciding.fold_identity import fold_name
from eventstore.errors import (
    BatchRefusedError,
    ConditionFailedError,
    ContentionError,
    EventRefusedError,
    EventStoreError,
    IdempotencyConflictError,
    Rejected,
    ResultUnknownError,
    StoreUnavailableError,
    UndeclaredError,
    WrongExpectedVersionError,
)
from eventstore.log import StreamPart
from eventstore.model.event import Idempotency
from eventstore.model.expected_version import accepts, check_expected_version
from eventstore.model.names import check_key
from eventstore.model.query import Condition
from eventstore.model.token import Token
from eventstore.planning import idempotency, snapshotting
from eventstore.planning.appending import Terms, request_of
from eventstore.planning.loading import folded, loading
from eventstore.planning.operation import pause_after

if TYPE_CHECKING:
    from eventstore.deciding.context import Context
    from eventstore.deciding.decider import Decider
    from eventstore.log import Boundary, Repeated
    from eventstore.model.event import Appended, AppendRequest, StoredEvent
    from eventstore.model.query import Query
    from eventstore.planning.loading import Loaded
    from eventstore.planning.operation import Access, Plan

_log = structlog.get_logger(__name__)

ATTEMPTS_MAX: Final = 10
"""Most attempts of one command against faster writers; each loads and decides again."""


@dataclass(frozen=True, slots=True)
class Handled:
    """The result of a command.

    Attributes:
        events: Its events; empty if it changed nothing.
        version: Version of its stream afterwards.
        token: Position token of the events, for views and waits.
        repeated: Whether its idempotency key had been used before: nothing was written, and this is
            the first result.
    """

    events: tuple[Any, ...]
    version: int
    token: Token
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Instruction:
    """A command and what its caller wants.

    Attributes:
        command: The command.
        decider: Decides it.
        expected_version: Of its stream.
        key: Makes it happen once.
        context: Stored beside the events.
        attempts_max: Against faster writers.
        boundary: Which events, of whatever streams, it is decided by besides its own stream.
    """

    command: Any
    decider: Decider[Any, Any, Any]
    expected_version: int
    key: Idempotency | None
    context: Context
    attempts_max: int
    boundary: Query | None = None

    def __post_init__(self) -> None:
        check_expected_version(self.expected_version)
        if type(self.attempts_max) is not int or self.attempts_max < 1:
            raise BatchRefusedError(
                "attempts_max must be 1 or more",
                detail=f"attempts_max {self.attempts_max!r:.80}",
            )
        if self.boundary is not None:
            Condition(self.boundary, 0)  # refuses what no condition could hold
        arguments = self.decider.boundary_arguments(self.command)
        check_boundary(arguments, self.command, given=self.boundary is not None)


def key_of(access: Access, command: object, idempotency_key: str | None) -> Idempotency | None:
    """Returns the idempotency key of a command, if it has one, with what it stands for.

    Raises:
        BatchRefusedError: The command is not exact.
        NameRefusedError: The key cannot have this name.
    """
    if idempotency_key is None:
        return None
    check_key(idempotency_key)
    return Idempotency(
        idempotency_key, idempotency.command_digest(access.codec, access.tenant, command)
    )


def handling(access: Access, instruction: Instruction) -> Plan[Handled]:
    """Decides a command until its events are appended, nothing is to be done, or it is refused.

    Raises:
        Rejected: The domain's rules refuse it; nothing was written.
        WrongExpectedVersionError: The stream is not where the caller thought.
        ContentionError: Other writers were faster `attempts_max` times.
        IdempotencyConflictError: The key was used for something else.
        ResultUnknownError: The connection broke at the commit, and there is no key to ask by; or
            the database did not come back within the bound.
    """
    unknown: ResultUnknownError | None = None
    for attempt in range(1, instruction.attempts_max + 1):
        try:
            return (yield from _attempt(access, instruction))
        except (
            WrongExpectedVersionError,
            ConditionFailedError,
            StoreUnavailableError,
        ) as error:
            if isinstance(error, ResultUnknownError):
                unknown = error
            stopped = (
                attempt == instruction.attempts_max
                or not _repeatable(error, instruction, access)
                or (yield pause_after(attempt))
            )
            if stopped:
                _give_up(error, unknown, instruction, attempt)
    raise AssertionError


def _repeatable(error: EventStoreError, instruction: Instruction, access: Access) -> bool:
    if isinstance(error, WrongExpectedVersionError):
        # what the caller expects is not there, or else what was read a moment before
        return error.expected != instruction.expected_version
    if isinstance(error, ConditionFailedError):
        return True
    if access.connection is not None:
        return False  # the caller's transaction is broken: only the caller can run it again
    if isinstance(error, ContentionError):
        return instruction.expected_version < 0
    return isinstance(error, ResultUnknownError) and instruction.key is not None


def _give_up(
    error: EventStoreError,
    unknown: ResultUnknownError | None,
    instruction: Instruction,
    attempts: int,
) -> NoReturn:
    if unknown is not None and isinstance(error, StoreUnavailableError):
        # the last attempt wrote nothing, but an earlier one may have
        raise unknown
    lost = isinstance(error, ConditionFailedError) or (
        isinstance(error, WrongExpectedVersionError)
        and error.expected != instruction.expected_version
    )
    if lost:
        raise ContentionError(
            (
                f"command {type(instruction.command).__qualname__} lost repeatedly to concurrent "
                "writers"
            ),
            detail=f"{attempts} attempts",
            hint="send the command again, or reduce the writers of the stream",
        ) from error
    raise error


def _attempt(access: Access, instruction: Instruction) -> Plan[Handled]:
    decider, key = instruction.decider, instruction.key
    stream = decider.stream_of(instruction.command)
    if key is not None and (known := (yield access.result_of(key.key))) is not None:
        return (yield from _repeated(access, stream, instruction, known))
    loaded = yield from loading(access, decider, stream)
    boundary: Boundary | None = None
    if instruction.boundary is not None:
        boundary = yield access.boundary(instruction.boundary)
    try:
        events = _decided(access, instruction, loaded, stream, boundary)
        if not events and key is None:
            yield from _check_moment(access, stream, loaded, boundary)
    except (Rejected, WrongExpectedVersionError) as error:
        # The same command may have been done between the question and the reading: then the
        # events that stand in its way are its own.
        if key is not None and (known := (yield access.result_of(key.key))) is not None:
            return (yield from _repeated(access, stream, instruction, known))
        if isinstance(error, Rejected):
            yield from _check_moment(access, stream, loaded, boundary)
        raise
    if not events and key is None:
        return Handled((), loaded.version, Token(loaded.global_position))
    return (yield from _appending(access, instruction, stream, loaded, boundary, events))


def _appending(  # noqa: PLR0913, PLR0917  # what was decided, and on what
    access: Access,
    instruction: Instruction,
    stream: str,
    loaded: Loaded[Any],
    boundary: Boundary | None,
    events: tuple[Any, ...],
) -> Plan[Handled]:
    decider, key = instruction.decider, instruction.key
    request = _request(access, instruction, stream, events, loaded.version, boundary)
    _check_evolves(access, decider, loaded, events)
    try:
        appended = yield access.append(request)
    except IdempotencyConflictError:
        # another writer was faster, perhaps with this very command in an earlier form of its digest
        known = None if key is None else (yield access.result_of(key.key))
        if known is None:
            raise
        return (yield from _repeated(access, stream, instruction, known))
    if appended.repeated and key is not None:
        return (yield from _events_of(access, stream, key, appended))
    if access.connection is None:
        yield from _saving(access, decider, loaded, events, request)
    return Handled(events, appended.version, appended.token)


def _decided(
    access: Access,
    instruction: Instruction,
    loaded: Loaded[Any],
    stream: str,
    boundary: Boundary | None,
) -> tuple[Any, ...]:
    if not accepts(instruction.expected_version, loaded.version):
        raise WrongExpectedVersionError(
            stream, expected=instruction.expected_version, actual=loaded.version
        )
    seen = None if boundary is None else tuple(map(access.codec.decode, boundary.events))
    return instruction.decider.decided(instruction.command, loaded.value, seen)


def _check_moment(
    access: Access, stream: str, loaded: Loaded[Any], boundary: Boundary | None
) -> Plan[None]:
    """Checks that there was a moment at which the stream and the boundary were as they were read.

    An append checks both. Where a decision appends nothing, the stream must still be what it was
    before the boundary was read.
    """
    if boundary is None:
        return
    version = yield access.version(stream)
    if version != loaded.version:
        raise WrongExpectedVersionError(stream, expected=loaded.version, actual=version)


def _check_evolves(
    access: Access, decider: Decider[Any, Any, Any], loaded: Loaded[Any], events: tuple[Any, ...]
) -> None:
    """Refuses events that the decider itself could not fold: nothing would load the stream again.

    They are encoded already. A method may take a list of one event into the state, and change it
    for the next one: so several are folded as copies.
    """
    try:
        decider.fold_into(loaded.value, copy.deepcopy(events) if len(events) > 1 else events)
    except Exception:  # noqa: BLE001  # looked at below
        _refuse_unfoldable(access, decider, loaded, events)


def _refuse_unfoldable(
    access: Access, decider: Decider[Any, Any, Any], loaded: Loaded[Any], events: tuple[Any, ...]
) -> None:
    # `decide` may have changed the state that it was given
    state = folded(access.codec, decider, loaded.base, loaded.events)
    for event in copy.deepcopy(events):
        try:
            state = decider.fold(state, (event,))
        except Exception as error:
            if isinstance(error, UndeclaredError):
                raise
            raise EventRefusedError(
                f"decider {decider.category} cannot fold an event that it returned",
                detail=f"{type(error).__qualname__} for event {type(event).__qualname__}",
                hint="nothing was stored; evolve must accept every event that decide returns",
            ) from error


def _request(  # noqa: PLR0913, PLR0917  # what was decided, and on what
    access: Access,
    instruction: Instruction,
    stream: str,
    events: tuple[Any, ...],
    version: int,
    boundary: Boundary | None,
) -> AppendRequest:
    key = instruction.key
    ids = (
        [None] * len(events)
        if key is None
        else [
            idempotency.keyed_event_id(access.tenant, key.key, from_end)
            for from_end in reversed(range(len(events)))
        ]
    )
    given = [Occurrence(event, event_id) for event, event_id in zip(events, ids, strict=True)]
    condition: Condition | None = None
    if boundary is not None and instruction.boundary is not None:
        condition = Condition(instruction.boundary, boundary.after)
    terms = Terms(condition=condition, context=instruction.context)
    return request_of(access, [(stream, given, version)], terms, key)


def _repeated(
    access: Access, stream: str, instruction: Instruction, known: Repeated
) -> Plan[Handled]:
    key = instruction.key
    assert key is not None  # noqa: S101  # only a command with a key is looked for
    earlier = idempotency.earlier_digests(access.codec, access.tenant, instruction.command)
    idempotency.check_same(known, key.digest, earlier)
    return (yield from _events_of(access, stream, key, known.appended))


def _events_of(access: Access, stream: str, key: Idempotency, first: Appended) -> Plan[Handled]:
    """The first result of a command, with its events read from the stream."""
    own: list[StoredEvent] = []
    limit = 8
    while True:
        part = StreamPart(through=first.version, backwards=True, limit=limit, archived=True)
        found = yield access.read(stream, part)
        own = []
        for from_end, event in enumerate(found):
            if not idempotency.made_under(event.event_id, access.tenant, key.key, from_end):
                break
            own.append(event)
        if len(own) < limit:
            break
        limit *= 8
    events = tuple(access.codec.decode(event) for event in reversed(own))
    return Handled(events, first.version, first.token, repeated=True)


def _saving(
    access: Access,
    decider: Decider[Any, Any, Any],
    loaded: Loaded[Any],
    events: tuple[Any, ...],
    request: AppendRequest,
) -> Plan[None]:
    """Saves the state if the policy says so. The command is done: nothing here may fail it."""
    every = decider.snapshot_every
    version = loaded.version + len(events)
    if every is None or loaded.version // every == version // every:
        return
    (append,) = request.appends
    try:
        # Folded again: `decide` may have changed the state that it was given.
        before = folded(access.codec, decider, loaded.base, loaded.events)
        subjects = loaded.base.subjects | snapshotting.subjects_of(
            access.codec, [*map(access.codec.decode, loaded.events), *events]
        )
        snapshot = snapshotting.take_snapshot(
            access.codec,
            decider,
            decider.fold(before, events),
            subjects,
            (access.tenant, append.stream, version, append.events[-1].event_id),
        )
        yield access.save_snapshot(snapshot)
    except Exception as error:  # noqa: BLE001  # whatever it is, the command is done
        _log.warning(
            "aggregate snapshot not saved",
            fold=fold_name(decider),
            stream_position=version,
            error=type(error).__name__,
            code=getattr(error, "code", None),
        )
