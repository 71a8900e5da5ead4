"""Real servers for tests, started when a test asks for them, or attached to.

Kafka, Connect and OpenSearch run once for all workers of a run: the controller starts them
(``fix_shared_servers.py``). Each worker has a Postgres and a Valkey of its own: they start within a
second, and tests change what is global in them: roles, settings, the order of commits, ``FLUSHDB``.

Only the servers that the collected tests name are started. With ``--postgres-dsn`` and its
siblings the tests use servers that already run instead.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import pytest

from headwater import runtime
from headwater.runtime import Endpoints, External, RuntimeSpec, ServiceName, Spawned
from headwater.runtime.home import Home
from headwater.runtime.java.lock import read_lock
from headwater.runtime.servers.connect import secrets_folder
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg


@dataclass(frozen=True, slots=True)
class _Server:
    option: str
    fixtures: frozenset[str]


_SERVERS: Final = {
    ServiceName.POSTGRES: _Server("--postgres-dsn", frozenset({"postgres_dsn", "database"})),
    ServiceName.KAFKA: _Server("--kafka-bootstrap", frozenset({"kafka_bootstrap", "connect_url"})),
    ServiceName.CONNECT: _Server("--connect-url", frozenset({"connect_url", "connect_secrets"})),
    ServiceName.SEARCH: _Server("--search-url", frozenset({"search_url"})),
    ServiceName.CACHE: _Server("--cache-url", frozenset({"cache_url"})),
}
SHARED: Final = (ServiceName.KAFKA, ServiceName.CONNECT, ServiceName.SEARCH)
"""Servers that all workers of a run share."""
START_TIMEOUT_S: Final = 240.0


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("headwater services")
    for name, server in _SERVERS.items():
        group.addoption(server.option, default=None, help=f"use a running {name}")
    group.addoption(
        "--connect-secrets", default=None, help="folder that Connect reads secrets from"
    )


def pytest_report_header(config: pytest.Config) -> list[str]:
    attached = [name for name in _SERVERS if attached_to(config, name)]
    versions = {
        jar.artifact: jar.version for env in ("kafka", "opensearch") for jar in read_lock(env)
    }
    wanted = {
        "kafka": "kafka_2.13",
        "debezium": "debezium-connector-postgres",
        "opensearch": "opensearch",
    }
    shown = ", ".join(f"{name} {versions.get(jar, '?')}" for name, jar in wanted.items())
    return [f"services: {shown}; attached: {', '.join(attached) or 'none'}"]


def attached_to(config: pytest.Config, name: ServiceName) -> External | None:
    """The server that the command line names, if it names one."""
    address = config.getoption(_SERVERS[name].option)
    return External(address) if address else None


def _needed(session: pytest.Session) -> set[ServiceName]:
    """Servers that the fixtures of the collected tests stand for."""
    asked: set[str] = set()
    for item in session.items:
        asked.update(getattr(item, "fixturenames", ()))
    return {name for name, server in _SERVERS.items() if server.fixtures & asked}


@pytest.fixture(scope="session")
def services_home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Home folder of the servers that this process runs."""
    del request
    return tmp_path_factory.mktemp("services") / ".headwater"


@pytest.fixture(scope="session")
def services(request: pytest.FixtureRequest, services_home: Path) -> Iterator[Endpoints]:
    """Addresses of the servers that the collected tests need."""
    from tests.fix_shared_servers import ask_for

    needed = _needed(request.session)
    wanted: dict[ServiceName, External | Spawned] = {name: Spawned() for name in needed}
    wanted |= ask_for(request.config, needed & {*SHARED})
    wanted |= {
        name: server for name in needed if (server := attached_to(request.config, name)) is not None
    }
    found = runtime.up(
        RuntimeSpec(home=services_home, services=wanted, lifeline=True), timeout_s=START_TIMEOUT_S
    )
    if isinstance(wanted.get(ServiceName.POSTGRES), Spawned):
        assert found.postgres_dsn is not None
        _without_fsync(found.postgres_dsn)
    yield found
    runtime.down(services_home)


def _without_fsync(dsn: str) -> None:
    """Hundreds of databases are made and dropped; tests of crashes have servers of their own."""
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as admin:
        for setting in ("fsync", "full_page_writes"):
            admin.execute(f"ALTER SYSTEM SET {setting} = off".encode())
        admin.execute("SELECT pg_reload_conf()")


@pytest.fixture(scope="session")
def connect_secrets(
    request: pytest.FixtureRequest, services: Endpoints, services_home: Path
) -> Path:
    """Folder that the shared Connect reads secrets from."""
    from tests.fix_shared_servers import shared_home

    if request.config.getoption("--connect-url"):
        folder = request.config.getoption("--connect-secrets")
        return Path(folder) if folder else pytest.skip("give --connect-secrets")
    return secrets_folder(Home(shared_home(request.config) or services_home))


@pytest.fixture(scope="session")
def postgres_dsn(services: Endpoints) -> str:
    """A superuser's DSN on the shared Postgres, ``wal_level=logical``."""
    assert services.postgres_dsn is not None
    return services.postgres_dsn


@pytest.fixture(scope="session")
def kafka_bootstrap(services: Endpoints) -> str:
    """The shared broker."""
    return services.kafka_bootstrap


@pytest.fixture(scope="session")
def connect_url(services: Endpoints) -> str:
    """The shared Kafka Connect, with Debezium."""
    return services.connect_url


@pytest.fixture(scope="session")
def search_url(services: Endpoints) -> str:
    """The shared OpenSearch."""
    return services.search_url


@pytest.fixture(scope="session")
def cache_url(services: Endpoints) -> str:
    """The shared Valkey."""
    return services.cache_url


@pytest.fixture
def database(postgres_dsn: str) -> Iterator[str]:
    """DSN of a database that only this test has; its slots are dropped with it."""
    with fresh_database(postgres_dsn) as dsn:
        yield dsn


@contextmanager
def fresh_database(postgres_dsn: str, template: str = "template1") -> Iterator[str]:
    """A copy of a database, for as long as the block runs."""
    import psycopg
    from psycopg import sql

    names = sql.Identifier(name := f"t_{secrets.token_hex(6)}"), sql.Identifier(template)
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        # files are copied; by default every page would go through the log
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY")
        admin.execute(create.format(*names))
    try:
        yield urlsplit(postgres_dsn)._replace(path=f"/{name}").geturl()
    finally:
        with psycopg.connect(postgres_dsn, autocommit=True) as admin:
            _drop_slots(admin, name)
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(names[0]))


def _drop_slots(admin: psycopg.Connection, database: str) -> None:
    """A database with slots cannot be dropped, and a slot in use cannot be dropped either."""

    def left() -> int:
        admin.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
            "WHERE database = %s AND active",
            [database],
        )
        admin.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
            "WHERE database = %s AND NOT active",
            [database],
        )
        row = admin.execute(
            "SELECT count(*) FROM pg_replication_slots WHERE database = %s", [database]
        ).fetchone()
        assert row is not None
        return int(row[0])

    wait_until(left, "every replication slot is free", accept=lambda slots: slots == 0)
