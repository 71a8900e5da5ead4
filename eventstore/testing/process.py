"""How a process manager is tested: given what it has taken in, when something comes in, then.

    process_scenario(fulfilment).given(OrderPlaced("1", 20)).when(TimedOut("payment", due)).then(
        Dispatch(CancelOrder("1"))
    )

Nothing but the manager's own functions is called: no store, no database, no waiting.
`ProcessSimulation` runs a manager with its store, in memory, by a clock that the test moves.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from eventstore.deciding.context import listed
from eventstore.deciding.scenario import ForgottenExpectation, fail, same
from eventstore.model.callables import check_instance

if TYPE_CHECKING:
    from eventstore.process.manager import ProcessManager
    from eventstore.process.reaction import Reaction

S = TypeVar("S")


def process_scenario(manager: ProcessManager[S]) -> GivenProcess[S]:
    """Returns a scenario of a process without inputs.

    Raises:
        WrongKindError: The object is not a process manager.
    """
    check_instance("a process manager", manager, ["evolve", "react"])
    return GivenProcess(manager, ())


class GivenProcess(Generic[S]):
    """A process that has taken this in."""

    def __init__(self, manager: ProcessManager[S], taken: tuple[Any, ...]) -> None:
        self._manager = manager
        self._taken = taken

    def given(self, *taken: object) -> GivenProcess[S]:
        """Returns the scenario with more taken in: events, `TimedOut`, `CommandRejected`."""
        return GivenProcess(self._manager, (*self._taken, *taken))

    def when(self, taken: object) -> WhenProcess[S]:
        """Returns what to say expectations of: this comes in.

        Args:
            taken: An event, a `TimedOut` or a `CommandRejected`.
        """
        frame = sys._getframe(1)  # noqa: SLF001  # where the expectation was forgotten, if it is
        place = (frame.f_code.co_filename, frame.f_lineno)
        return WhenProcess(self._manager, self._taken, taken, place)

    def then_state(self, expected: S) -> GivenProcess[S]:
        """Asserts the state after all of it."""
        __tracebackhide__ = True
        found = self._manager.state(self._taken)
        if not same([expected], [found]):
            fail("the state is another", [expected], [found])
        return self

    def __bool__(self) -> NoReturn:
        raise AssertionError("a scenario cannot be used with assert: it asserts by itself")


class WhenProcess(Generic[S]):
    """Something comes in at a process that has taken this in."""

    def __init__(
        self,
        manager: ProcessManager[S],
        taken: tuple[Any, ...],
        incoming: object,
        place: tuple[str, int],
    ) -> None:
        self._manager = manager
        self._taken = taken
        self._incoming = incoming
        self._place: tuple[str, int] | None = place

    def then(self, *expected: Reaction) -> GivenProcess[S]:
        """Asserts what is done: exactly these reactions, in this order.

        Returns:
            The scenario with what came in, to go on with.
        """
        __tracebackhide__ = True
        found = self._reactions()
        if not same(list(expected), list(found)):
            fail("the process reacts otherwise", list(expected), list(found))
        return GivenProcess(self._manager, (*self._taken, self._incoming))

    def then_nothing(self) -> GivenProcess[S]:
        """Asserts that nothing is done."""
        __tracebackhide__ = True
        return self.then()

    def then_state(self, expected: S) -> GivenProcess[S]:
        """Asserts the state after it, whatever is done."""
        __tracebackhide__ = True
        self._place = None
        return GivenProcess(self._manager, (*self._taken, self._incoming)).then_state(expected)

    def _reactions(self) -> tuple[Any, ...]:
        """What is done, on a state that must stay as it is."""
        self._place = None
        taken = (*self._taken, self._incoming)
        state, twin = (self._manager.state(taken) for _ in range(2))
        comparable = same([state], [twin])
        found: tuple[Any, ...] = listed(self._manager.react(state, self._incoming))
        if comparable and not same([state], [twin]):
            fail("react changed the state that it was given", [twin], [state])
        return found

    def __bool__(self) -> NoReturn:
        raise AssertionError("a scenario cannot be used as a condition: call then(...)")

    def __del__(self) -> None:
        place = getattr(self, "_place", None)
        if place is not None:
            what = f"no expectation was given for {type(self._incoming).__qualname__}"
            warnings.warn_explicit(what, ForgottenExpectation, *place)
