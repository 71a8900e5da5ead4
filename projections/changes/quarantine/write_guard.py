"""StoreGuard: the driver's copy of one store's quarantined keys, and the lock of its writes."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

import psycopg

from projections.changes.quarantine import table as quarantine_table
from projections.common import store_lock
from projections.errors import QuarantineDownError
from projections.planning.job_spec import writing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from projections.changes.quarantine.table import Connection
    from projections.changes.task_outcome import BlockedKeys
    from projections.common.driver_lock import DriverToken
    from projections.definition.views import Store
    from projections.planning.job_config import LedgerAddress

_PAUSE_S: Final = 5.0
"""Pause between two attempts to reach a database that does not answer."""


class StoreGuard:
    """Knows the quarantined keys, and admits one batch or retry of the store at a time.

    Only the job adds to the quarantine. While the database is down, the last known keys therefore
    suffice for batches that quarantine nothing: at worst a discarded key stays blocked.

    Args:
        address: The quarantine.
        store: The store.
    """

    def __init__(
        self, address: LedgerAddress, store: Store, driver_token: DriverToken | None = None
    ) -> None:
        self._lock = threading.Lock()
        self._driver_token = driver_token
        self._address = address
        self._store = store
        self._connection: Connection | None = None
        self._known: Mapping[str, BlockedKeys] | None = None
        self._again_at = 0.0
        self._away_until = 0.0

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Waits for other writes to the store, and excludes them within the block.

        Raises:
            WriterFencedError: Another driver has adopted the home.
        """
        with self._lock, self._without_cutovers(), writing(self._driver_token):
            yield

    @contextmanager
    def _without_cutovers(self) -> Iterator[None]:
        """Excludes cutovers meanwhile; without the database no process can begin one."""
        with ExitStack() as held:
            if self._connection is not None or time.monotonic() >= self._away_until:
                try:
                    lock = self._connected(), self._address.source, self._store
                    held.enter_context(store_lock.shared(*lock))
                except (QuarantineDownError, psycopg.Error):
                    self.close()
                    self._away_until = time.monotonic() + _PAUSE_S
            yield

    def held(self) -> Mapping[str, BlockedKeys]:
        """Returns the quarantined records, by view.

        Raises:
            QuarantineDownError: It cannot be read, and was never read before.
        """
        if self._known is not None and time.monotonic() < self._again_at:
            return self._known
        try:
            connection = self._connected()
            self._known = quarantine_table.held(connection, self._address.source, self._store)
        except QuarantineDownError:
            self.close()
            self._again_at = time.monotonic() + _PAUSE_S
            if self._known is None:
                raise
        return self._known

    def changed(self) -> None:
        """Records that there may be quarantined records that are not known yet."""
        self._known = None

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = quarantine_table.connect(self._address)
        return self._connection

    def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
