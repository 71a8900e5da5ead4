"""DeliveryLimit: when a runner may deliver events, and how many at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eventstore.subscription.session import RunnerSession
    from eventstore.subscription.subscription import Subscription


class DeliveryLimit:
    """The limit of a plain subscription: none. A reactor has a breaker and a rate.

    Attributes:
        once: Whether an effect that failed waits at once. Otherwise its handler is called a second
            time without a wait, which isolates the failure.
    """

    once: bool = False

    async def joined(self, session: RunnerSession, subscription: Subscription) -> None:
        """Is called when the runner's session has become a member."""

    async def held_s(self, session: RunnerSession) -> float:
        """Returns for how many seconds nothing may be delivered, 0 for none."""
        del session
        return 0.0

    def full(self, events: int) -> bool:
        """Returns whether a transaction ends after so many events that have effects."""
        del events
        return False

    def held_now(self) -> bool:
        """Returns whether nothing may be delivered at this moment."""
        return False

    def claimed(self, share: float) -> None:
        """Takes the part of all partitions that the runner has, from 0 to 1."""

    def succeeded(self) -> None:
        """Notes that an effect was done."""

    def failed(self, error: BaseException) -> bool:
        """Notes that an effect failed; returns whether that counts as an attempt."""
        del error
        return True
