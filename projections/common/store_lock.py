"""Store lock: shared by batches, exclusive for cutovers.

Several batches may run at once; a cutover needs the lock exclusively. Between two batches all
versions of a view have the same changes, so readers who are moved then neither see a change twice
nor a row revert. Derived views reach a store apart from its batches, and have their own lock there.

Derived lock: derived views are written to a store while no cutover runs there.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import psycopg

from cdc.postgres import session
from foundation.advisory_lock import AdvisoryLock
from projections.errors import VersionBusyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MOVE_WAIT_S: Final = 60.0
"""How long a cutover waits for running batches."""

_LOCK: Final = AdvisoryLock.named("headwater.store", parts=2)


def of_derived(store: str) -> str:
    """Returns the name of the lock for derived views in a store."""
    return f"derived {store}"


@contextmanager
def shared(connection: psycopg.Connection[Any], source: str, store: str) -> Iterator[None]:
    """Excludes cutovers while a batch is written.

    Args:
        connection: To the source, in autocommit.
        source: Its name.
        store: The store, or `of_derived` of it.
    """
    given = source, str(store)
    connection.execute(_LOCK.in_session_shared, given)
    try:
        yield
    finally:
        with suppress(psycopg.Error):  # locks of an ended session are already released
            connection.execute(_LOCK.free_shared, given)


@contextmanager
def exclusive(
    connection: psycopg.Connection[Any], source: str, stores: Iterable[str]
) -> Iterator[None]:
    """Waits until no batch is written to some stores, and holds back further ones.

    Args:
        connection: To the source, in autocommit.
        source: Its name.
        stores: The stores, or `of_derived` of them.

    Raises:
        VersionBusyError: A batch takes too long.
    """
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = '{int(MOVE_WAIT_S)}s'")
            for store in sorted(stores):
                connection.execute(_LOCK.in_transaction, (source, str(store)))
            yield
    except psycopg.errors.LockNotAvailable:
        raise VersionBusyError(
            f"a batch has been written for longer than {MOVE_WAIT_S:.0f} s",
            hint="retry; headwater status shows what the job does",
        ) from None


class DerivedStoreLock:
    """The lock for derived views in one store, on a session that stays open.

    Args:
        dsn: The source database.
        source: Its name.
        store: The store.
    """

    def __init__(self, dsn: str, source: str, store: str) -> None:
        self._dsn = dsn
        self._source = source
        self._store = of_derived(store)
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[Any] | None = None

    @contextmanager
    def acquired(self) -> Iterator[psycopg.Connection[Any]]:
        """Excludes cutovers inside the block; yields the session, in autocommit.

        Raises:
            PostgresError: The source does not answer.
        """
        with self._lock:
            if self._connection is None or self._connection.closed:
                self._connection = session.connect(self._dsn)
            try:
                with shared(self._connection, self._source, self._store):
                    yield self._connection
            except psycopg.Error:
                self._connection.close()
                raise

    def close(self) -> None:
        """Closes the session."""
        if self._connection is not None:
            self._connection.close()
