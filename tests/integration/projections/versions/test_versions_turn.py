"""Commands that meet at the versions of one view: who is there for a moment only is waited for."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from projections.errors import VersionBusyError
from projections.versions import registry

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

HAD = """
SELECT count(*) FROM pg_locks
 WHERE locktype = 'advisory'
   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@contextmanager
def there(database: str, stays: threading.Event) -> Iterator[None]:
    """Somebody who is at the versions of `orders` until they are told to go."""
    at_it = threading.Event()

    def hold() -> None:
        with connected(database) as connection, registry.version_lock(connection, "shop", "orders"):
            at_it.set()
            stays.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    assert at_it.wait(30)
    try:
        yield
    finally:
        stays.set()
        holder.join(30)


def connected(database: str) -> psycopg.Connection[Any]:
    return psycopg.connect(database, autocommit=True)


def test_who_comes_second_waits_for_somebody_who_goes(database: str) -> None:
    stays = threading.Event()
    with there(database, stays), connected(database) as connection:
        threading.Timer(0.5, stays.set).start()
        with registry.version_lock(connection, "shop", "orders", wait_s=20):
            had = connection.execute(HAD)

            assert (1,) == had.fetchone()
            assert connection.execute("SHOW lock_timeout").fetchone() == ("0",)


def test_who_comes_second_is_refused_once_somebody_stays(database: str) -> None:
    stays = threading.Event()
    with there(database, stays), connected(database) as connection:
        with registry.version_lock(connection, "shop", "customers"):
            began = time.monotonic()
            with (
                pytest.raises(VersionBusyError) as refused,
                registry.version_lock(connection, "shop", "orders", wait_s=0.3),
            ):
                pass
            assert 0.3 <= time.monotonic() - began < 5
        assert "HW-P131" == refused.value.code
        stays.set()
        with registry.version_lock(connection, "shop", "orders", wait_s=20):
            pass  # the connection is of use, and what it was refused it can have
