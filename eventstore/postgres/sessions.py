"""Sessions: the store's own connections, each acting for the requested tenant.

On a direct connection, the store sets the tenant once per session. A pooler may assign another
server session to each transaction. Through a pooler the store therefore sets the tenant within each
transaction, and leaves no setting behind in a shared session.
"""

from __future__ import annotations

import os
import threading
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final

from eventstore.errors import StoreUnavailableError
from eventstore.forking import renew_after_fork
from eventstore.postgres.connection import make_async_pool, open_pool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from psycopg_pool import AsyncConnectionPool, ConnectionPool

    from eventstore.postgres.connection import AsyncStoreConnection, StoreConnection

_ACT_FOR: Final = "SELECT set_config('eventstore.tenant', %s, false)"
_ACT_FOR_NOW: Final = "SELECT set_config('eventstore.tenant', %s, true)"


class Sessions:
    """A pool of connections; a forked child opens its own pool at the first use.

    Threads: may be used concurrently.

    Args:
        dsn: The database; never shown.
        connections_max: Size of the pool.
    """

    def __init__(self, dsn: str, connections_max: int) -> None:
        self._dsn = dsn
        self._connections_max = connections_max
        self._opening = threading.Lock()
        self._pool: ConnectionPool[StoreConnection] | None = open_pool(dsn, connections_max)
        renew_after_fork(self)

    @contextmanager
    def acting(self, tenant: str | None) -> Iterator[StoreConnection]:
        """Lends a connection that acts for a tenant.

        Args:
            tenant: Tenant whose rows are visible; None leaves that to the role.
        """
        # not `with pool.connection()`, which also ends a transaction; none is open here
        pool = self._pool or self._open()
        connection = pool.getconn()
        try:
            _check_process(connection)
            if connection.pooled:
                with connection.transaction():
                    connection.execute(_ACT_FOR_NOW, (tenant or "",))
                    yield connection
                return
            if tenant is not None and connection.tenant != tenant:
                connection.execute(_ACT_FOR, (tenant,))
                connection.tenant = tenant
            yield connection
        finally:
            pool.putconn(connection)

    @contextmanager
    def transaction(self, tenant: str | None) -> Iterator[StoreConnection]:
        """Lends a connection with an open transaction that acts for a tenant."""
        with self.plain() as connection, connection.transaction():
            if tenant is not None:
                connection.execute(_ACT_FOR_NOW, (tenant,))
            yield connection

    @contextmanager
    def plain(self) -> Iterator[StoreConnection]:
        """Lends a connection without setting a tenant."""
        with (self._pool or self._open()).connection() as connection:
            _check_process(connection)
            yield connection

    def close(self) -> None:
        """Closes the connections."""
        if self._pool is not None:
            self._pool.close()

    def after_fork(self) -> None:
        """See `Forked`."""
        self._opening = threading.Lock()
        if self._pool is not None and not self._pool.closed:
            _abandon(self._pool)
            self._pool = None

    def _open(self) -> ConnectionPool[StoreConnection]:
        with self._opening:
            if self._pool is None:
                self._pool = open_pool(self._dsn, self._connections_max)
            return self._pool


class AsyncSessions:
    """`Sessions` for asyncio; belongs to the event loop that first uses it."""

    def __init__(self, dsn: str, connections_max: int) -> None:
        self._dsn = dsn
        self._connections_max = connections_max
        self._pool = make_async_pool(dsn, connections_max)
        renew_after_fork(self)

    @asynccontextmanager
    async def acting(self, tenant: str | None) -> AsyncIterator[AsyncStoreConnection]:
        """See `Sessions.acting`."""
        if self._pool.closed:
            await self._pool.open()
        async with self._pool.connection() as connection:
            _check_process(connection)
            if connection.pooled:
                async with connection.transaction():
                    await connection.execute(_ACT_FOR_NOW, (tenant or "",))
                    yield connection
                return
            if tenant is not None and connection.tenant != tenant:
                await connection.execute(_ACT_FOR, (tenant,))
                connection.tenant = tenant
            yield connection

    async def close(self) -> None:
        """Closes the connections."""
        await self._pool.close()

    def after_fork(self) -> None:
        """See `Forked`."""
        _abandon(self._pool)
        self._pool = make_async_pool(self._dsn, self._connections_max)


def _abandon(pool: ConnectionPool[Any] | AsyncConnectionPool[Any]) -> None:
    """Abandons a pool that belongs to the parent process, without sending anything to the server.

    Closing the pool would end the parent's sessions. Its finalizer would wait for threads that the
    child does not have, and may need a lock that one of them held.
    """
    vars(pool)["_closed"] = True


def _check_process(connection: StoreConnection | AsyncStoreConnection) -> None:
    if connection.process != os.getpid():
        raise StoreUnavailableError(
            "the connection belongs to another process",
            detail="the process was forked outside Python, so the store could not reconnect",
            hint="create the store after the fork",
        )
