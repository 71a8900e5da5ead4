"""Membership: a session's place among those who share a subscription's partitions."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg

from eventstore.errors import CheckpointBeyondHeadError, SubscriptionError
from eventstore.postgres.connection import BACKEND_PID, options, pooled
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
    asked = (subscription.owner, subscription.name, subscription.partitions)
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
    asked = (subscription.owner, subscription.name, subscription.partitions)
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
    asked = (subscription.owner, subscription.name, subscription.partitions, number, silent)
    if not _answer(connection, statement.DECLARE, asked):
        raise CheckpointBeyondHeadError(
            f"subscription {subscription.name} is to start beyond the end of the log",
            detail=f"after global position {number}",
            hint="was the database restored to an earlier time? start at END or BEGINNING",
        )


def claim(connection: Connection[Any], subscription: Subscription, session: int) -> list[int]:
    """Takes and gives up partitions so that each member has its share; returns what it has.

    Args:
        connection: Of the runner.
        subscription: What it runs.
        session: Process of the server that has joined.

    Raises:
        SubscriptionError: A pooler has given the runner another session since.
    """
    check_session(connection, subscription.name, session)
    mine: list[int] = _answer(connection, statement.CLAIM, (subscription.owner, subscription.name))
    return sorted(mine or [])


_PROBES = 3


def check_session(connection: Connection[Any], name: str, session: int) -> None:
    """Makes sure that a runner still has the session that joined.

    Args:
        connection: Of the runner, outside of a transaction.
        name: Of the subscription.
        session: Process of the server that has joined.

    Raises:
        SubscriptionError: A pooler has given the runner another session since.
    """
    if _answer(connection, BACKEND_PID, ()) != session:
        raise _shared(name)


def own_session(connection: Connection[Any], dsn: str, name: str) -> int:
    """Returns the server's process, and refuses a pooler that deals out sessions by transaction.

    While another client's transaction is open, such a pooler gives it the session that this one had
    before, or this one another.

    Args:
        connection: Of the runner, outside of a transaction.
        dsn: How it was connected.
        name: Of the subscription.

    Raises:
        SubscriptionError: The session is not the runner's own.
    """
    own: int = _answer(connection, BACKEND_PID, ())
    if not pooled(connection, own):
        return own
    connection.prepare_threshold = None
    for _ in range(_PROBES):
        with psycopg.connect(dsn, **options(dsn)) as other, other.transaction():
            others = _answer(other, BACKEND_PID, ())
            if others == own or _answer(connection, BACKEND_PID, ()) != own:
                raise _shared(name)
    return own


def _shared(name: str) -> SubscriptionError:
    return SubscriptionError(
        f"the runner of subscription {name} needs a session of its own",
        detail="a pooler gives each transaction another session of the server",
        hint="give the runner a DSN that leads to Postgres itself, or to a pooler in session mode;"
        " stores and Subscriptions work through either",
    )


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
