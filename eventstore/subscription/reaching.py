"""Reaching: one wait for a subscription, between two looks at how far it has come."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from eventstore.errors import SubscriptionError, WaitTimeoutError
from eventstore.subscription.refusal import refused

if TYPE_CHECKING:
    from eventstore.model.token import Token

REACHED: Final = (
    "SELECT min(global_position), eventstore.head(),"
    " EXISTS (SELECT FROM eventstore.parked_events"
    "          WHERE tenant = %(tenant)s AND subscription = %(name)s"
    "            AND global_position = %(wanted)s),"
    " (SELECT tenant FROM eventstore.log WHERE global_position = %(wanted)s)"
    " FROM eventstore.subscriptions WHERE tenant = %(tenant)s AND name = %(name)s"
)

_WAIT_FIRST_S: Final = 0.002
_WAIT_LONGEST_S: Final = 0.025


class Reaching:
    """Decides whether a wait is over; a caller that waits runs `REACHED` with `asked` before.

    Args:
        tenant: Whose subscription.
        name: Of the subscription.
        token: What it shall reach.
        timeout_s: Seconds at most.

    Attributes:
        asked: Parameters of `REACHED`.
    """

    def __init__(self, tenant: str, name: str, token: Token, timeout_s: float) -> None:
        self.asked = {"tenant": tenant, "name": name, "wanted": token.global_position}
        self._tenant = tenant
        self._name = name
        self._token = token
        self._deadline = time.monotonic() + timeout_s
        self._pause_s = _WAIT_FIRST_S

    def pause_s(self, row: Any) -> float | None:
        """Returns how long to wait before the next look, in seconds; None: it is reached.

        Args:
            row: The answer to `REACHED`.

        Raises:
            WaitTimeoutError: The time is up, or the event is parked.
            SubscriptionError: There is no such subscription, or it is another tenant's.
        """
        reached, head, parked, owner = row
        if self._token.transaction_id and owner not in (None, self._tenant):
            raise _foreign(self._name, self._tenant, owner)
        if reached is not None and reached >= self._token.global_position and not parked:
            return None
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise _late(self._name, self._token, reached, head, parked=parked)
        pause_s = min(self._pause_s, left_s)
        self._pause_s = min(self._pause_s * 1.5, _WAIT_LONGEST_S)
        return pause_s


def _foreign(name: str, tenant: str, owner: str) -> SubscriptionError:
    return SubscriptionError(
        f"subscription {name} is of another tenant than what it is waited for",
        detail=f"subscription: {tenant}; the append: {owner}",
        hint="run it with store=store, whose tenant it takes, or declare it with tenant=...",
    )


def _late(
    name: str, token: Token, reached: int | None, head: int, *, parked: bool
) -> WaitTimeoutError | SubscriptionError:
    if reached is None:
        return refused("absent", name)
    if parked:
        return WaitTimeoutError(
            f"subscription {name} has parked the event at global position {token.global_position}",
            detail="its handler failed with it, or with an earlier event of its stream",
            hint="look at what is parked, repair the handler, then retry it",
        )
    return WaitTimeoutError(
        f"subscription {name} did not reach global position {token.global_position} in time",
        detail=f"it is at {reached}, {token.global_position - reached} positions short;"
        f" the log ends at {head}",
        hint="is it running, and does anything hold the log back? see eventstore.writers_under_way",
    )
