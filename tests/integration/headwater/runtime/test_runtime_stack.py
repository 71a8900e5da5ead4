"""The five servers under one supervisor: start, join, kill, restart, stop."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from headwater import runtime
from headwater.runtime import ALL_SPAWNED, Endpoints, RuntimeSpec, ServiceState
from headwater.runtime.home import Home, read_json
from headwater.runtime.ports import is_free
from headwater.runtime.probe import (
    cache_answers,
    connect_answers,
    get_json,
    kafka_answers,
    postgres_answers,
    search_answers,
)
from headwater.runtime.process import ProcessRecord
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headwater.runtime import RuntimeStatus

pytestmark = pytest.mark.integration

NAMES = ["kafka", "postgres", "opensearch", "connect", "valkey"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    # A deep and unfriendly path, because users have them.
    folder = tmp_path_factory.mktemp("a folder with spaces") / ("deep" * 20) / ".headwater"
    yield folder
    runtime.down(folder)


@pytest.fixture
def endpoints(home: Path) -> Endpoints:
    """The running stack; a later test joins what an earlier one started."""
    return runtime.up(_spec(home), timeout_s=240)


def _spec(home: Path) -> RuntimeSpec:
    return RuntimeSpec(home=home, services=ALL_SPAWNED)


def _records(home: Path) -> list[ProcessRecord]:
    found = [ProcessRecord.from_json(read_json(f)) for f in Home(home).run.glob("*.pid")]
    return [record for record in found if record is not None]


def _pids(home: Path) -> dict[str, int]:
    return {record.name: record.pid for record in _records(home)}


def _wait_for(
    home: Path, what: Callable[[RuntimeStatus], bool], timeout_s: float = 90
) -> RuntimeStatus:
    found = wait_until(
        lambda: runtime.status(home),
        accept=lambda status: status is not None and what(status),
        timeout_s=timeout_s,
    )
    assert found is not None
    return found


def test_every_server_answers_in_its_own_protocol(home: Path, endpoints: Endpoints) -> None:
    assert endpoints.postgres_dsn is not None
    found = runtime.status(home)

    assert postgres_answers(endpoints.postgres_dsn, 5)
    assert kafka_answers(endpoints.kafka_bootstrap, 5)
    assert connect_answers(endpoints.connect_url, 5)
    assert search_answers(endpoints.search_url, 5)
    assert cache_answers(endpoints.cache_url, 5)
    assert found is not None
    assert found.ready
    assert sorted(NAMES) == sorted(service.name for service in found.services)


def test_connect_offers_debeziums_postgres_connector(endpoints: Endpoints) -> None:
    plugins = get_json(endpoints.connect_url, "/connector-plugins", 10)

    assert plugins is not None
    assert "io.debezium.connector.postgresql.PostgresConnector" in {p["class"] for p in plugins}


def test_postgres_is_set_up_for_capture_and_asks_for_a_password(endpoints: Endpoints) -> None:
    import psycopg

    assert endpoints.postgres_dsn is not None
    with psycopg.connect(endpoints.postgres_dsn) as connection:
        shown = {
            name: connection.execute("SELECT current_setting(%s)", [name]).fetchone()
            for name in ("wal_level", "fsync", "listen_addresses", "unix_socket_directories")
        }
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(endpoints.postgres_dsn, password="wrong")

    expected = {
        "wal_level": ("logical",),
        "fsync": ("on",),
        "listen_addresses": ("127.0.0.1",),
        "unix_socket_directories": ("",),
    }
    assert expected == shown


def test_everything_listens_on_loopback_only(home: Path, endpoints: Endpoints) -> None:
    import psutil

    assert endpoints
    ours = set(_pids(home).values())
    listening = {
        connection.laddr.ip
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.pid in ours
    }

    assert listening <= {"127.0.0.1", "::ffff:127.0.0.1"}
    assert listening


def test_a_second_up_joins_and_starts_nothing(home: Path, endpoints: Endpoints) -> None:
    before = _pids(home)

    again = runtime.up(_spec(home))

    assert endpoints == again
    assert before == _pids(home)


def test_the_password_is_kept_in_one_private_file(home: Path, endpoints: Endpoints) -> None:
    assert endpoints.postgres_dsn is not None
    secret = endpoints.postgres_dsn.split(":")[2].partition("@")[0].encode()
    holding = [
        path
        for folder in (home / "run", home / "log", home / "data" / "postgres")
        for path in folder.rglob("*")
        if path.is_file() and secret in path.read_bytes()
    ]

    assert [home / "data/postgres/password"] == holding
    assert 0o600 == holding[0].stat().st_mode & 0o777


@pytest.mark.fault
@pytest.mark.parametrize("name", ["kafka", "valkey", "postgres"])
def test_a_killed_server_is_noticed_and_restarted(
    home: Path, endpoints: Endpoints, name: str
) -> None:
    before = _pids(home)
    found = runtime.status(home)
    assert found is not None
    restarts = {service.name: service.restarts for service in found.services}

    os.kill(before[name], signal.SIGKILL)
    _wait_for(home, lambda s: (x := s.service(name)) is not None and x.restarts > restarts[name])
    after = _wait_for(home, lambda s: s.ready)

    restarted = after.service(name)
    assert restarted is not None
    assert "killed by signal 9" == restarted.last_error
    assert before[name] != restarted.pid
    assert before["supervisor"] == _pids(home)["supervisor"]
    assert endpoints == runtime.endpoints(_spec(home))


@pytest.mark.fault
def test_nothing_outlives_a_killed_supervisor_and_the_next_up_is_clean(
    home: Path, endpoints: Endpoints
) -> None:
    records = _records(home)
    assert 6 == len(records)

    os.kill(_pids(home)["supervisor"], signal.SIGKILL)

    assert [] == [record.name for record in records if not record.wait_gone(15)]
    dead = runtime.status(home)
    assert dead is not None
    assert not dead.running
    assert {ServiceState.STOPPED} == {service.state for service in dead.services}
    again = runtime.up(_spec(home), timeout_s=240)
    kept = again.search_url == endpoints.search_url
    # of its few ports, a stack of another test may have taken this one meanwhile
    assert kept or not is_free(urlsplit(endpoints.search_url or "").port or 0)
    assert endpoints == replace(again, search_url=endpoints.search_url)


def test_down_ends_everything_in_order_and_says_whether_there_was_anything(
    home: Path, endpoints: Endpoints
) -> None:
    assert endpoints
    records = _records(home)

    first = runtime.down(home)
    second = runtime.down(home)

    assert first
    assert not second
    assert [] == [record.name for record in records if record.alive()]
    assert [] == list(Home(home).run.glob("*.pid"))
    log = runtime.log_path(home, "supervisor").read_text()
    stopped = [name for name in NAMES if f'"service": "{name}", "state": "stopped"' in log]
    assert NAMES == stopped
    assert log.rindex('"connect", "state": "stopped"') < log.rindex('"kafka", "state": "stopped"')
    assert log.rindex('"kafka", "state": "stopped"') < log.rindex('"postgres", "state": "stopped"')
