"""Scenario: how a decider is tested, as it is talked about.

    def test_an_order_is_placed_once():
        scenario(Order).given(OrderPlaced("o1")).when(PlaceOrder("o1")).then_rejected(AlreadyPlaced)

Nothing but the decider's own functions is called: no store, no waiting. The command is decided when
the expectation is given. A `when` without a `then` asserts nothing and gives a
`ForgottenExpectation` warning, which pytest shows and this turns into a failure:

    filterwarnings = ["error"]
"""

from __future__ import annotations

import copy
import difflib
import pprint
import re
import sys
import warnings
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from eventstore.deciding.decider import Decider, check_boundary, decider_of
from eventstore.errors import Rejected, UndeclaredError

if TYPE_CHECKING:
    from collections.abc import Iterable

S = TypeVar("S")


class ForgottenExpectation(UserWarning):
    """A scenario has a command but no expectation."""


def scenario(decider: Decider[Any, Any, S] | type[S]) -> Given[S]:
    """Returns a scenario that starts with an empty stream.

    Args:
        decider: A decider, or a class declared by `aggregate`.
    """
    return Given(decider_of(decider), ())


class Given(Generic[S]):
    """A stream with these events."""

    def __init__(self, decider: Decider[Any, Any, S], events: tuple[Any, ...]) -> None:
        self._decider = decider
        self._events = events

    def given(self, *events: object) -> Given[S]:
        """Returns the scenario with further events that happened before."""
        return Given(self._decider, (*self._events, *events))

    def when(self, command: object, *, boundary: Iterable[object] | None = None) -> When[S]:
        """Returns what to say expectations of: this command is sent.

        Args:
            command: The command.
            boundary: The events, of whatever streams, that its boundary has.

        Raises:
            UndeclaredError: The decider does not take it, or not with a boundary, or only with one.
        """
        if type(command) not in self._decider.commands:
            raise UndeclaredError(
                f"decider {self._decider.category} does not handle this command",
                detail=f"command {type(command).__qualname__}",
            )
        seen = None if boundary is None else tuple(boundary)
        arguments = self._decider.boundary_arguments(command)
        check_boundary(arguments, command, given=seen is not None)
        frame = sys._getframe(1)  # noqa: SLF001  # where the expectation was forgotten, if it is
        return When(
            self._decider, self._events, command, (frame.f_code.co_filename, frame.f_lineno), seen
        )

    def then_state(self, expected: S) -> Given[S]:
        """Asserts the state after the events."""
        __tracebackhide__ = True
        found = _state(self._decider, self._events)
        if not same([expected], [found]):
            fail("the state is another", [expected], [found])
        return self

    def __bool__(self) -> NoReturn:
        raise AssertionError("a scenario cannot be used with assert: it asserts by itself")


