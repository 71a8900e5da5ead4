"""Delivery: what a handler receives with an event; it also collects the handler's effects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from eventstore.model.callables import check_callable, check_function

if TYPE_CHECKING:
    from collections.abc import Callable

    Effect: TypeAlias = Callable[[str], object]


class HeldEffect(NamedTuple):
    """An effect that a handler requested.

    Attributes:
        key: Idempotency key, the same on each repetition.
        act: Performs the effect; takes the key.
        within: Whether it writes through the delivery's connection, and so commits with the batch.
    """

    key: str
    act: Effect
    within: bool = False


@dataclass(slots=True)
class Delivery:
    """The circumstances of a delivery.

    Writes through `connection` take effect exactly once. Effects outside this database cannot be
    exactly once: request them with `effect`, which drops them in a replay, performs them right
    before the commit, and passes them a key by which the receiver can drop repetitions.

    Attributes:
        connection: The psycopg connection, in the transaction that also moves the checkpoint. The
            handler must not commit it or roll it back.
        subscription: Name of the subscription.
        tenant: Tenant of the event.
        live: False in a replay, and for events before `effects_from`: the handler must have no
            effects outside the database.
        attempt: 1 for the first call with this event, 2 for the next.
        key: Identifies the event and the subscription; the same on each repetition.
        awaited: Whether effects may be async, as in an `AsyncSubscription`.
        held: Requested effects, which the runner performs.
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
        """Requests an effect: performed at least once if the delivery is live, otherwise never.

        The runner performs the effect after all handlers of the transaction, right before the
        commit, and again if the process dies before the commit completes. If the effect raises,
        this event has failed.

        Args:
            act: Takes a key, the same on each repetition, by which the receiver drops repetitions.
            within: Whether the effect writes only through `connection`, so that a rollback undoes
                it. Such effects are performed after the external effects of the event.

        Raises:
            WrongKindError: `act` is not a function, or is async in a synchronous subscription.
        """
        check = check_callable if self.awaited else check_function
        check(f"an effect of subscription {self.subscription}", act)
        if self.live:
            self.held.append(HeldEffect(f"{self.key}:{len(self.held) + 1}", act, within))
