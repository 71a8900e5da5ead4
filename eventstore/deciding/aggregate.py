"""Aggregate: a decider written as a class.

    @aggregate("order", identity="order_id")
    class Order:
        lines: tuple[str, ...] = ()
        placed: bool = False

        @handles
        def place(self, command: PlaceOrder) -> OrderPlaced:
            if self.placed:
                raise AlreadyPlaced("the order is placed already")
            return OrderPlaced(command.order_id, command.lines)

        @evolves
        def _on_placed(self, event: OrderPlaced) -> None:
            self.lines, self.placed = event.lines, True

The class becomes a dataclass, if it is none, and `Order.decider` is the decider. Its methods work
on copies: a `handles` method that changes `self` changes nothing, and an `evolves` method changes
the next state only.
"""

from __future__ import annotations

import copy
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast, dataclass_transform, overload

from eventstore.deciding.decider import Arguments, Decider, arguments_of
from eventstore.errors import UndeclaredError
from eventstore.model.callables import check_function, check_result

_T = TypeVar("_T")
_F = TypeVar("_F", bound=Callable[..., Any])

_HANDLES: Final = "_headwater_handles"
_EVOLVES: Final = "_headwater_evolves"

Identity = str | Callable[[Any], Any]


@overload
def handles(*commands: type) -> Callable[[_F], _F]: ...
@overload
def handles(method: _F, /) -> _F: ...
def handles(*given: Any) -> Any:
    """Marks a method that decides commands.

    The method takes a command and returns an event, several events or None, yields events, or
    raises `Rejected`. The command classes are the arguments, or by default the annotation of its
    parameter. A second parameter receives a tuple of the events of the command's boundary; see
    `EventStore.handle`.
    """
    return _marked(_HANDLES, given)


@overload
def evolves(*events: type) -> Callable[[_F], _F]: ...
@overload
def evolves(method: _F, /) -> _F: ...
def evolves(*given: Any) -> Any:
    """Marks a method that applies events to the state.

    The method modifies `self`, or returns the next state. The event classes are the arguments, or
    by default the annotation of its parameter.
    """
    return _marked(_EVOLVES, given)


@dataclass_transform()
def aggregate(  # noqa: PLR0913  # each is one thing that a class can want
    category: str,
    *,
    identity: Identity,
    version: int = 1,
    snapshot_every: int | None = None,
    ignores: Iterable[type] = (),
    state_name: str | None = None,
) -> Callable[[type[_T]], type[_T]]:
    """Declares a class as a decider, available as its attribute `decider`.

    Args:
        category: Category of its streams.
        identity: Name of the commands' attribute with the stream's id, or a function that returns
            it for a command.
        version: See `Decider`.
        snapshot_every: See `Decider`.
        ignores: Events that do not change the state.
        state_name: See `Decider`.

    Raises:
        UndeclaredError: The class needs constructor arguments, a method does not declare what it
            handles, two methods handle the same class, or a command lacks the attribute.
        WrongKindError: A method, or `identity`, is async.
    """

    def declare(cls: type[_T]) -> type[_T]:
        names = sys._getframe(1).f_locals  # noqa: SLF001  # types defined in the same function
        made = cls if "__dataclass_params__" in cls.__dict__ else dataclass(cls)
        deciding = _methods(made, _HANDLES, names)
        evolving = {**_methods(made, _EVOLVES, names), **dict.fromkeys(ignores)}
        _check_initial_state(made)
        _check_identity(made, identity, deciding)
        made.decider = _AggregateDecider(  # type: ignore[attr-defined]
            category=category,
            decide=_decide_of(made, deciding),
            evolve=lambda state, event: _evolved(copy.deepcopy(state), event, evolving),
            initial_state=made,
            commands=tuple(deciding),
            stream_id=_identity_of(identity),
            version=version,
            snapshot_every=snapshot_every,
            state_type=made,
            state_name=state_name,
            methods=evolving,
            deciding=deciding,
        )
        return made

    return declare


@dataclass(frozen=True, slots=True, kw_only=True)
class _AggregateDecider(Decider[Any, Any, Any]):
    methods: Mapping[type, Callable[..., Any] | None] = field(repr=False, compare=False)
    deciding: Mapping[type, Callable[..., Any]] = field(repr=False, compare=False)

    def boundary_arguments(self, command: Any) -> Arguments:
        """See `Decider.boundary_arguments`; each method says it of its commands."""
        method = self.deciding.get(command.__class__)
        return Arguments.OPTIONAL if method is None else arguments_of(method, 3)

    def fold(self, state: Any, events: Iterable[Any]) -> Any:
        """See `Decider.fold`; copies once, not for each event."""
        return self.fold_into(copy.deepcopy(state), events)

    def fold_into(self, state: Any, events: Iterable[Any]) -> Any:
        """See `Decider.fold_into`; copies nothing."""
        methods = self.methods
        for event in events:
            state = _evolved(state, event, methods)
        return state


