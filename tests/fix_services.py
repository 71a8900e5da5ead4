"""Real servers for tests: one stack for each worker, started when a test asks, or attached to.

Only the servers that the collected tests name are started. With ``--postgres-dsn`` and its
siblings the tests use servers that already run instead.
"""

from __future__ import annotations

import secrets
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import pytest

from headwater import runtime
from headwater.runtime import Endpoints, External, RuntimeSpec, ServiceName, Spawned
from headwater.runtime.connect import secrets_folder
from headwater.runtime.home import Home
from headwater.supply.lock import read_lock

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


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("headwater services")
    for name, server in _SERVERS.items():
        group.addoption(server.option, default=None, help=f"use a running {name}")
    group.addoption(
        "--connect-secrets", default=None, help="folder that Connect reads secrets from"
    )


def pytest_report_header(config: pytest.Config) -> list[str]:
    attached = [name for name, server in _SERVERS.items() if config.getoption(server.option)]
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


def _needed(session: pytest.Session) -> set[ServiceName]:
    """Servers that the fixtures of the collected tests stand for."""
    asked: set[str] = set()
    for item in session.items:
        asked.update(getattr(item, "fixturenames", ()))
    named = asked & set().union(*(server.fixtures for server in _SERVERS.values()))
    if "services" in asked and any(_only_asks_for_all(item) for item in session.items):
        return set(ServiceName)
    return {name for name, server in _SERVERS.items() if server.fixtures & named}


def _only_asks_for_all(item: pytest.Item) -> bool:
    # Every fixture below pulls ``services`` in; only a test that names it itself wants them all.
    function = getattr(item, "_fixtureinfo", None)
    return function is not None and "services" in function.initialnames


@pytest.fixture(scope="session")
def services_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Home folder of the shared stack."""
    return tmp_path_factory.mktemp("services") / ".headwater"


@pytest.fixture(scope="session")
def services(request: pytest.FixtureRequest, services_home: Path) -> Iterator[Endpoints]:
    """Addresses of the shared stack."""
    wanted: dict[ServiceName, External | Spawned] = {
        name: Spawned() for name in _needed(request.session)
    }
    for name, server in _SERVERS.items():
        address = request.config.getoption(server.option)
        if address:
            wanted[name] = External(address)
    spec = RuntimeSpec(home=services_home, services=wanted, lifeline=True)
    yield runtime.up(spec, timeout_s=480)
    runtime.down(services_home)


@pytest.fixture(scope="session")
def connect_secrets(
    request: pytest.FixtureRequest, services: Endpoints, services_home: Path
) -> Path:
    """Folder that the shared Connect reads secrets from."""
    if request.config.getoption("--connect-url"):
        folder = request.config.getoption("--connect-secrets")
        return Path(folder) if folder else pytest.skip("give --connect-secrets")
    return secrets_folder(Home(services_home))


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
        admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(*names))
    try:
        yield urlsplit(postgres_dsn)._replace(path=f"/{name}").geturl()
    finally:
        with psycopg.connect(postgres_dsn, autocommit=True) as admin:
            _drop_slots(admin, name)
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(names[0]))


def _drop_slots(admin: psycopg.Connection, database: str) -> None:
    """A database with slots cannot be dropped, and a slot in use cannot be dropped either."""
    deadline = time.monotonic() + 20
    while True:
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
        left = admin.execute(
            "SELECT count(*) FROM pg_replication_slots WHERE database = %s", [database]
        ).fetchone()
        if left == (0,):
            return
        assert time.monotonic() < deadline, "a replication slot does not become free"
        time.sleep(0.05)
