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
    """The default check between two polls of a wait: it does nothing."""


class AsyncSubscriptions:
    """Waits for the subscriptions of one tenant, in an event loop.

    The operator's methods are in `Subscriptions`.

    Args:
        dsn: The event store's database; never shown.
        tenant: The tenant.

    Raises:
        StoreUnavailableError: The database cannot be reached.
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
        """Waits until all partitions of a subscription have handled the events up to a token.

        Args:
            name: The subscription.
            token: The token returned by an append or a command.
            timeout_s: Longest wait, in seconds.
            running: Awaited between two polls; may raise to end the wait.

        Raises:
            WaitTimeoutError: The time is up, or the event is parked.
            SubscriptionError: The subscription does not exist, or belongs to another tenant than
                the append.
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
        """Closes the connections."""
        await self._sessions.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