def _evolved(state: Any, event: object, methods: Mapping[type, Callable[..., Any] | None]) -> Any:
    """Applies an event to a state that the caller owns."""
    try:
        method = methods[event.__class__]
    except KeyError:
        raise UndeclaredError(
            f"{type(state).__qualname__} has no method for an event of its stream",
            detail=f"event {type(event).__qualname__}",
            hint=("add a method with @evolves, or list the event in ignores=(...) of @aggregate"),
        ) from None
    following = None if method is None else method(state, event)
    if following is None:
        return state
    if following.__class__ is not state.__class__:
        check_result(f"{getattr(method, '__qualname__', 'evolves')}", following)
        raise UndeclaredError(
            f"a method of {type(state).__qualname__} does not return the next state",
            detail=f"{type(following).__qualname__} for event {type(event).__qualname__}",
        )
    return following


def _decide_of(cls: type, methods: Mapping[type, Callable[..., Any]]) -> Callable[..., Any]:
    def decide(command: object, state: object, *seen: tuple[Any, ...]) -> Any:
        method = methods.get(command.__class__)
        if method is None:
            raise UndeclaredError(
                f"{cls.__qualname__} has no method for this command",
                detail=f"command {type(command).__qualname__}",
            )
        return method(copy.deepcopy(state), command, *seen)

    return decide


def _identity_of(identity: Identity) -> Callable[[Any], Any]:
    return (lambda command: getattr(command, identity)) if isinstance(identity, str) else identity


def _check_identity(cls: type, identity: Identity, commands: Iterable[type]) -> None:
    if not isinstance(identity, str):
        return
    for command in commands:
        known = {name for base in command.__mro__ for name in getattr(base, "__annotations__", {})}
        if identity not in known and not hasattr(command, identity):
            raise UndeclaredError(
                f"a command of {cls.__qualname__} does not identify its stream",
                detail=f"command {command.__qualname__} has no attribute {identity!r:.80}",
                hint="name an attribute that all its commands have, or pass a function",
            )


def _check_initial_state(cls: type) -> None:
    try:
        cls()
    except TypeError:
        raise UndeclaredError(
            f"{cls.__qualname__}() needs arguments, so an empty stream has no state",
            hint="give every field a default",
        ) from None


def _marked(mark: str, given: tuple[Any, ...]) -> Any:
    if len(given) == 1 and isinstance(given[0], types.FunctionType):
        check_function(f"{given[0].__qualname__}", given[0])
        setattr(given[0], mark, ())
        return given[0]
    if not given or not all(isinstance(each, type) for each in given):
        raise UndeclaredError(
            f"@{mark.rpartition('_')[2]} takes classes as arguments, or decorates a method "
            "without parentheses"
        )

    def mark_method(method: _F) -> _F:
        check_function(f"{getattr(method, '__qualname__', 'a method')}", method)
        setattr(method, mark, given)
        return method

    return mark_method


def _methods(cls: type, mark: str, names: Mapping[str, Any]) -> dict[type, Callable[..., Any]]:
    found: dict[type, Callable[..., Any]] = {}
    members = {name: value for base in reversed(cls.__mro__) for name, value in vars(base).items()}
    for method in members.values():
        taken = getattr(method, mark, None) if isinstance(method, types.FunctionType) else None
        if taken is None:
            continue
        for each in taken or _annotated(cls, method, names):
            if each in found:
                raise UndeclaredError(
                    f"two methods of {cls.__qualname__} handle the same class",
                    detail=(
                        f"{found[each].__name__} and {method.__name__} handle {each.__qualname__}"
                    ),
                )
            found[each] = method
    return found


def _annotated(cls: type, method: types.FunctionType, names: Mapping[str, Any]) -> tuple[type, ...]:
    """Classes that the annotation of a method's first argument names."""
    hint = None
    arguments = method.__code__.co_varnames[1 : method.__code__.co_argcount]
    if arguments:
        written = method.__annotations__.get(arguments[0])
        try:
            # only this one: others may name what is imported for type checking alone
            probe = types.SimpleNamespace(__annotations__={"taken": written})
            found = typing.get_type_hints(probe, {**method.__globals__}, dict(names))
            hint = found["taken"]
        except (NameError, TypeError):
            hint = None
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kinds = typing.get_args(hint) if union else (hint,)
    if not all(isinstance(kind, type) and kind is not type(None) for kind in kinds):
        raise UndeclaredError(
            f"a method of {cls.__qualname__} does not declare what it handles",
            detail=f"method {method.__name__}",
            hint="name the classes in the decorator: @handles(PlaceOrder), @evolves(OrderPlaced)",
        )
    return cast("tuple[type, ...]", kinds)
