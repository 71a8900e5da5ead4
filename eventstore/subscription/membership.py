"""Membership: a session's place among those who share a subscription's partitions."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import psycopg

from eventstore.errors import CheckpointBeyondHeadError, SubscriptionError
from eventstore.postgres.connection import BACKEND_PID, pooled
from eventstore.subscription import statement
from eventstore.subscription.subscription import Start

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from eventstore.subscription.session import RunnerSession
    from eventstore.subscription.subscription import Subscription


async def join(session: RunnerSession, subscription: Subscription) -> None:
    """Makes the session a member; declares the subscription if it is new.

    If it had another number of partitions and no one runs it, it is split again first.

    Raises:
        CheckpointBeyondHeadError: It is to start beyond the end of the log.
        SubscriptionError: It has another number of partitions, and that cannot be changed now.
    """
    asked = (subscription.owner, subscription.name, subscription.partitions)
    async with session.transaction():
        # one at a time: whoever looks, or splits, has the members' lock for a moment, and would be
        # taken for a member that runs
        await session.rows(statement.TAKE_TURNS, asked[:2])
        for _ in range(_ROUNDS_MAX):
            await _declare(session, subscription)
            if await session.value(statement.JOIN, asked):
                return
            await _split(session, subscription)
    raise SubscriptionError(f"subscription {subscription.name} is being changed by others")


_ROUNDS_MAX = 5


async def _split(session: RunnerSession, subscription: Subscription) -> None:
    asked = (subscription.owner, subscription.name, subscription.partitions)
    outcome = await session.value(statement.REPARTITION, asked)
    if outcome == "running":
        raise SubscriptionError(
            f"subscription {subscription.name} runs with another number of partitions",
            detail=f"this program has {subscription.partitions}",
            hint="stop all of its runners, then start them with the new number",
        )
    if outcome == "replaying":
        raise SubscriptionError(
            f"subscription {subscription.name} replays; it cannot change its partitions now",
            detail=f"this program has {subscription.partitions} partitions",
            hint="run it with the number it had until the replay is done",
        )


async def _declare(session: RunnerSession, subscription: Subscription) -> None:
    start = subscription.start
    number = start if isinstance(start, int) else -1 if start is Start.END else 0
    silent = subscription.effects_from is Start.END
    asked = (subscription.owner, subscription.name, subscription.partitions, number, silent)
    if not await session.value(statement.DECLARE, asked):
        raise CheckpointBeyondHeadError(
            f"subscription {subscription.name} is to start beyond the end of the log",
            detail=f"after global position {number}",
            hint="was the database restored to an earlier time? start at END or BEGINNING",
        )
    tables = sorted(subscription.tables)
    await session.change(statement.NAME_TABLES, (tables, *asked[:2], tables))


async def claim(session: RunnerSession, subscription: Subscription, process: int) -> list[int]:
    """Takes and gives up partitions so that each member has its share; returns what it has.

    Args:
        session: Of the runner.
        subscription: What it runs.
        process: Process of the server that has joined.

    Raises:
        SubscriptionError: A pooler has given the runner another session since.
    """
    await check_session(session, subscription.name, process)
    mine: list[int] = await session.value(statement.CLAIM, (subscription.owner, subscription.name))
    return sorted(mine or [])


_PROBES = 3


async def check_session(session: RunnerSession, name: str, process: int) -> None:
    """Makes sure that a runner still has the session that joined.

    Args:
        session: Of the runner, outside of a transaction.
        name: Of the subscription.
        process: Process of the server that has joined.

    Raises:
        SubscriptionError: A pooler has given the runner another session since.
    """
    if await session.value(BACKEND_PID) != process:
        raise _shared(name)


async def own_session(
    session: RunnerSession,
    opened: Callable[[], AbstractAsyncContextManager[RunnerSession]],
    name: str,
) -> int:
    """Returns the server's process, and refuses a pooler that deals out sessions by transaction.

    While another client's transaction is open, such a pooler gives it the session that this one had
    before, or this one another.

    Args:
        session: Of the runner, outside of a transaction.
        opened: Opens another one.
        name: Of the subscription.

    Raises:
        SubscriptionError: The session is not the runner's own.
    """
    own: int = await session.value(BACKEND_PID)
    if not pooled(session.connection, own):
        return own
    session.connection.prepare_threshold = None
    for _ in range(_PROBES):
        async with opened() as other, other.transaction():
            others = await other.value(BACKEND_PID)
            if others == own or await session.value(BACKEND_PID) != own:
                raise _shared(name)
    return own


def _shared(name: str) -> SubscriptionError:
    return SubscriptionError(
        f"the runner of subscription {name} needs a session of its own",
        detail="a pooler gives each transaction another session of the server",
        hint="give the runner a DSN that leads to Postgres itself, or to a pooler in session mode;"
        " stores and Subscriptions work through either",
    )


async def leave(session: RunnerSession) -> None:
    """Gives up membership and partitions at once.

    Closing the connection would do so too, but only when the server gets round to it: until
    then the next runner would see the subscription as running.
    """
    with suppress(psycopg.Error):  # then closing the connection does it
        await session.rows(statement.LEAVE)
