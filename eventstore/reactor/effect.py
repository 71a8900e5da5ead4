"""Effects of a reactor, as values, so that they can be listed without being performed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from eventstore.errors import SubscriptionError
from eventstore.model.callables import check_callable
from eventstore.process.reaction import Dispatch

if TYPE_CHECKING:
    from collections.abc import Callable


@runtime_checkable
class OutsideEffect(Protocol):
    """An effect outside the database, such as `HttpPost`, `Invoke` or a class of your own."""

    def perform(self, key: str) -> object:
        """Performs the effect; called again with the same key after a failure or a crash.

        Args:
            key: Idempotency key, by which the receiver drops repetitions.
        """
        ...

    def describe(self) -> str:
        """Returns a short description without values of events."""
        ...


Effect: TypeAlias = OutsideEffect | Dispatch


@dataclass(frozen=True, slots=True, init=False)
class Invoke:
    """Calls a function with the idempotency key and these arguments.

    Attributes:
        function: Takes the key, then the arguments; async functions need an
            `AsyncReactorRunner`.
        arguments: Positional arguments.
        options: Keyword arguments.
    """

    function: Callable[..., object]
    arguments: tuple[Any, ...] = field(repr=False)
    options: dict[str, Any] = field(repr=False)

    def __init__(self, function: Callable[..., object], /, *arguments: Any, **options: Any) -> None:
        check_callable("what Invoke calls", function)
        object.__setattr__(self, "function", function)
        object.__setattr__(self, "arguments", arguments)
        object.__setattr__(self, "options", options)

    def perform(self, key: str) -> object:
        """Calls the function."""
        return self.function(key, *self.arguments, **self.options)

    def describe(self) -> str:
        """Returns the function's name."""
        name = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        return f"invoke {name}"


def describe(effect: Effect) -> str:
    """Returns a short description of an effect without values of events."""
    if isinstance(effect, Dispatch):
        return f"dispatch {type(effect.command).__qualname__}"
    return effect.describe()


def checked(name: str, effect: Any) -> Effect:
    """Returns the given object if it is an effect.

    Raises:
        SubscriptionError: It is not an effect.
    """
    if isinstance(effect, Dispatch) or (
        not isinstance(effect, type) and isinstance(effect, OutsideEffect)
    ):
        return effect
    raise SubscriptionError(
        f"reactor {name} returned an object that is not an effect",
        detail=type(effect).__qualname__,
        hint="return HttpPost, Invoke, Dispatch, or an object with perform(key) and describe()",
    )
