"""Refuses arguments of a wrong type where users declare something: `keys="id"` is not a list."""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from foundation.errors import PlatformError

_P = ParamSpec("_P")
_R = TypeVar("_R")
_OPTIONAL: Final = " | None"
_TEXT, _LIST, _DICT = "a text", "a list of names", "a dict of names"


@dataclass(frozen=True, slots=True)
class ArgumentType:
    """What an argument of one annotation must be.

    Attributes:
        phrase: What to call it.
        classes: Names of the classes that it may have.
        example: A valid argument.
    """

    phrase: str
    classes: tuple[str, ...]
    example: str


def typed_arguments(
    error: type[PlatformError], types: Mapping[str, ArgumentType] | None = None
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Returns a decorator that compares arguments with the annotations of a function.

    It knows texts, lists and dicts of names, and classes by their names; it accepts an argument
    with any other annotation. A set has no order, so it is not a `Sequence`.

    Args:
        error: What is raised for a wrong argument.
        types: What arguments must be, by an annotation; a class needs no entry.
    """
    known = types or {}

    def decorated(function: Callable[_P, _R]) -> Callable[_P, _R]:
        signature = inspect.signature(function)
        called = function.__qualname__.removesuffix(".__init__")

        @wraps(function)
        def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError:
                return function(*args, **kwargs)  # whose error names the function
            subject = " ".join(filter(None, (called, _name_in(given))))
            for name, value in given.items():
                annotation = str(signature.parameters[name].annotation)
                wanted = annotation.removesuffix(_OPTIONAL)
                if value is None and wanted != annotation:
                    continue
                if what := _other_than(wanted, value, known):
                    raise error(
                        f"{subject}: {name} needs {what}",
                        detail=_described(value),
                        hint=_example(name, wanted, value, known),
                    )
            return function(*args, **kwargs)

        return checked

    return decorated


def _other_than(wanted: str, value: object, types: Mapping[str, ArgumentType]) -> str:
    """Returns what a value should be; empty if it is that, or the annotation is not known."""
    match wanted:
        case "str":
            return "" if isinstance(value, str) else _TEXT
        case "Sequence[str]":
            return "" if isinstance(value, Sequence) and _are_names(value) else _LIST
        case "Iterable[str]":
            return "" if isinstance(value, Iterator) or _are_names(value) else _LIST
        case "Mapping[str, str]":
            named = isinstance(value, Mapping) and _are_names([*value, *value.values()])
            return "" if named else _DICT
    if wanted == "Any" or not wanted.isidentifier() or hasattr(builtins, wanted):
        return ""
    known = types.get(wanted) or ArgumentType(wanted, (wanted,), "")
    own = {each.__name__ for each in type(value).__mro__}
    return "" if own.intersection(known.classes) else known.phrase


def _are_names(value: object) -> bool:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        return False
    return all(isinstance(each, str) for each in value)


def _described(value: object) -> str:
    kind = type(value)
    return f"{kind.__name__} {value!r}"[:80] if kind.__module__ == "builtins" else kind.__name__


def _name_in(given: Mapping[str, object]) -> str:
    name = given.get("name")
    return name if isinstance(name, str) else ""


def _example(name: str, wanted: str, value: object, types: Mapping[str, ArgumentType]) -> str:
    if known := types.get(wanted):
        return f"{name}={known.example}"
    match wanted:
        case "str":
            return f'{name}="..."'
        case "Sequence[str]" | "Iterable[str]":
            return f'{name}=["{value if isinstance(value, str) else "..."}"]'
        case "Mapping[str, str]":
            return f'{name}={{"...": "..."}}'
    return f"{name}={wanted}(...)"
