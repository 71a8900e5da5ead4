"""The event store on a fresh database."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventstore.postgres.log import PostgresEventLog


@pytest.fixture(scope="session")
def store_template(postgres_dsn: str) -> Iterator[str]:
    """Name of a database with the event store's schema: copied faster than migrated."""
    from eventstore.postgres import schema
    from tests.fix_services import fresh_database

    with fresh_database(postgres_dsn) as dsn:
        schema.upgrade(dsn)
        yield urlsplit(dsn).path.removeprefix("/")


@pytest.fixture
def store_dsn(postgres_dsn: str, store_template: str) -> Iterator[str]:
    """DSN, as the owner, of a database that has the event store's schema and nothing else."""
    from tests.fix_services import fresh_database

    with fresh_database(postgres_dsn, store_template) as dsn:
        yield dsn


@pytest.fixture
def pg_log(store_dsn: str) -> Iterator[PostgresEventLog]:
    """An event log on a fresh database."""
    from eventstore.postgres.log import PostgresEventLog

    log = PostgresEventLog(store_dsn)
    yield log
    log.close()
