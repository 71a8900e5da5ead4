from __future__ import annotations

import os
import signal
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psutil
import pytest
from structlog.testing import capture_logs

from cdc import source
from cdc.broker.topics import topics
from cdc.connect.errors import ConnectorRefusedError
from cdc.connect.rest import ConnectRest
from cdc.postgres import session, slot
from cdc.postgres.errors import PublicationDriftError
from cdc.snapshot import reader, request
from cdc.table import TableName
from cdc.upkeep import capture_sample, flow
from cdc.upkeep.capture_supervisor import CaptureSupervisor
from cdc.upkeep.difference import Part
from cdc.upkeep.flow import FlowState
from tests.waiting import stays_so, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headwater.runtime import Endpoints
    from tests.fix_capture import Captured

pytestmark = pytest.mark.integration

TABLES = (
    "CREATE TABLE notes (id int PRIMARY KEY, body text)",
    "CREATE TABLE tags (id int PRIMARY KEY)",
)


@pytest.fixture
def notes(capture: Callable[..., Captured], database: str) -> Captured:
    """Two captured tables; the heartbeat is quick, so that a stall is told soon."""
    with session.connect(database) as connection:
        for statement in TABLES:
            connection.execute(statement)
    return capture("public.notes", "public.tags", heartbeat_interval_ms=200)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> float:
    """A stall is a stall after seconds; returns after how many."""
    monkeypatch.setattr(flow, "GRACE_S", 1.5)
    monkeypatch.setattr(capture_sample, "WINDOW_S", 1.0)
    monkeypatch.setattr(source, "_WORKER_S", 1.5)
    return flow.stall_limit_s(200)


def stays(captured: Captured, allowed: set[FlowState], for_s: float) -> None:
    stays_so(
        lambda: source.status(captured.spec).flow.state,
        accept=lambda state: state in allowed,
        for_s=for_s,
    )


@pytest.fixture(scope="module")
def kafka_bootstrap(own_servers: Endpoints) -> str:
    return own_servers.kafka_bootstrap


@pytest.fixture(scope="module")
def connect_url(own_servers: Endpoints) -> str:
    return own_servers.connect_url


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def sender(captured: Captured) -> int:
    with session.connect(captured.spec.dsn) as connection:
        found = slot.status(connection, captured.spec.slot)
    assert found is not None
    assert found.active_pid is not None
    return found.active_pid


def listener(url: str) -> int:
    port = urlsplit(url).port
    return next(
        c.pid
        for c in psutil.net_connections("tcp")
        if c.status == psutil.CONN_LISTEN and c.laddr.port == port and c.pid
    )


def test_a_plan_shows_what_apply_then_does_and_is_empty_after_it(
    database: str, kafka_bootstrap: str, connect_url: str
) -> None:
    with session.connect(database) as connection:
        connection.execute(TABLES[0])
    spec = source.CaptureSpec(
        name=f"p_{os.urandom(3).hex()}",
        dsn=database,
        tables=(TableName.parse("notes"),),
        connect_url=connect_url,
        kafka_bootstrap=kafka_bootstrap,
    )
    before = source.plan(spec)
    again = source.plan(spec)
    try:
        changes = source.apply(spec)
        after = source.plan(spec)
    finally:
        source.remove(spec, with_topics=True)

    assert before == again, "looking has changed something"
    assert {Part.SCHEMA, Part.PUBLICATION, Part.SLOT, Part.TOPIC, Part.CONNECTOR, Part.TABLE} == {
        difference.part for difference in before
    }
    assert all(difference.repaired for difference in before)
    assert len(before) == len(changes)
    assert [] == after


def test_drift_is_told_by_name_and_only_apply_repairs_it(notes: Captured) -> None:
    spec = notes.spec
    topic = f"{spec.name}.public.notes"
    password = urlsplit(spec.dsn).password or ""
    with closing(ConnectRest(spec.connect_url)) as rest:
        config = rest.config(spec.connector) or {}
        config.pop("name")
        rest.put_config(spec.connector, config | {"max.batch.size": "17"})
        left_over = {"segment.ms": "9000", "file.delete.delay.ms": "0"}
        topics.alter(spec.kafka_bootstrap, topic, {"retention.ms": "60000", **left_over})

        status = source.status(spec)
        with capture_logs() as logs, closing(CaptureSupervisor(spec)) as supervisor:
            supervisor.look()
        found = {(d.part, d.name, d.aspect): (d.have, d.want) for d in source.plan(spec)}
        repaired = source.apply(spec)
        left = source.plan(spec)

    kept_ms = str(spec.topic_retention_ms)
    assert {
        (Part.CONNECTOR, spec.connector, "max.batch.size"): ("17", "8192"),
        (Part.TOPIC, topic, "retention.ms"): ("60000", kept_ms),
        (Part.TOPIC, topic, "segment.ms"): ("9000", None),
        (Part.TOPIC, topic, "file.delete.delay.ms"): ("0", None),
    } == found
    assert len(status.drift) == len(found)
    assert [str(drift) for drift in status.drift] == [log["difference"] for log in logs]
    assert not status.healthy
    assert password not in str(status)
    assert f"changed connector {spec.connector}" in repaired
    assert [] == left


