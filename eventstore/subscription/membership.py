"""Membership: lets the sessions of several runners share the partitions of a subscription."""

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

    If the number of partitions has changed, `join` repartitions the subscription first, which
    requires that no runner is running it.

    Raises:
        CheckpointBeyondHeadError: The declared start is beyond the end of the log.
        SubscriptionError: The number of partitions has changed, and cannot be changed now.
    """
    asked = (subscription.owner, subscription.name, subscription.partitions)
    async with session.transaction():
        # One session at a time: while a session joins or repartitions, it briefly holds the lock of
        # the members, and another session would mistake it for a running member.
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
    """Claims and releases partitions so that each member has its share; returns the owned ones.

    Args:
        session: Session of the runner.
        subscription: The subscription.
        process: Server process of the session that joined.

    Raises:
        SubscriptionError: A pooler has since assigned another server session to the runner.
    """
    await check_session(session, subscription.name, process)
    mine: list[int] = await session.value(statement.CLAIM, (subscription.owner, subscription.name))
    return sorted(mine or [])


_PROBES = 3


async def check_session(session: RunnerSession, name: str, process: int) -> None:
    """Checks that a runner still uses the server session that joined.

    Args:
        session: Session of the runner, outside a transaction.
        name: Name of the subscription.
        process: Server process of the session that joined.

    Raises:
        SubscriptionError: A pooler has since assigned another server session to the runner.
    """
    if await session.value(BACKEND_PID) != process:
        raise _shared(name)


async def own_session(
    session: RunnerSession,
    opened: Callable[[], AbstractAsyncContextManager[RunnerSession]],
    name: str,
) -> int:
    """Returns the id of the server process, and refuses a pooler in transaction mode.

    To detect such a pooler, the function opens a transaction in a second session. The pooler then
    assigns the first session's server process to the second, or another process to the first.

    Args:
        session: Session of the runner, outside a transaction.
        opened: Opens a second session.
        name: Name of the subscription.

    Raises:
        SubscriptionError: The server session is not dedicated to the runner.
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
        hint="use a DSN of Postgres itself, or of a pooler in session mode; stores and"
        " Subscriptions also work with a pooler in transaction mode",
    )


async def leave(session: RunnerSession) -> None:
    """Releases membership and partitions immediately.

    Closing the connection releases them too, but only when the server process ends. Until then
    another runner would see the subscription as running.
    """
    with suppress(psycopg.Error):  # closing the connection then releases them
        await session.rows(statement.LEAVE)
