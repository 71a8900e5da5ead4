"""Checks of callables that a caller passes: sync, async, instances.

`async def` gives a coroutine, and calling it runs nothing. Where the caller of a function does not
await it, the function would never run, and what it should have done would count as done. So it is
refused where it is declared; and what only shows when it is called, such as a lambda that returns a
coroutine, is refused then.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Final

from eventstore.errors import WrongKindError

if TYPE_CHECKING:
    from collections.abc import Iterable

_LOG_METHODS: Final = ("append", "stream_version", "result_of", "read_boundary", "high_water_mark")


def is_async(function: object) -> bool:
    """Returns whether calling this runs nothing until the result is awaited or iterated."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, staticmethod | classmethod):
        function = function.__func__
    if _is_async(function):
        return True
    # to call a class makes an instance, whatever the instances' own __call__ is
    return not isinstance(function, type) and _is_async(getattr(type(function), "__call__", None))  # noqa: B004


def check_function(what: str, function: object) -> None:
    """Checks that something can be called, and runs when it is called.

    Args:
        what: What it is, for the error: `decide of decider order`.
        function: What the caller handed over.

    Raises:
        WrongKindError: It cannot be called, or is an async function.
    """
    check_callable(what, function)
    if is_async(function):
        raise WrongKindError(
            f"{what} is async, but is called synchronously",
            detail=_kind(function),
            hint="declare it with def, and do asynchronous work outside it",
        )


def check_callable(what: str, function: object) -> None:
    """Checks that something can be called.

    Args:
        what: What it is, for the error.
        function: What the caller handed over.

    Raises:
        WrongKindError: It cannot be called.
    """
    if not callable(function):
        raise WrongKindError(f"{what} must be a function", detail=_kind(function))


def check_async_function(what: str, function: object) -> None:
    """Checks that something is an async function, whose result is awaited.

    Args:
        what: What it is, for the error.
        function: What the caller handed over.

    Raises:
        WrongKindError: It cannot be called, or is a function that is not async: what it does with
            a connection for asyncio would never run.
    """
    check_callable(what, function)
    if not is_async(function):
        raise WrongKindError(
            f"{what} is not async, but its connection is an AsyncConnection",
            detail=_kind(function),
            hint="declare it with async def, and await its calls on the connection",
        )


def check_result(what: str, result: object) -> None:
    """Checks that a function which was called has run.

    Args:
        what: What was called, for the error.
        result: What it returned.

    Raises:
        WrongKindError: It returned a coroutine or another awaitable, or an async iterator.
    """
    if not (hasattr(result, "__await__") or hasattr(result, "__aiter__")):
        return
    if inspect.iscoroutine(result):
        result.close()  # it is never awaited, and nothing else should say so
    raise WrongKindError(
        f"{what} returned an awaitable, which is not awaited",
        detail=_kind(result),
        hint="declare it with def, and do asynchronous work outside it",
    )


def check_instance(what: str, given: object, methods: Iterable[str] = ()) -> None:
    """Checks that something is an object and not its class, and has these methods.

    Args:
        what: What it is, for the error: `the log of a store`.
        given: What the caller handed over.
        methods: Names of methods that are called of it.

    Raises:
        WrongKindError: It is a class, or a method is missing.
    """
    if isinstance(given, type):
        raise WrongKindError(
            f"{what} must be an instance, not a class",
            detail=f"class {given.__qualname__}",
            hint=f"create an instance: {given.__qualname__}(...)",
        )
    missing = [name for name in methods if not callable(getattr(given, name, None))]
    if missing:
        raise WrongKindError(
            f"{what} has no {missing[0]}()", detail=f"an object of {type(given).__qualname__}"
        )


def check_kind(what: str, given: object, kind: type, hint: str) -> None:
    """Checks that an argument is an object of a class.

    Args:
        what: What it is, for the error: `a query`.
        given: What the caller handed over.
        kind: The class.
        hint: What to write instead.

    Raises:
        WrongKindError: It is not.
    """
    if not isinstance(given, kind):
        shown = f"class {given.__qualname__}" if isinstance(given, type) else _kind(given)
        raise WrongKindError(f"{what} must be of type {kind.__qualname__}", detail=shown, hint=hint)


def check_log(log: Any, *, asynchronous: bool) -> None:
    """Checks that a store's log is of the store's own kind.

    Args:
        log: What the caller handed over.
        asynchronous: Whether the store awaits its log.

    Raises:
        WrongKindError: It is no log, a class, or one for asyncio where none is awaited, or the
            other way round.
    """
    store = "AsyncEventStore" if asynchronous else "EventStore"
    check_instance(f"the log of an {store}", log, _LOG_METHODS)
    kinds = {is_async(getattr(log, name)) for name in _LOG_METHODS}
    if asynchronous and kinds == {False}:
        raise WrongKindError(
            "an AsyncEventStore needs an asyncio log",
            detail=f"an object of {type(log).__qualname__}",
            hint="such as AsyncPostgresEventLog(dsn) or AsyncMemoryEventLog()",
        )
    if not asynchronous and True in kinds:
        raise WrongKindError(
            "an EventStore needs a synchronous log, not an asyncio log",
            detail=f"an object of {type(log).__qualname__}",
            hint="such as PostgresEventLog(dsn); AsyncEventStore is the store for asyncio",
        )


def _is_async(function: object) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _kind(given: object) -> str:
    name = getattr(given, "__qualname__", None)
    return f"{name or 'an object of ' + type(given).__qualname__}"
