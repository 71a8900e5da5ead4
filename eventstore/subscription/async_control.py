"""AsyncSubscriptions: waiting for subscriptions from an event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

import psycopg

from eventstore.model.names import DEFAULT_TENANT, check_tenant
from eventstore.postgres.connection import check_address
from eventstore.postgres.errors import translated
from eventstore.postgres.sessions import AsyncSessions
from eventstore.subscription.reaching import REACHED, Reaching

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from eventstore.model.token import Token

CONNECTIONS_MAX = 4


async def _no_matter() -> None:
    """What a wait asks between two looks where nothing can have failed."""


class AsyncSubscriptions:
    """The subscriptions of one tenant, for who waits for them in an event loop.

    What an operator does with them, `Subscriptions` does.

    Args:
        dsn: The event store's database; never shown.
        tenant: Whose subscriptions.

    Raises:
        StoreUnavailableError: There is no way to the database.
    """

    def __init__(self, dsn: str, *, tenant: str = DEFAULT_TENANT) -> None:
        check_address(dsn)
        self._tenant = check_tenant(tenant)
        self._sessions = AsyncSessions(dsn, CONNECTIONS_MAX)

    async def wait_for(
        self,
        name: str,
        token: Token,
        timeout_s: float,
        *,
        running: Callable[[], Awaitable[object]] = _no_matter,
    ) -> None:
        """Waits until a subscription has handled what a token stands for, in all partitions.

        Args:
            name: The subscription.
            token: What an append or a command has returned.
            timeout_s: Seconds at most.
            running: Is awaited between two looks, and may raise.

        Raises:
            WaitTimeoutError: It has not, or the event is parked.
            SubscriptionError: There is no such subscription, or it is of another tenant than the
                append.
        """
        reaching = Reaching(self._tenant, name, token, timeout_s)
        while (pause_s := reaching.pause_s(await self._row(reaching.asked))) is not None:
            await running()
            await asyncio.sleep(pause_s)

    async def _row(self, asked: dict[str, Any]) -> Any:
        try:
            async with self._sessions.acting(self._tenant) as connection:
                return await (await connection.execute(REACHED, asked)).fetchone()
        except psycopg.Error as error:
            raise translated(error) from error

    async def close(self) -> None:
        """Gives back the connections."""
        await self._sessions.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
