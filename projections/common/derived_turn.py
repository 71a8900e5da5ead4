"""Derived turn: views made from others are brought to a store while nobody moves readers there."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from cdc.postgres import session
from projections.common import store_lock

if TYPE_CHECKING:
    from collections.abc import Iterator


class DerivedTurn:
    """The turn of views made from others in one store, held by a session that stays open.

    Args:
        dsn: Of the source.
        source: Its name.
        store: The store.
    """

    def __init__(self, dsn: str, source: str, store: str) -> None:
        self._dsn = dsn
        self._source = source
        self._turn = store_lock.of_derived(store)
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
                with store_lock.shared(self._connection, self._source, self._turn):
                    yield self._connection
            except psycopg.Error:
                self._connection.close()
                raise

    def close(self) -> None:
        """Lets go of the session."""
        if self._connection is not None:
            self._connection.close()
