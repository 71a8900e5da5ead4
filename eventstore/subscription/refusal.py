"""Refusals: why an operator's request about a subscription is not done."""

from __future__ import annotations

from typing import Final

from eventstore.errors import SubscriptionError

_REFUSALS: Final = {
    "absent": ("there is no subscription {}", "it is declared when it runs for the first time"),
    "running": ("subscription {} is running", "stop all of its runners first"),
    "parked": (
        "subscription {} has parked streams, whose events a replay would lose or double",
        "retry or drop them first",
    ),
    "repartitioning": (
        "subscription {} has not yet caught up with its former partitions",
        "run it until it has, then replay",
    ),
    "ahead": (
        "subscription {} has not come so far, there is nothing to replay",
        "a replay goes back; what is ahead comes by itself",
    ),
    "doubling": (
        "subscription {} has tables of its own, and a replay would double what they hold",
        "headwater events rebuild {} builds them beside it, then exchanges what differs",
    ),
    "effects": (
        "subscription {} is a reactor, whose effects are never repeated by a replay",
        "headwater reactor retry repeats what has failed",
    ),
    "empty": ("a replay of subscription {} ends after it begins", "through is greater than from"),
}


def refused(outcome: str, name: str) -> SubscriptionError:
    """Returns the error that an answer of the database stands for."""
    message, hint = _REFUSALS[outcome]
    return SubscriptionError(message.format(name), hint=hint.format(name))
