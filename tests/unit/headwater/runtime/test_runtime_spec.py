"""Wishes, ports, templates and states of the local runtime."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headwater.runtime import CommandSpec, External, RuntimeSpec, ServiceName, ServiceState, Spawned
from headwater.runtime.errors import (
    DiskNearlyFullError,
    ExternalUnreachableError,
    HomeUnusableError,
    PortImpossibleError,
    PortTakenError,
)
from headwater.runtime.external import check_external, external_services, without_password
from headwater.runtime.home import Home, read_json
from headwater.runtime.plan import Plan
from headwater.runtime.ports import PortBook, is_free
from headwater.runtime.preflight import check_disk, choose_ports
from headwater.runtime.process import ProcessRecord
from headwater.runtime.servers.template import TEMPLATES, render
from headwater.runtime.status import RuntimeStatus, ServiceStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET_DSN = "postgresql://me:hunter2@db.example:5432/shop"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / ".headwater")
    made.create()
    return made


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_ports_are_free_distinct_and_remembered(home: Home) -> None:
    spec = RuntimeSpec(home.root, {name: Spawned() for name in ServiceName})

    first = choose_ports(home, spec)
    second = choose_ports(home, spec)

    assert first == second
    assert len(first) == len(set(first.values()))
    assert all(is_free(port) for port in first.values())
    assert {*ServiceName, "kafka-controller", "opensearch-transport"} == first.keys()


def test_a_remembered_port_that_somebody_took_is_replaced(home: Home, listener: int) -> None:
    home.ports.write_text(json.dumps({"valkey": listener}))

    port = PortBook(home.ports).choose("valkey")

    assert listener != port
    assert {"valkey": port} == read_json(home.ports)


def test_a_set_port_that_is_taken_is_refused_with_port_and_process(
    home: Home, listener: int
) -> None:
    spec = RuntimeSpec(home.root, {ServiceName.KAFKA: Spawned(port=listener)})

    with pytest.raises(PortTakenError) as caught:
        choose_ports(home, spec)

    assert f"port {listener} for kafka is in use" == caught.value.message
    assert f"pid {os.getpid()}" in (caught.value.detail or "")


def test_a_port_that_opensearch_cannot_use_is_refused(home: Home) -> None:
    with pytest.raises(PortImpossibleError):
        PortBook(home.ports).choose("opensearch", 19_200)


def test_a_nearly_full_disk_is_refused(tmp_path: Path) -> None:
    check_disk(tmp_path, 1)

    with pytest.raises(DiskNearlyFullError) as caught:
        check_disk(tmp_path, 2**60)

    assert "HW-R002" == caught.value.code


def test_an_external_server_that_does_not_answer_is_named_without_its_password(
    home: Home,
) -> None:
    cache = External("redis://:hunter2@127.0.0.1:1/0")
    [service] = external_services(RuntimeSpec(home.root, {ServiceName.CACHE: cache}))

    with pytest.raises(ExternalUnreachableError) as caught:
        check_external(service, timeout_s=0)

    assert "valkey does not answer" == caught.value.message
    assert "redis://127.0.0.1:1/0" == caught.value.detail


def test_a_home_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(HomeUnusableError) as caught:
        Home(tmp_path / "file" / ".headwater").create()

    assert "Not a directory" in (caught.value.detail or "")


def test_a_plan_survives_its_way_to_the_supervisor(home: Home) -> None:
    command = CommandSpec(
        "job", ("python", "-m", "x"), {"A": "b"}, ("kafka",), home.root / "ready", home.run
    )
    services: dict[ServiceName, External | Spawned] = {
        ServiceName.POSTGRES: External(SECRET_DSN),
        ServiceName.KAFKA: Spawned(9092, 300),
    }
    spec = RuntimeSpec(home.root, services, (command,))
    plan = Plan(
        spec, {"kafka": 9092, "kafka-controller": 9093}, Path("/j"), {"kafka": (Path("a"),)}
    )

    again = Plan.from_json(plan.to_json())

    assert plan == again
    assert "\n" not in plan.to_json()
    assert spec.fingerprints() == again.spec.fingerprints()


def test_settings_that_differ_have_other_fingerprints(home: Home) -> None:
    first = RuntimeSpec(home.root, {ServiceName.CACHE: Spawned(), ServiceName.KAFKA: Spawned()})
    second = RuntimeSpec(
        home.root, {ServiceName.KAFKA: Spawned(), ServiceName.CACHE: Spawned(memory_mb=64)}
    )

    one, two = first.fingerprints(), second.fingerprints()

    assert ["valkey"] == [name for name in one if one[name] != two[name]]


def test_no_wish_shows_a_password(home: Home) -> None:
    spec = RuntimeSpec(home.root, {ServiceName.POSTGRES: External(SECRET_DSN)})

    assert "hunter2" not in repr(spec)
    assert "hunter2" not in json.dumps(spec.fingerprints())
    assert "postgresql://db.example:5432/shop" == without_password(SECRET_DSN)


def test_connect_waits_for_a_kafka_of_ours_but_not_for_somebody_elses(home: Home) -> None:
    jars = {"kafka": (Path("a.jar"),)}
    ours = RuntimeSpec(home.root, {ServiceName.KAFKA: Spawned(), ServiceName.CONNECT: Spawned()})
    other = dataclasses.replace(
        ours, services={ServiceName.KAFKA: External("k:9"), ServiceName.CONNECT: Spawned()}
    )
    ports = {"kafka": 1, "kafka-controller": 2, "connect": 3}

    [_, waiting] = Plan(ours, ports, Path("java"), jars).services()
    [free] = Plan(other, ports, Path("java"), jars).services()

    assert ("kafka",) == waiting.depends_on
    assert () == free.depends_on


@pytest.mark.parametrize("name", sorted(path.name for path in TEMPLATES.iterdir()))
def test_every_placeholder_of_a_template_must_be_given_a_value(name: str) -> None:
    with pytest.raises(KeyError):
        render(name)


def test_states_of_a_dead_supervisor_are_shown_as_stopped() -> None:
    services = (
        ServiceStatus("kafka", ServiceState.READY, pid=1, rss_bytes=5),
        ServiceStatus("connect", ServiceState.FAILED, last_error="ended with exit code 1"),
    )
    dead = ProcessRecord(1, 1, "another boot", "supervisor")

    read = RuntimeStatus.from_json(RuntimeStatus(True, dead, {}, services, 1.0).to_json())

    assert read is not None
    assert not read.running
    assert [ServiceState.STOPPED, ServiceState.FAILED] == [s.state for s in read.services]
    assert [None, None] == [service.pid for service in read.services]


@pytest.mark.parametrize("value", [None, [], {}, {"version": 2}, {"version": 1}])
def test_a_file_that_is_no_status_is_no_status(value: object) -> None:
    assert RuntimeStatus.from_json(value) is None
