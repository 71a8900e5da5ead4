"""RunnerSession: a runner's connection, blocking or for asyncio.

The work of runners is implemented once, as coroutines over a `RunnerSession`. Over a blocking
connection no coroutine is ever suspended, so `completed` runs it to its end in the caller's thread.
Over a connection for asyncio, the caller's event loop runs it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from eventstore.errors import LoginRefusedError
from eventstore.model.callables import check_result
from eventstore.postgres import login
from eventstore.postgres.connection import APPLICATION_NAME, lent, options
from eventstore.postgres.loaders import loads_as_stored

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from contextlib import AbstractAsyncContextManager

    from psycopg.pq import TransactionStatus

T = TypeVar("T")


def completed(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine over a `BlockingSession` to its end, without an event loop.

    Raises:
        RuntimeError: The coroutine waits for an event loop.
    """
    try:
        work.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    work.close()
    raise RuntimeError("this coroutine waits for an event loop")


class RunnerSession(ABC):
    """One connection of a runner.

    Attributes:
        connection: The psycopg connection, which handlers receive.
    """

    connection: Any

    @property
    def lost(self) -> bool:
        """Whether the connection is closed or broken."""
        return bool(self.connection.closed or self.connection.broken)

    @property
    def status(self) -> TransactionStatus:
        """Whether a transaction is open."""
        status: TransactionStatus = self.connection.info.transaction_status
        return status

    @abstractmethod
    async def rows(self, asked: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        """Executes a statement; returns its rows."""

    @abstractmethod
    async def events(self, asked: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        """Executes a statement; returns its rows: json columns as bytes, instants in UTC.

        `rows` is for statements without either, because instants depend on the session's settings.
        """

    @abstractmethod
    async def change(self, asked: str, parameters: Any = None) -> int:
        """Executes a statement; returns the number of changed rows."""

    @abstractmethod
    def transaction(self) -> AbstractAsyncContextManager[None]:
        """Returns a transaction, or a savepoint in one that is open."""

    @abstractmethod
    async def call(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a user's function, then restores the settings of the connection.

        Args:
            what: Name of the function in an error message.
            function: Called in this thread; over asyncio, its result is awaited.
            arguments: Arguments of the function.

        Raises:
            WrongKindError: The function returned an awaitable over a blocking connection.
            Exception: Raised by the function.
        """

    @abstractmethod
    async def compute(self, function: Callable[..., T], *arguments: Any) -> T:
        """Calls a function that decodes events; in another thread if asyncio uses a key ring."""

    async def row(self, asked: str, parameters: Any = None) -> tuple[Any, ...] | None:
        """Executes a statement; returns its first row, None without one."""
        found = await self.rows(asked, parameters)
        return found[0] if found else None

    async def value(self, asked: str, parameters: Any = None) -> Any:
        """Executes a statement; returns the first value of its first row, None without one."""
        found = await self.row(asked, parameters)
        return None if found is None else found[0]


class BlockingSession(RunnerSession):
    """A session over a blocking connection; its coroutines are never suspended.

    Args:
        connection: In autocommit mode, or with an open transaction, which the session joins.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection: psycopg.Connection[Any] = connection

    async def rows(self, asked: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        """See `RunnerSession.rows`."""
        return self.connection.execute(asked.encode(), parameters).fetchall()

    async def events(self, asked: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        """See `RunnerSession.events`."""
        cursor = self.connection.cursor(binary=True)
        loads_as_stored(cursor)
        return cursor.execute(asked.encode(), parameters).fetchall()

    async def change(self, asked: str, parameters: Any = None) -> int:
        """See `RunnerSession.change`."""
        return self.connection.execute(asked.encode(), parameters).rowcount

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """See `RunnerSession.transaction`."""
        with self.connection.transaction():
            yield

    async def call(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """See `RunnerSession.call`."""
        with lent(self.connection):
            result = function(*arguments)
        check_result(what, result)
        return result

    async def compute(self, function: Callable[..., T], *arguments: Any) -> T:
        """See `RunnerSession.compute`."""
        return function(*arguments)


class AsyncSession(RunnerSession):
    """A session over a connection for asyncio.

    Args:
        connection: In autocommit mode, or with an open transaction, which the session joins.
        in_threads: Whether decoding may query a key ring's database.
    """

    def __init__(
        self, connection: psycopg.AsyncConnection[Any], *, in_threads: bool = False
    ) -> None:
        self.connection: psycopg.AsyncConnection[Any] = connection
        self._in_threads = in_threads

    async def rows(self, asked: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        """See `RunnerSession.rows`."""
        return await (await self.connection.execute(asked.encode(), parameters)).fetchall()

    async def events(self, asked: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        """See `RunnerSession.events`."""
        cursor = self.connection.cursor(binary=True)
        loads_as_stored(cursor)
        return await (await cursor.execute(asked.encode(), parameters)).fetchall()

    async def change(self, asked: str, parameters: Any = None) -> int:
        """See `RunnerSession.change`."""
        return (await self.connection.execute(asked.encode(), parameters)).rowcount

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """See `RunnerSession.transaction`."""
        async with self.connection.transaction():
            yield

    async def call(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """See `RunnerSession.call`."""
        with lent(self.connection):
            result = function(*arguments)
            if hasattr(result, "__await__"):
                result = await result
        check_result(what, result)
        return result

    async def compute(self, function: Callable[..., T], *arguments: Any) -> T:
        """See `RunnerSession.compute`."""
        if self._in_threads:
            return await asyncio.to_thread(function, *arguments)
        return function(*arguments)


def _unopened(dsn: str, error: psycopg.OperationalError) -> Exception:
    """Returns an error that ends a runner if the login was refused, else one that it retries."""
    found = login.failure(dsn, error)
    return found if isinstance(found, LoginRefusedError) else error


@asynccontextmanager
async def blocking_session(dsn: str, name: str = APPLICATION_NAME) -> AsyncIterator[RunnerSession]:
    """Opens a blocking connection for a runner.

    Args:
        dsn: The database.
        name: Application name of the connection.
    """
    given = options(dsn, name[:63])
    try:
        opened = psycopg.connect(dsn, connect_timeout=login.CONNECT_TIMEOUT_S, **given)
    except psycopg.OperationalError as error:
        raise _unopened(dsn, error) from None
    with opened as connection:
        # READ COMMITTED: a statement needs a snapshot taken after the high-water mark was read
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        yield BlockingSession(connection)


@asynccontextmanager
async def async_session(
    dsn: str, name: str = APPLICATION_NAME, *, in_threads: bool = False
) -> AsyncIterator[RunnerSession]:
    """Opens a connection for asyncio for a runner.

    Args:
        dsn: The database.
        name: Application name of the connection.
        in_threads: See `AsyncSession`.
    """
    given = options(dsn, name[:63])
    connecting = psycopg.AsyncConnection.connect(
        dsn, connect_timeout=login.CONNECT_TIMEOUT_S, **given
    )
    try:
        opened = await connecting
    except psycopg.OperationalError as error:
        raise _unopened(dsn, error) from None
    async with opened as connection:
        await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
        yield AsyncSession(connection, in_threads=in_threads)
