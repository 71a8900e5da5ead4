"""Decider: a consistency boundary as three pure functions.

    def decide(command, state): ...      # returns events, or raises Rejected
    def evolve(state, event): ...        # returns the next state
    def initial_state(): ...

A command may be refused; an event is a fact. `decide` is asked again when another writer was
faster, so it reads no clock, no database and no random number: what it needs is in the command.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from uuid import UUID

from eventstore.deciding.context import listed
from eventstore.errors import NameRefusedError, UndeclaredError
from eventstore.model.callables import check_function, check_result
from eventstore.model.names import check_category, check_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

C = TypeVar("C")
E = TypeVar("E")
S = TypeVar("S")

_ID_TYPES: Final = (str, int, UUID)


class Arguments(Enum):
    """Whether a function accepts another argument.

    Attributes:
        REFUSED: It does not accept it.
        OPTIONAL: It can be called with or without it.
        NEEDED: It cannot be called without it.
    """

    REFUSED = "refused"
    OPTIONAL = "optional"
    NEEDED = "needed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decider(Generic[C, E, S]):
    """Decides the commands to one kind of stream.

    Attributes:
        category: Category of its streams: `order` for `order-42`.
        decide: Takes a command and the state; returns events or None, or raises `Rejected`. A third
            parameter receives a tuple of the events of the command's boundary; a command without a
            boundary is then refused.
        evolve: Takes the state and an event; returns the next state and modifies neither argument.
        initial_state: Returns the state of a stream without events.
        commands: Classes of its commands.
        stream_id: Takes a command and returns the id part of its stream's name.
        version: Version of the fold. Increase it when `evolve` changes: states saved by another
            version are ignored. A change of the state's type is detected automatically.
        snapshot_every: Saves the state whenever a command takes the stream past a multiple of this
            number of events; None: never.
        state_type: Type of the state, to decode a saved one; default: the return annotation of
            `initial_state`.
        state_name: Replaces the names of the state's class and of `evolve` in saved states. Set it
            to the old name if the class is renamed, so that saved states can still be read.
    """

    category: str
    decide: (
        Callable[[C, S], Iterable[E] | E | None]
        | Callable[[C, S, tuple[Any, ...]], Iterable[E] | E | None]
    )
    evolve: Callable[[S, E], S]
    initial_state: Callable[[], S]
    commands: tuple[type, ...]
    stream_id: Callable[[C], str | int | UUID]
    version: int = 1
    snapshot_every: int | None = None
    state_type: Any = None
    state_name: str | None = None

    def __post_init__(self) -> None:
        check_category(self.category)
        for what in ("version", "snapshot_every"):
            number = getattr(self, what)
            counts = type(number) is int and number >= 1
            if not counts and not (number is None and what == "snapshot_every"):
                raise UndeclaredError(
                    f"decider {self.category} needs a {what} of 1 or more",
                    detail=f"{number!r:.80}",
                )
        for what in ("decide", "evolve", "initial_state", "stream_id"):
            check_function(f"{what} of decider {self.category}", getattr(self, what))
        commands = tuple(self.commands)
        if not all(isinstance(command, type) for command in commands):
            raise UndeclaredError(f"the commands of decider {self.category} are classes")
        object.__setattr__(self, "commands", commands)

    def stream(self, identity: str | int | UUID) -> str:
        """Returns the name of the stream with this id.

        Raises:
            NameRefusedError: It cannot have this name.
        """
        if type(identity) not in _ID_TYPES:
            raise NameRefusedError(
                f"the id of a stream of {self.category} must be a str, int or UUID",
                detail=type(identity).__qualname__,
            )
        return check_stream(f"{self.category}-{identity}")

    def stream_of(self, command: C) -> str:
        """Returns the name of a command's stream.

        Raises:
            NameRefusedError: It cannot have this name.
        """
        return self.stream(self.stream_id(command))

    def boundary_arguments(self, command: C) -> Arguments:  # noqa: ARG002  # a subclass asks
        """Returns whether `decide` needs the events of a boundary for a command."""
        return arguments_of(self.decide, 3)

    def decided(self, command: C, state: S, seen: tuple[Any, ...] | None = None) -> tuple[E, ...]:
        """Returns all events that result from a command; none if it changes nothing.

        Args:
            command: The command.
            state: State of its stream.
            seen: The events of its boundary; None without a boundary.

        Raises:
            Rejected: The domain's rules refuse the command.
            UndeclaredError: `decide` does not accept the boundary, or requires one.
            WrongKindError: `decide` returned an awaitable.
        """
        check_boundary(self.boundary_arguments(command), command, given=seen is not None)
        decide: Callable[..., Any] = self.decide
        events = decide(command, state) if seen is None else decide(command, state, seen)
        check_result(f"decide of decider {self.category}", events)
        return listed(events)

    def fold(self, state: S, events: Iterable[E]) -> S:
        """Returns the state after further events.

        Raises:
            WrongKindError: `evolve` returned something to be awaited.
        """
        evolve = self.evolve
        for event in events:
            state = evolve(state, event)
        check_result(f"evolve of decider {self.category}", state)
        return state

    def fold_into(self, state: S, events: Iterable[E]) -> S:
        """Returns the state after further events; may modify the given state."""
        return self.fold(state, events)


@lru_cache(maxsize=1024)
def arguments_of(function: Callable[..., Any], number: int) -> Arguments:
    """Returns whether a function takes so many arguments by position."""
    kinds = inspect.Parameter
    found = inspect.signature(function).parameters.values()
    placed = [p for p in found if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    if sum(parameter.default is kinds.empty for parameter in placed) >= number:
        return Arguments.NEEDED
    open_ended = any(parameter.kind is kinds.VAR_POSITIONAL for parameter in found)
    return Arguments.OPTIONAL if open_ended or len(placed) >= number else Arguments.REFUSED


def check_boundary(arguments: Arguments, command: object, *, given: bool) -> None:
    """Checks that a command with a boundary is decided by it, and one without needs none.

    Raises:
        UndeclaredError: A rule across streams would not be looked at.
    """
    name = type(command).__qualname__
    if given and arguments is Arguments.REFUSED:
        raise UndeclaredError(
            f"command {name} was sent with a boundary that its decider does not use",
            hint="add a parameter for the boundary's events to the method, or to decide",
        )
    if not given and arguments is Arguments.NEEDED:
        raise UndeclaredError(
            f"command {name} needs the events of a boundary, and none is given",
            hint="store.handle(command, boundary=tagged(...))",
        )


def decider_of(declared: Any) -> Decider[Any, Any, Any]:
    """Returns a decider, or the decider of a class that `aggregate` declared.

    Raises:
        UndeclaredError: It is neither.
    """
    found = getattr(declared, "decider", declared)
    if isinstance(found, Decider):
        return found
    raise UndeclaredError(
        "the object is neither a Decider nor a class declared with @aggregate",
        detail=f"{getattr(declared, '__qualname__', type(declared).__qualname__)}",
    )
