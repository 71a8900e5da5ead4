"""Store lock: shared by batches, exclusive for cutovers.

Several batches may run at once; a cutover needs the lock exclusively. Between two batches all
versions of a view have the same changes, so readers who are moved just then see no change twice,
and no row go back. Derived views reach a store apart from its batches, and have their own lock
there.

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
"""How long someone who moves readers waits for batches that are under way."""

_LOCK: Final = AdvisoryLock.named("headwater.store", parts=2)


def of_derived(store: str) -> str:
    """Returns the turn that derived views have in a store."""
    return f"derived {store}"


@contextmanager
def shared(connection: psycopg.Connection[Any], source: str, store: str) -> Iterator[None]:
    """Keeps readers from being moved while a batch is written.

    Args:
        connection: To the source, in autocommit.
        source: Its name.
        store: The store, or `of_derived` it.
    """
    given = source, str(store)
    connection.execute(_LOCK.in_session_shared, given)
    try:
        yield
    finally:
        with suppress(psycopg.Error):  # of a session that has ended nothing is held any more
            connection.execute(_LOCK.free_shared, given)


@contextmanager
def alone(
    connection: psycopg.Connection[Any], source: str, stores: Iterable[str]
) -> Iterator[None]:
    """Waits until no batch is written to any of some stores, and keeps further ones waiting.

    Args:
        connection: To the source, in autocommit.
        source: Its name.
        stores: The stores, or `of_derived` them.

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


class DerivedTurn:
    """The turn of derived views in one store, held by a session that stays open.

    Args:
        dsn: Of the source.
        source: Its name.
        store: The store.
    """

    def __init__(self, dsn: str, source: str, store: str) -> None:
        self._dsn = dsn
        self._source = source
        self._turn = of_derived(store)
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[Any] | None = None

    @contextmanager
    def taken(self) -> Iterator[psycopg.Connection[Any]]:
        """Keeps readers from being moved meanwhile; gives the session, in autocommit.

        Raises:
            PostgresError: The source does not answer.
        """
        with self._lock:
            if self._connection is None or self._connection.closed:
                self._connection = session.connect(self._dsn)
            try:
                with shared(self._connection, self._source, self._turn):
                    yield self._connection
            except psycopg.Error:
                self._connection.close()
                raise

    def close(self) -> None:
        """Lets go of the session."""
        if self._connection is not None:
            self._connection.close()
