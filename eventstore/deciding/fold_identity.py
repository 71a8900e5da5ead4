"""Identity of a fold: which saved states a decider may read.

A saved state belongs to the code that made it. Its fold is named by category and version, and by a
digest of what tells it from every other fold of the category: the class of the state, its fields,
their types and defaults all the way down, and the name of `evolve`. A renamed field, a changed
default or another decider of the same category is another fold, which never reads it: the state
then comes from the events. The digest does not see what functions do: raise the decider's version
when you change the body of `evolve` or `initial_state`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import types
import typing
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar, get_args, get_origin

import msgspec

from eventstore.model.callables import check_result
from eventstore.serialization.wire import encoded

if TYPE_CHECKING:
    from eventstore.deciding.decider import Decider

S = TypeVar("S")

_DIGITS: Final = 16
"""Of the digest: enough to tell the few folds of a category apart."""


@lru_cache(maxsize=1024)
def fold_name(decider: Decider[Any, Any, Any]) -> str:
    """Returns the name of a decider's fold; a state of another one is not read."""
    kind = state_type(decider)
    parts = (
        decider.state_name or f"{_name(kind)} by {_function_name(decider.evolve)}",
        shape_of(kind),
    )
    text = "".join(f"{len(part)}:{part}" for part in parts)
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
    return f"{earlier_fold_name(decider)}/{digest}"


def earlier_fold_name(decider: Decider[Any, Any, Any]) -> str:
    """Returns what a decider's fold was called before its state was part of its identity."""
    return f"{decider.category}/{decider.version}"


def same_fold(one: Decider[Any, Any, Any], other: Decider[Any, Any, Any]) -> bool:
    """Returns whether two deciders fold events by the same functions into the same states."""
    return _functions(one) == _functions(other)


def state_type(decider: Decider[Any, Any, S]) -> Any:
    """Returns the type that a decider's state is read as."""
    if decider.state_type is not None:
        return decider.state_type
    initial = decider.initial_state
    if isinstance(initial, type):
        return initial
    try:
        hint = typing.get_type_hints(initial, include_extras=True).get("return")
    except (NameError, TypeError):
        hint = None
    # A guess that is too narrow is found out: what does not read back equal is not saved.
    if hint is not None:
        return hint
    made = initial()
    check_result(f"initial_state of decider {decider.category}", made)
    return type(made)


def shape_of(hint: Any) -> str:
    """Returns a type as text: the fields of its classes and the types of these, in order."""
    return _shape(hint, frozenset())


def _shape(hint: Any, above: frozenset[Any]) -> str:
    if get_origin(hint) is not None:
        return _generic(get_origin(hint), get_args(hint), above)
    if hasattr(hint, "__supertype__"):  # NewType
        return _shape(hint.__supertype__, above)
    fields = None if hint in above else _fields(hint)
    if fields is None:
        return _name(hint)
    defaults = _defaults(hint)
    inner = [
        f"{name}: {_shape(kind, above | {hint})}{defaults.get(name, '')}"
        for name, kind in fields.items()
    ]
    return f"({', '.join(inner)})"  # the class may be renamed: it has no name in the JSON


def _generic(origin: Any, arguments: tuple[Any, ...], above: frozenset[Any]) -> str:
    if origin is Annotated:
        return _shape(arguments[0], above)
    if origin is Literal:
        return f"Literal{list(arguments)}"
    inner = [_shape(argument, above) for argument in arguments]
    if origin in (typing.Union, types.UnionType):
        return " | ".join(inner)
    return f"{_shape(origin, above)}[{', '.join(inner)}]"


def _fields(kind: Any) -> dict[str, Any] | None:
    """Name and type of each field of a class that JSON holds as an object or a list of fields."""
    names = _field_names(kind) if isinstance(kind, type) else None
    if names is None:
        return None
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except (NameError, TypeError):
        # names that are out of sight: what is written there is still its own
        written = [inspect.get_annotations(base) for base in reversed(kind.__mro__)]
        hints = {name: hint for annotations in written for name, hint in annotations.items()}
    return {name: hints.get(name) for name in names}


def _field_names(kind: type) -> tuple[str, ...] | None:
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return tuple(kind._fields)
    return tuple(kind.__annotations__) if typing.is_typeddict(kind) else None


def _defaults(kind: type) -> dict[str, str]:
    """What a dataclass fills its fields with, as far as that is a value."""
    found = {}
    for field in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
        if field.default is not dataclasses.MISSING:
            with contextlib.suppress(Exception):  # what cannot be written is not saved, either
                found[field.name] = f" = {encoded(field.default).decode()}"
    return found


def _functions(decider: Decider[Any, Any, Any]) -> tuple[Any, ...]:
    return (
        decider.version,
        decider.evolve,
        decider.initial_state,
        state_type(decider),
        decider.state_name,
    )


def _name(kind: Any) -> str:
    return str(getattr(kind, "__qualname__", None) or kind)


def _function_name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return _name(function) if hasattr(function, "__qualname__") else type(function).__qualname__
