"""A machine that vanishes says no goodbye: both ends of a session ask for it within half a minute.

What the system itself was told is looked at, as to lose packets takes rights that a test has not.
"""

from __future__ import annotations

import os
import socket
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc.postgres import session
from eventstore.postgres import connection as store

if TYPE_CHECKING:
    from psycopg import Connection

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has these options"),
]

NOTICED = {"idle_s": 10, "interval_s": 5, "count": 3, "unanswered_ms": 30_000}


def _asked_of(connection: Connection[Any]) -> dict[str, int]:
    with closing(socket.socket(fileno=os.dup(connection.fileno()))) as end:
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        wanted = {
            "idle_s": socket.TCP_KEEPIDLE,
            "interval_s": socket.TCP_KEEPINTVL,
            "count": socket.TCP_KEEPCNT,
            "unanswered_ms": socket.TCP_USER_TIMEOUT,
        }
        return {name: end.getsockopt(socket.IPPROTO_TCP, option) for name, option in wanted.items()}


def test_a_server_that_vanished_is_noticed(database: str) -> None:
    with session.connect(database) as connection:
        assert NOTICED == _asked_of(connection)


def _asked_by_the_server(connection: Connection[Any]) -> list[str]:
    names = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count")
    rows = [connection.execute(f"SHOW {name}".encode()).fetchone() for name in names]
    return [str(row[0]) for row in rows if row is not None]


def test_the_server_notices_a_client_that_vanished(database: str) -> None:
    with session.connect(database, autocommit=False) as connection:
        assert ["10", "5", "3"] == _asked_by_the_server(connection)
        assert not connection.autocommit


def test_what_an_address_says_itself_holds(database: str) -> None:
    mark = "&" if "?" in database else "?"
    own = f"{database}{mark}keepalives_idle=77&tcp_user_timeout=5000"
    wanted = NOTICED | {"idle_s": 77, "unanswered_ms": 5_000}
    with session.connect(own) as connection:
        assert wanted == _asked_of(connection)
    with psycopg.connect(own, **store.options(own)) as connection:
        assert wanted == _asked_of(connection)


def test_connections_of_the_event_store_notice_it_too(database: str) -> None:
    with store.open_pool(database, 2) as pool, pool.connection() as connection:
        assert NOTICED == _asked_of(connection)
        assert ["10", "5", "3"] == _asked_by_the_server(connection)
