"""Connections: the store's own, from a pool, and the caller's, which the store joins."""

from __future__ import annotations

import asyncio
import os
import select
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

from eventstore.errors import BatchRefusedError
from eventstore.postgres import login
from eventstore.postgres.loaders import loads_as_stored

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg import AsyncCursor, Cursor

ConnectionT = TypeVar("ConnectionT", bound="psycopg.BaseConnection[Any]")
CursorT = TypeVar("CursorT", "psycopg.Cursor[Any]", "psycopg.AsyncCursor[Any]")

CONNECTIONS_MAX: Final = 10
"""A Postgres backend takes some MiB; more concurrent writers than this wait for a connection."""

CONNECTION_TIMEOUT_S: Final = 30.0
APPLICATION_NAME: Final = "headwater eventstore"
_BUSY_S: Final = 0.1  # a connection used this recently is not checked
# UTC, as times are stored, and the isolation level that the order of the log relies on, whatever
# the default of the database is.
_SESSION: Final = "SET TIME ZONE 'UTC'; SET default_transaction_isolation TO 'read committed'"
BACKEND_PID: Final = "SELECT pg_backend_pid()"
NOTICED: Final = (
    "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3"
)
"""Lets the server detect within half a minute that this machine has vanished. Until then, readers
of the log and other members wait for the locks of its session."""

_LIVENESS: Final = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


def options(dsn: str, name: str = APPLICATION_NAME) -> dict[str, Any]:
    """Returns the options of a connection, except those that the DSN sets itself.

    They detect within half a minute that the server's machine has vanished. By default, Linux waits
    two hours. Text is UTF-8 whatever the DSN, the environment, the role and the database say,
    because payloads are read as the bytes that the server sends.

    Args:
        dsn: The database.
        name: Application name of the connection.

    Raises:
        LoginRefusedError: The DSN cannot be read.
    """
    said = login.parsed(dsn)
    kept = {option: value for option, value in _LIVENESS.items() if option not in said}
    return {"autocommit": True, "application_name": name, **kept, "client_encoding": "utf8"}


class StoreConnection(psycopg.Connection[Any]):
    """A connection of the store's pool.

    Attributes:
        tenant: Tenant that its session acts for, which row-level security checks.
        process: Id of the process that opened it.
        pooled: Whether it leads to a pooler, which may change the server session per transaction.
        used_at: Time of its last append, by the monotonic clock.
        writer: A cursor reused for appends, because creating one costs more than using it.
    """

    tenant: str | None = None
    process: int = 0
    pooled: bool = False
    used_at: float = 0.0
    writer: Cursor[Any]


class AsyncStoreConnection(psycopg.AsyncConnection[Any]):
    """`StoreConnection` for asyncio."""

    tenant: str | None = None
    process: int = 0
    pooled: bool = False
    used_at: float = 0.0
    writer: AsyncCursor[Any]


def check_address(dsn: str) -> None:
    """Connects once, so that a wrong DSN is reported immediately and not by a pool timeout.

    Raises:
        LoginRefusedError: The server refuses user, password or database.
        StoreUnavailableError: The database cannot be reached; `detail` has the server's message.
    """
    if (error := login.attempt(dsn)) is not None:
        raise error


def _still_there(connection: StoreConnection | AsyncStoreConnection) -> None:
    # An idle connection is readable only if the server has closed it. A test query would cost a
    # round trip, and an append over a closed connection would leave its result unknown.
    if time.monotonic() - connection.used_at < _BUSY_S:
        return
    socket = select.poll()  # not select(), which supports no descriptor above 1023
    socket.register(connection.fileno(), select.POLLIN)
    if socket.poll(0):
        raise psycopg.OperationalError("the server has closed this connection")


class _Pool(ConnectionPool[StoreConnection]):
    """A pool whose timeout reports why the database refuses connections, if it does."""

    def getconn(self, timeout: float | None = None) -> StoreConnection:
        try:
            return super().getconn(timeout)
        except PoolTimeout:
            if (error := login.attempt(str(self.conninfo))) is not None:
                raise error from None
            raise


class _AsyncPool(AsyncConnectionPool[AsyncStoreConnection]):
    """`_Pool` for asyncio."""

    async def getconn(
        self,
        timeout: float | None = None,  # noqa: ASYNC109  # the parameter of the pool's method
    ) -> AsyncStoreConnection:
        try:
            return await super().getconn(timeout)
        except PoolTimeout:
            if (error := await asyncio.to_thread(login.attempt, str(self.conninfo))) is not None:
                raise error from None
            raise


def open_pool(dsn: str, connections_max: int) -> ConnectionPool[StoreConnection]:
    """Returns a pool whose connections read payloads as bytes; it connects when first used."""

    def configure(connection: StoreConnection) -> None:
        found = connection.execute(BACKEND_PID).fetchone()
        _prepare(connection, found)
        if connection.pooled:
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        else:
            connection.execute(f"{_SESSION}; {NOTICED}")
        loads_as_stored(connection)
        connection.writer = connection.cursor(binary=True)

    return _Pool(
        dsn,
        connection_class=StoreConnection,
        configure=configure,
        check=_still_there,
        open=True,
        **_pool_options(dsn, connections_max),
    )