def test_a_table_taken_out_of_the_publication_is_told_and_not_put_back_in_silence(
    notes: Captured,
) -> None:
    spec = notes.spec
    wait_until(lambda: source.status(spec).flow.state is FlowState.RUNNING, "nothing flows")
    notes.execute(f"ALTER PUBLICATION {spec.publication} DROP TABLE tags")

    drift = source.status(spec).drift
    planned = source.plan(spec)

    assert [(Part.PUBLICATION, "public.tags")] == [(d.part, d.aspect) for d in drift]
    assert not any(difference.repaired for difference in planned)
    with pytest.raises(PublicationDriftError):
        source.apply(spec)


@pytest.mark.parametrize(
    "exchange",
    [
        (
            "CREATE TABLE green (LIKE notes INCLUDING ALL); INSERT INTO green VALUES (7, 'green');"
            " ALTER TABLE notes RENAME TO blue; ALTER TABLE green RENAME TO notes"
        ),
        (
            "DROP TABLE notes; CREATE TABLE notes (id int PRIMARY KEY, body text);"
            " INSERT INTO notes VALUES (7, 'green')"
        ),
    ],
    ids=["blue/green", "drop and create"],
)
def test_a_table_that_is_exchanged_for_another_of_its_name_is_told_and_read_anew(
    notes: Captured, exchange: str
) -> None:
    """The publication has the table that was there before, or none: no change of the new one."""
    spec, table = notes.spec, TableName("public", "notes")
    notes.execute("INSERT INTO notes VALUES (1, 'blue')")
    wait_until(lambda: (1,) in notes.rows("notes"), "the first row", accept=bool)

    within = "INSERT INTO notes VALUES (8, 'in it')"
    notes.execute(f"BEGIN; {exchange}; {within}; COMMIT")
    notes.execute("INSERT INTO notes VALUES (9, 'after it'); UPDATE notes SET body = 'all'")

    lacking = (Part.PUBLICATION, "public.notes", None)
    assert lacking in [(d.part, d.aspect, d.have) for d in source.status(spec).drift]
    with pytest.raises(PublicationDriftError) as refused:
        source.apply(spec)
    assert "headwater source resnapshot public.notes" in str(refused.value.hint)
    request.ask(spec, table)
    source.apply(spec)
    reader.run(spec)
    notes.execute("UPDATE notes SET body = 'streamed' WHERE id = 9")

    wanted = {(7,): "all", (8,): "all", (9,): "streamed"}
    wait_until(
        lambda: {key: row["body"] for key, row in notes.rows("notes").items()},
        f"rows {wanted}",
        accept=lambda found: wanted.items() <= found.items(),
    )
    assert [] == source.plan(spec)


def test_a_table_that_is_declared_no_more_leaves_the_publication(notes: Captured) -> None:
    fewer = replace(notes.spec, tables=notes.spec.tables[:1])

    planned = {(d.part, d.aspect) for d in source.plan(fewer)}
    source.apply(fewer)

    assert (Part.PUBLICATION, "public.tags") in planned
    assert (Part.CONNECTOR, "table.include.list") in planned
    assert [] == source.plan(fewer)


def test_what_rests_is_no_stall_and_what_does_not_move_is(notes: Captured, quick: float) -> None:
    spec = notes.spec
    wait_until(lambda: source.status(spec).flow.state is FlowState.RUNNING, "nothing flows")
    # nobody writes for longer than a stall takes; a busy machine may be late with a heartbeat
    stays(notes, {FlowState.RUNNING, FlowState.BEHIND}, quick + 1)

    with frozen(sender(notes)), closing(CaptureSupervisor(spec)) as supervisor:
        wait_until(lambda: source.status(spec).flow.state is FlowState.STALLED, "no stall is told")
        stalled = source.status(spec)
        wait_until(
            lambda: supervisor.look() or supervisor.restarts > 0, "the supervisor restarts nothing"
        )
    with closing(CaptureSupervisor(spec)) as supervisor:
        wait_until(
            lambda: supervisor.look() or source.status(spec).flow.state is FlowState.RUNNING,
            "a restart does not cure it",
        )

    assert ("RUNNING", False) == (stalled.connector_state, stalled.healthy)
    assert stalled.flow.since is not None
    assert "confirmed through" in stalled.flow.seen

    source.pause(spec)
    stays(notes, {FlowState.PAUSED}, quick)


def test_a_frozen_worker_is_a_stall_although_nobody_says_so(notes: Captured, quick: float) -> None:
    spec = notes.spec
    wait_until(lambda: source.status(spec).flow.state is FlowState.RUNNING, "nothing flows")

    with frozen(listener(spec.connect_url)):
        wait_until(lambda: source.status(spec).flow.state is FlowState.STALLED, "no stall is told")
        stalled = source.status(spec)

    assert "Connect does not answer" in stalled.flow.seen
    assert "UNREACHABLE" == stalled.connector_state
    assert quick > 0
    wait_until(lambda: source.status(spec).flow.state is FlowState.RUNNING, "it does not go on")


def test_a_publication_that_is_gone_ends_the_keeper_at_once(notes: Captured) -> None:
    notes.execute(f"DROP PUBLICATION {notes.spec.publication}")

    with closing(CaptureSupervisor(notes.spec)) as supervisor, pytest.raises(PublicationDriftError):
        supervisor.look()


def test_what_was_just_removed_can_be_removed_again_and_not_be_paused(notes: Captured) -> None:
    """Connect tells the state of a connector for a moment after it has gone."""
    first, second = source.remove(notes.spec), source.remove(notes.spec)

    assert f"connector {notes.spec.connector}" in first
    assert second == []
    with pytest.raises(ConnectorRefusedError, match="does not exist"):
        source.pause(notes.spec)
