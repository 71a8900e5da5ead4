"""Subscriptions: readers of the log with durable checkpoints.

This package declares subscriptions and loads no driver. `eventstore.subscription.runner` runs them
in a thread, `eventstore.subscription.async_runner` in an event loop.
`eventstore.subscription.control` shows their status, waits for them, replays them, and retries or
drops parked events.
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