def make_async_pool(dsn: str, connections_max: int) -> AsyncConnectionPool[AsyncStoreConnection]:
    """Returns a pool for asyncio, not yet open: opening it needs a running event loop."""

    async def configure(connection: AsyncStoreConnection) -> None:
        found = await (await connection.execute(BACKEND_PID)).fetchone()
        _prepare(connection, found)
        if connection.pooled:
            await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
        else:
            await connection.execute(f"{_SESSION}; {NOTICED}")
        loads_as_stored(connection)
        connection.writer = connection.cursor(binary=True)

    async def check(connection: AsyncStoreConnection) -> None:
        _still_there(connection)

    return _AsyncPool(
        dsn,
        connection_class=AsyncStoreConnection,
        configure=configure,
        check=check,
        open=False,
        **_pool_options(dsn, connections_max),
    )


def _pool_options(dsn: str, connections_max: int) -> dict[str, Any]:
    return {
        "kwargs": options(dsn),
        "min_size": 1,
        "max_size": connections_max,
        "timeout": CONNECTION_TIMEOUT_S,
        "name": "eventstore",
    }


def pooled(connection: psycopg.BaseConnection[Any], backend_pid: int) -> bool:
    """Returns whether this connection leads to a pooler.

    A pooler assigns its clients a cancellation id of its own, because the server session changes. A
    direct connection has the process id of the server.

    Args:
        connection: A connection of this process.
        backend_pid: Result of `BACKEND_PID`.
    """
    return connection.info.backend_pid != backend_pid


def _prepare(connection: StoreConnection | AsyncStoreConnection, found: Any) -> None:
    connection.process = os.getpid()
    connection.pooled = pooled(connection, found[0])
    if connection.pooled:
        # a prepared statement exists in one server session only
        connection.prepare_threshold = None


def own_cursor(kind: type[CursorT], connection: Any) -> CursorT:
    """Returns a cursor over the caller's connection that returns rows as the store expects.

    The connection's own row factory and cursor class belong to the caller's statements.

    Args:
        kind: `psycopg.Cursor`, or `psycopg.AsyncCursor` for a connection for asyncio.
        connection: The caller's connection, of the same kind.
    """
    cursor = kind(connection, row_factory=tuple_row)
    cursor.format = psycopg.pq.Format.BINARY
    loads_as_stored(cursor)
    return cursor


@contextmanager
def lent(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> Iterator[None]:
    """Lends a connection to the caller's code, then restores its settings."""
    changed: Any = connection  # both kinds have both settings
    kept = changed.row_factory, changed.cursor_factory
    try:
        yield
    finally:
        changed.row_factory, changed.cursor_factory = kept


def joined(kind: type[ConnectionT], handle: Any) -> ConnectionT:
    """Returns the psycopg connection on which the caller has opened a transaction.

    Args:
        kind: `psycopg.Connection` or `psycopg.AsyncConnection`.
        handle: A psycopg connection or cursor, or an SQLAlchemy session or connection; for
            `psycopg.AsyncConnection`, one of their asyncio classes.

    Raises:
        BatchRefusedError: The handle is none of these, or it is in autocommit mode, or its
            encoding is not UTF-8.
    """
    if issubclass(kind, psycopg.AsyncConnection):
        handle = getattr(handle, "sync_session", getattr(handle, "sync_connection", handle))
    found = _driver_connection(handle)
    if not isinstance(found, kind):
        raise _not_joinable(handle)
    _check_transaction(found)
    _check_encoding(found)
    return found


def _driver_connection(handle: Any) -> Any:
    if isinstance(handle, psycopg.BaseConnection):
        return handle
    if isinstance(handle, psycopg.Cursor | psycopg.AsyncCursor):
        return handle.connection
    # SQLAlchemy objects are recognized by their attributes: it is not a dependency.
    inner = getattr(handle, "connection", None)
    if callable(inner):  # Session.connection(), which begins a transaction if there is none
        inner = inner().connection
    elif inner is not None and not handle.in_transaction():
        handle.begin()  # else SQLAlchemy's commit would do nothing
    return getattr(inner, "driver_connection", None)


def _not_joinable(handle: Any) -> BatchRefusedError:
    return BatchRefusedError(
        "an append can join only a transaction of psycopg 3, or of SQLAlchemy with psycopg 3",
        detail=f"{type(handle).__module__}.{type(handle).__qualname__}",
    )


def _check_transaction(connection: psycopg.BaseConnection[Any]) -> None:
    idle = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    if connection.autocommit and idle:
        raise BatchRefusedError(
            "the connection has no open transaction to join",
            detail="it is in autocommit mode",
            hint="use `with connection.transaction():`, or omit connection",
        )


def _check_encoding(connection: psycopg.BaseConnection[Any]) -> None:
    # payloads are read as the bytes that the server sends
    encoding = connection.info.parameter_status("client_encoding")
    if encoding != "UTF8":
        raise BatchRefusedError(
            "the connection's client_encoding must be UTF8",
            detail=f"it is {encoding}",
            hint="connect with client_encoding=utf8, or omit connection",
        )
