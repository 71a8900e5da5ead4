"""Reaching: decides between two polls whether a wait for a subscription is over."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from eventstore.errors import SubscriptionError, WaitTimeoutError
from eventstore.model.token import check_wait
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
    """Decides whether a wait is over. For each poll, the caller runs `REACHED` with `asked`.

    Args:
        tenant: Tenant of the subscription.
        name: Name of the subscription.
        token: The position to reach.
        timeout_s: Longest wait, in seconds.

    Raises:
        WrongKindError: The token is none.
        BatchRefusedError: The timeout is no number of seconds.

    Attributes:
        asked: Parameters of `REACHED`.
    """

    def __init__(self, tenant: str, name: str, token: Token, timeout_s: float) -> None:
        check_wait(token, timeout_s)
        self.asked = {"tenant": tenant, "name": name, "wanted": token.global_position}
        self._tenant = tenant
        self._name = name
        self._token = token
        self._deadline = time.monotonic() + timeout_s
        self._pause_s = _WAIT_FIRST_S

    def pause_s(self, row: Any) -> float | None:
        """Returns the seconds until the next poll; None if the position is reached.

        Args:
            row: The row that `REACHED` returned.

        Raises:
            WaitTimeoutError: The time is up, or the event is parked.
            SubscriptionError: The subscription does not exist, or belongs to another tenant.
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
        f"subscription {name} belongs to another tenant than the append",
        detail=f"subscription: {tenant}; the append: {owner}",
        hint="run it with store=store to use the store's tenant, or declare it with tenant=...",
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
            hint="list the parked events, repair the handler, then retry them",
        )
    return WaitTimeoutError(
        f"subscription {name} did not reach global position {token.global_position} in time",
        detail=f"it is at {reached}, {token.global_position - reached} positions short;"
        f" the log ends at {head}",
        hint="check that it runs, and see eventstore.writers_under_way for open transactions",
    )
