"""Subscriptions: readers of the log that remember how far they have come.

What is here says what is wanted and loads no driver. `eventstore.subscription.runner` runs it, and
`eventstore.subscription.async_runner` in an event loop;
`eventstore.subscription.control` looks at it, waits for it, replays it and decides about what is
parked.
"""

from __future__ import annotations

from eventstore.subscription.delivery import Delivery
from eventstore.subscription.failure import HandlerFailure
from eventstore.subscription.retry import Failure, RetryPolicy
from eventstore.subscription.subscription import (
    AsyncProjection,
    AsyncSubscription,
    Handler,
    Projection,
    Start,
    Subscription,
)

__all__ = [
    "AsyncProjection",
    "AsyncSubscription",
    "Delivery",
    "Failure",
    "Handler",
    "HandlerFailure",
    "Projection",
    "RetryPolicy",
    "Start",
    "Subscription",
]
