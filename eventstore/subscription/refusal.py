"""Refusals: errors for operator requests that the database refuses."""

from __future__ import annotations

from typing import Final

from eventstore.errors import SubscriptionError

_REFUSALS: Final = {
    "absent": ("there is no subscription {}", "its first run declares it"),
    "running": ("subscription {} is running", "stop all of its runners first"),
    "parked": (
        "subscription {} has parked streams, whose events a replay would lose or repeat",
        "retry or drop them first",
    ),
    "repartitioning": (
        "subscription {} has not yet caught up with its former partitions",
        "run it until it has caught up, then replay",
    ),
    "ahead": (
        "subscription {} has not reached that position, so there is nothing to replay",
        "name a position before its checkpoint; later events are delivered without a replay",
    ),
    "doubling": (
        "subscription {} has tables of its own, and a replay would apply events to them twice",
        "use headwater events rebuild {}, which computes the tables again",
    ),
    "effects": (
        "subscription {} is a reactor, whose effects are never repeated by a replay",
        "headwater reactor retry repeats failed effects",
    ),
    "empty": (
        "a replay of subscription {} must end after it begins",
        "through must be greater than from",
    ),
}


def refused(outcome: str, name: str) -> SubscriptionError:
    """Returns the error for an outcome that the database returned."""
    message, hint = _REFUSALS[outcome]
    return SubscriptionError(message.format(name), hint=hint.format(name))
