"""DeliveryLimit: when a runner may deliver events, and how many at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eventstore.subscription.session import RunnerSession
    from eventstore.subscription.subscription import Subscription


class DeliveryLimit:
    """A subscription has no limit. A reactor overrides this class with a breaker and a rate.

    Attributes:
        once: Whether a failed effect parks its stream immediately. Otherwise the handler is first
            called a second time without a wait, which isolates the failure.
    """

    once: bool = False

    async def joined(self, session: RunnerSession, subscription: Subscription) -> None:
        """Called when the runner's session has joined the subscription."""

    async def held_s(self, session: RunnerSession) -> float:
        """Returns the seconds for which delivery pauses; 0 if it does not."""
        del session
        return 0.0

    def full(self, events: int) -> bool:
        """Returns whether a transaction ends after this number of events with effects."""
        del events
        return False

    def held_now(self) -> bool:
        """Returns whether delivery is paused now."""
        return False

    def claimed(self, share: float) -> None:
        """Sets the share of all partitions that the runner owns, from 0 to 1."""

    def succeeded(self) -> None:
        """Records a successful effect."""

    def failed(self, error: BaseException) -> bool:
        """Records a failed effect; returns whether it counts as an attempt."""
        del error
        return True
