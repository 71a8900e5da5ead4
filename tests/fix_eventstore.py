"""The event store on a fresh database."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventstore.postgres.log import PostgresEventLog

_SQL = Path(__file__).resolve().parents[1] / "migrations" / "sql" / "0001_event_store"


@pytest.fixture
def store_dsn(database: str) -> str:
    """DSN, as the owner, of a database that has the event store's schema and nothing else."""
    import psycopg

    with psycopg.connect(database) as connection:
        for statement in sorted(_SQL.glob("*.sql")):
            connection.execute(statement.read_bytes())
    return database


@pytest.fixture
def pg_log(store_dsn: str) -> Iterator[PostgresEventLog]:
    """An event log on a fresh database."""
    from eventstore.postgres.log import PostgresEventLog

    log = PostgresEventLog(store_dsn)
    yield log
    log.close()
