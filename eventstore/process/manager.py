"""ProcessManager: coordinates several streams by pure functions.

    def correlate(recorded): ...     # which process an event belongs to, None for none
    def initial_state(): ...
    def evolve(state, taken): ...    # the next state
    def react(state, taken): ...     # what to do, given the state after it

`taken` is an event, a `TimedOut` or a `CommandRejected`. The functions read no clock and no
database. For each new input, the runner folds all inputs of the process again with `evolve`. The
state is therefore never stored and never outdated, and no payload is copied out of the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from eventstore.model.callables import check_function
from eventstore.model.query import EVERYTHING, Query
from eventstore.subscription.subscription import check_subscription

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from eventstore.process.reaction import Reaction
    from eventstore.serialization.recorded import RecordedEvent

S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessManager(Generic[S]):
    """A kind of process, such as an order that is paid and shipped, or else cancelled.

    Attributes:
        name: Its identity, and that of its subscription.
        correlate: Takes a `RecordedEvent`; returns the id of its process, 128 bytes at most, or
            None if the event belongs to no process.
        initial_state: Returns the state of a process without inputs.
        evolve: Takes a state and an input; returns the next state and changes neither.
        react: Takes the state after an input and the input; returns the reactions.
        query: Events that the manager reads.
    """

    name: str
    correlate: Callable[[RecordedEvent], str | None]
    initial_state: Callable[[], S]
    evolve: Callable[[S, Any], S]
    react: Callable[[S, Any], Iterable[Reaction] | None]
    query: Query = EVERYTHING

    def __post_init__(self) -> None:
        check_subscription(self.name)
        for what in ("correlate", "initial_state", "evolve", "react"):
            check_function(f"{what} of process manager {self.name}", getattr(self, what))

    def state(self, taken: Iterable[Any]) -> S:
        """Returns the state of a process after these inputs."""
        state = self.initial_state()
        for one in taken:
            state = self.evolve(state, one)
        return state
