"""Membership: a session's place among those who share a subscription's partitions."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg

from eventstore.errors import CheckpointBeyondHeadError, SubscriptionError
from eventstore.subscription import statement
from eventstore.subscription.subscription import Start

if TYPE_CHECKING:
    from psycopg import Connection

    from eventstore.subscription.subscription import Subscription


def join(connection: Connection[Any], subscription: Subscription) -> None:
    """Makes the session a member; declares the subscription if it is new.

    If it had another number of partitions and nobody runs it, it is split anew first.

    Raises:
        CheckpointBeyondHeadError: It is to start beyond the end of the log.
        SubscriptionError: It has another number of partitions, and that cannot be changed now.
    """
    asked = (subscription.tenant, subscription.name, subscription.partitions)
    with connection.transaction():
        # one at a time: whoever looks, or splits, has the members' lock for a moment, and would be
        # taken for a member that runs
        connection.execute(statement.TAKE_TURNS, asked[:2])
        for _ in range(_ROUNDS_MAX):
            _declare(connection, subscription)
            if _answer(connection, statement.JOIN, asked):
                return
            _split(connection, subscription)
    raise SubscriptionError(f"subscription {subscription.name} is being changed by others")


_ROUNDS_MAX = 5


def _split(connection: Connection[Any], subscription: Subscription) -> None:
    asked = (subscription.tenant, subscription.name, subscription.partitions)
    outcome = _answer(connection, statement.REPARTITION, asked)
    if outcome == "running":
        raise SubscriptionError(
            f"subscription {subscription.name} runs with another number of partitions",
            detail=f"this program has {subscription.partitions}",
            hint="stop all of its runners, then start them with the new number",
        )
    if outcome == "replaying":
        raise SubscriptionError(
            f"subscription {subscription.name} replays; it cannot be split anew now",
            detail=f"this program has {subscription.partitions} partitions",
            hint="run it with the number it had until the replay is done",
        )


def _declare(connection: Connection[Any], subscription: Subscription) -> None:
    start = subscription.start
    number = start if isinstance(start, int) else -1 if start is Start.END else 0
    silent = subscription.effects_from is Start.END
    asked = (subscription.tenant, subscription.name, subscription.partitions, number, silent)
    if not _answer(connection, statement.DECLARE, asked):
        raise CheckpointBeyondHeadError(
            f"subscription {subscription.name} is to start beyond the end of the log",
            detail=f"after global position {number}",
            hint="was the database restored to an earlier time? start at END or BEGINNING",
        )


def claim(connection: Connection[Any], subscription: Subscription) -> list[int]:
    """Takes and gives up partitions so that each member has its share; returns what it has."""
    mine: list[int] = _answer(connection, statement.CLAIM, (subscription.tenant, subscription.name))
    return sorted(mine or [])


def leave(connection: Connection[Any]) -> None:
    """Gives up membership and partitions at once.

    Closing the connection would do so too, but only when the server gets round to it: whoever comes
    next would still be told that the subscription runs.
    """
    with suppress(psycopg.Error):  # then closing the connection does it
        connection.execute(statement.LEAVE)


def _answer(connection: Connection[Any], asked: str, parameters: tuple[Any, ...]) -> Any:
    row = connection.execute(asked, parameters).fetchone()
    return None if row is None else row[0]