class When(Generic[S]):
    """A command sent to a stream with these events."""

    def __init__(
        self,
        decider: Decider[Any, Any, S],
        events: tuple[Any, ...],
        command: object,
        place: tuple[str, int],
        seen: tuple[object, ...] | None = None,
    ) -> None:
        self._decider = decider
        self._events = events
        self._command = command
        self._place: tuple[str, int] | None = place
        self._seen = seen

    def then(self, *expected: object) -> Given[S]:
        """Asserts what the command leads to: exactly these events, in this order.

        Args:
            expected: Events; or instead, how it is rejected: a class, or an instance whose message
                counts as well.

        Returns:
            The scenario with the new events, to go on with.
        """
        __tracebackhide__ = True
        if len(expected) == 1 and _is_rejection(expected[0]):
            return self._then_rejected(expected[0])
        found = self._decided()
        if isinstance(found, Rejected):
            fail(f"rejected: {_said(found)}", list(expected), [])
        if not same(list(expected), list(found)):
            fail("the command leads to other events", list(expected), list(found))
        return Given(self._decider, (*self._events, *found))

    def then_nothing(self) -> Given[S]:
        """Asserts that the command is accepted and changes nothing."""
        __tracebackhide__ = True
        return self.then()

    def then_rejected(
        self, expected: type[Rejected] = Rejected, *, match: str | None = None
    ) -> Given[S]:
        """Asserts that the command is refused by the domain's rules.

        Args:
            expected: Class of the rejection; a subclass of it is one, too.
            match: Regular expression that is searched for in its message.
        """
        __tracebackhide__ = True
        return self._then_rejected(expected, match)

    def then_state(self, expected: S) -> Given[S]:
        """Asserts that the command is accepted, and the state after it."""
        __tracebackhide__ = True
        found = self._decided()
        if isinstance(found, Rejected):
            fail(f"rejected: {_said(found)}", [expected], [])
        return Given(self._decider, (*self._events, *found)).then_state(expected)

    def _then_rejected(self, expected: Any, match: str | None = None) -> Given[S]:
        __tracebackhide__ = True
        found = self._decided()
        kind = expected if isinstance(expected, type) else type(expected)
        if not isinstance(found, Rejected):
            fail(f"not rejected; expected {kind.__qualname__}", [], list(found))
        if not isinstance(found, kind):
            raise AssertionError(  # noqa: TRY004  # an expectation that failed
                f"rejected: {_said(found)}; expected {kind.__qualname__}"
            )
        if expected is not kind and str(expected) != str(found):
            raise AssertionError(f"rejected: {_said(found)}; expected {_said(expected)}")
        if match is not None and not re.search(match, str(found)):
            raise AssertionError(f"rejected: {_said(found)}; expected a message like {match!r}")
        return Given(self._decider, self._events)

    def _decided(self) -> tuple[Any, ...] | Rejected:
        """The events, or why not; decided on a state that must stay as it is."""
        self._place = None
        state, twin = (_state(self._decider, self._events) for _ in range(2))
        comparable = same([state], [twin])
        try:
            decided: tuple[Any, ...] | Rejected = self._decider.decided(
                self._command, state, self._seen
            )
        except Rejected as error:
            decided = error
        if comparable and not same([state], [twin]):
            fail("decide changed the state that it was given", [twin], [state])
        if not isinstance(decided, Rejected):
            self._decider.fold(twin, copy.deepcopy(decided))  # a store refuses what it cannot fold
        return decided

    def __bool__(self) -> NoReturn:
        raise AssertionError("a scenario cannot be used as a condition: call then(...)")

    def __del__(self) -> None:
        place = getattr(self, "_place", None)
        if place is not None:
            what = f"no expectation was given for {type(self._command).__qualname__}"
            warnings.warn_explicit(what, ForgottenExpectation, *place)


def _state(decider: Decider[Any, Any, S], events: tuple[Any, ...]) -> S:
    return decider.fold(decider.initial_state(), events)


def _is_rejection(expected: object) -> bool:
    if isinstance(expected, type):
        return issubclass(expected, Rejected)
    return isinstance(expected, Rejected)


def same(expected: list[Any], found: list[Any]) -> bool:
    """Returns whether values are equal, and of the same classes."""
    # an event that equals one of another class is still another event
    kinds = [type(each) for each in expected] == [type(each) for each in found]
    return kinds and bool(expected == found)


def _said(error: Rejected) -> str:
    return f"{type(error).__qualname__}: {error}"


def fail(what: str, expected: list[Any], found: list[Any]) -> NoReturn:
    """Fails with the difference of two lists, line by line."""
    __tracebackhide__ = True
    shown = difflib.ndiff(_lines(expected), _lines(found))
    marked = [line for line in shown if not line.startswith("?")]
    raise AssertionError("\n".join([f"{what} (- expected, + actual)", *marked]))


def _lines(values: list[Any]) -> list[str]:
    return [
        line
        for value in values
        for line in pprint.pformat(value, width=80, sort_dicts=True).splitlines()
    ] or ["nothing"]
