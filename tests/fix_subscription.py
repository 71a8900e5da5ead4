"""Subscriptions on a real database: what a handler did is in a table, to compare with the log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest

from eventstore.model.event import AppendRequest, NewEvent, StreamAppend
from eventstore.model.token import Token
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventstore.model.event import StoredEvent
    from eventstore.postgres.log import PostgresEventLog
    from eventstore.subscription import Delivery

# A second delivery of an event breaks the key.
EFFECTS = """
CREATE TABLE effects (
    subscription text, stream text, stream_position bigint, global_position bigint, live boolean,
    place bigserial, PRIMARY KEY (subscription, global_position)
)
"""
RECORD = (
    "INSERT INTO effects (subscription, stream, stream_position, global_position, live)"
    " VALUES (%s, %s, %s, %s, %s)"
)


def record(event: StoredEvent, delivery: Delivery) -> None:
    """The handler of most tests: says in the database that it saw the event."""
    delivery.connection.execute(
        RECORD,
        (
            delivery.subscription,
            event.stream,
            event.stream_position,
            event.global_position,
            delivery.live,
        ),
    )


def new_event(type_: str = "order.placed", data: bytes = b"{}", version: int = 1) -> NewEvent:
    return NewEvent(type_, data, uuid4(), datetime.now(UTC), version)


class Ledger:
    """An event log and the table of effects beside it."""

    def __init__(self, dsn: str, log: PostgresEventLog) -> None:
        self.dsn = dsn
        self.log = log
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.connection.execute(EFFECTS)

    def append(self, stream: str, *events: NewEvent, tenant: str = "default", **joined: Any) -> int:
        """Appends events, one if none is given; returns the last global position."""
        request = AppendRequest((StreamAppend(stream, events or (new_event(),)),), tenant)
        return self.log.append(request, **joined).token.global_position

    def fill(self, events: int, streams: int = 7) -> int:
        """Appends many events over some streams; returns the last global position."""
        last = 0
        for start in range(0, events, 50):
            for stream in range(streams):
                count = len(range(start + stream, min(start + 50, events), streams))
                if count:
                    batch = [new_event() for _ in range(count)]
                    last = self.append(f"order-{stream}", *batch)
        return last

    def query(self, asked: str, *parameters: Any) -> list[Any]:
        rows = self.connection.execute(asked, parameters).fetchall()
        return [row[0] if len(row) == 1 else row for row in rows]

    def handled(self, subscription: str = "view") -> list[int]:
        """Global positions that a handler saw, in the log's order."""
        return self.query(
            "SELECT global_position FROM effects WHERE subscription = %s ORDER BY 1", subscription
        )

    def logged(self) -> list[int]:
        return self.query("SELECT global_position FROM eventstore.log ORDER BY 1")

    def orders(self, subscription: str = "view") -> dict[str, list[int]]:
        """Stream positions of each stream, in the order in which they were handled."""
        rows = self.query(
            "SELECT stream, array_agg(stream_position ORDER BY place) FROM effects"
            " WHERE subscription = %s GROUP BY stream",
            subscription,
        )
        return dict(rows)

    def position(self, subscription: str = "view") -> int:
        """Least position of its partitions; -1 before it is declared."""
        (found,) = self.query(
            "SELECT coalesce(min(global_position), -1) FROM eventstore.subscriptions"
            " WHERE name = %s",
            subscription,
        )
        return found

    def reaches(self, position: int, subscription: str = "view") -> None:
        wait_until(lambda: self.position(subscription) >= position, timeout_s=30)

    def token(self) -> Token:
        (last,) = self.query("SELECT max(global_position) FROM eventstore.log")
        return Token(last)


@pytest.fixture
def ledger(store_dsn: str, pg_log: PostgresEventLog) -> Iterator[Ledger]:
    """A fresh event store whose handlers' effects are recorded."""
    made = Ledger(store_dsn, pg_log)
    yield made
    made.connection.close()
