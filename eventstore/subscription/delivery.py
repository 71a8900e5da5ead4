"""Delivery: the circumstances in which a handler sees an event, and the gate for side effects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from eventstore.model.callables import check_callable, check_function

if TYPE_CHECKING:
    from collections.abc import Callable

    Effect: TypeAlias = Callable[[str], object]


class HeldEffect(NamedTuple):
    """An effect that a handler asked for.

    Attributes:
        key: The same on each repetition.
        act: Does it, given the key.
        within: Whether it writes through the delivery's connection, and so commits with the batch.
    """

    key: str
    act: Effect
    within: bool = False


@dataclass(slots=True)
class Delivery:
    """How an event is delivered.

    What is written through `connection` takes effect exactly once. What happens outside of this
    database cannot: it goes through `effect`, which holds it back in a replay, runs it at the last
    moment before the commit, and gives it a key by which the other side can drop a repetition.

    Attributes:
        connection: psycopg's, with the transaction open that also moves the checkpoint. It must not
            be committed or rolled back by the handler.
        subscription: Name of the subscription.
        tenant: Whose event it is.
        live: False where the event was delivered before a replay, or lies in the history before
            `effects_from`: nothing may happen outside of the database.
        attempt: 1 for the first call with this event, 2 for the next.
        key: Names the event and the subscription, the same on each repetition.
        awaited: Whether effects may be async, as in an `AsyncSubscription`.
        held: Effects that were asked for; the runner has them done.
    """

    connection: Any
    subscription: str
    tenant: str
    live: bool
    attempt: int
    key: str
    awaited: bool = False
    held: list[HeldEffect] = field(default_factory=list)

    def effect(self, act: Effect, *, within: bool = False) -> None:
        """Has something done outside of the database; at least once if live, never otherwise.

        It is called after all handlers of the transaction, right before the commit. It is called
        again if the process is killed before the commit is through. If it raises, that is a failure
        of this event.

        Args:
            act: Is given a key, the same on each repetition, for the other side's deduplication.
            within: It writes through `connection` alone, so it is undone where the batch is. It is
                called after the event's effects on the outside.

        Raises:
            WrongKindError: It is no function, or an async one that nothing awaits.
        """
        check = check_callable if self.awaited else check_function
        check(f"an effect of subscription {self.subscription}", act)
        if self.live:
            self.held.append(HeldEffect(f"{self.key}:{len(self.held) + 1}", act, within))
