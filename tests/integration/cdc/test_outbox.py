"""Messages leave through the outbox if, and only if, their transaction commits."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import orjson
import psycopg
import pytest
from psycopg import errors

from cdc import source
from cdc.broker.client.admin import consumer
from cdc.broker.topics import topics
from cdc.broker.topics.offsets import partitions
from cdc.connect.rest import ConnectRest
from cdc.table import TableName
from eventstore.model.event import AppendRequest, IntegrationEvent, NewEvent, StreamAppend
from eventstore.model.expected_version import ANY
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventstore.postgres.log import PostgresEventLog
    from tests.fix_capture import Captured

pytestmark = pytest.mark.integration

OUTBOX = TableName("eventstore", "outbox")
PAYLOAD = (
    '{"b":1.10,  "a":[1,"2",null,{}], "null":null, "søster":"\\u00e6\\"", "big":9007199254740993}'
)
SEND = "SELECT eventstore.send(%s, %s::json, %s)"


@pytest.fixture
def shop(store_dsn: str, capture: Callable[..., Captured]) -> Callable[..., Captured]:
    """Captures a table beside the outbox."""

    def make(**settings: Any) -> Captured:
        with psycopg.connect(store_dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE notes (id int PRIMARY KEY, word text)")
        return capture("public.notes", dsn=store_dsn, outbox=OUTBOX, **settings)

    return make


def message(stream: str, payload: str = "{}", **fields: Any) -> dict[str, Any]:
    said = {"message_id": str(uuid4()), "topic": "order", "stream": stream}
    return said | {"type": "OrderPlaced", "version": 1, "payload": payload} | fields


def send(connection: psycopg.Connection[Any], *messages: dict[str, Any]) -> None:
    connection.execute(SEND, ("default", orjson.dumps(messages).decode(), None))


def received(captured: Captured, count: int, topic: str = "order") -> list[Any]:
    """The first messages of a topic; what lies behind them in the same partitions as well."""
    name = captured.spec.outbox_prefix + topic
    found: list[Any] = []
    wait_until(lambda: name in topics.names(captured.spec.kafka_bootstrap), f"topic {name}")
    with consumer(captured.spec.kafka_bootstrap) as client:
        places = partitions(client, [name])
        client.assign(places)
        client.seek_to_beginning(*places)

        def came() -> int:
            for records in client.poll(timeout_ms=100).values():
                found.extend(records)
            return len(found)

        wait_until(came, f"{count} messages", accept=lambda number: number >= count, pause_s=0)
    return found


def test_a_message_is_its_payload_byte_for_byte_under_its_streams_name(
    shop: Callable[..., Captured], pg_log: PostgresEventLog
) -> None:
    captured = shop()
    message_id = UUID("0191d0a0-0000-7000-8000-000000000001")
    sent = IntegrationEvent("OrderPlaced", PAYLOAD.encode(), "order-søster", message_id, 3)
    now = pg_log_time(captured)
    event = NewEvent("order.placed", b"{}", uuid4(), now)
    append = StreamAppend("order-søster", (event,), ANY)

    pg_log.append(AppendRequest((append,), tenant="acme", outbox=(sent,), correlation_id="flow 7"))

    (record,) = received(captured, 1)
    assert ("order-søster".encode(), PAYLOAD.encode()) == (record.key, record.value)
    assert {
        "id": str(message_id).encode(),
        "type": b"OrderPlaced",
        "version": b"3",
        "correlation_id": b"flow 7",
        "tenant": b"acme",
    } == dict(record.headers)


def pg_log_time(captured: Captured) -> Any:
    with psycopg.connect(captured.database) as connection:
        row = connection.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    return row[0]


def test_what_is_rolled_back_or_deleted_is_no_message(shop: Callable[..., Captured]) -> None:
    captured = shop()
    with psycopg.connect(captured.database) as connection:
        send(connection, message("order-1", '"never"'))
        connection.rollback()
        with connection.transaction(force_rollback=True):
            send(connection, message("order-1", '"never either"'))
        send(connection, message("order-1", '"first"'), message("order-1", '"second"'))
        connection.commit()
        send(connection, message("order-1", '"last"'))

    found = received(captured, 3)

    assert [b'"first"', b'"second"', b'"last"'] == [record.value for record in found]
    assert f"{captured.spec.name}.eventstore.outbox" not in topics.names(
        captured.spec.kafka_bootstrap
    )
    with psycopg.connect(captured.database) as connection:
        assert (0,) == connection.execute("SELECT count(*) FROM eventstore.outbox").fetchone()
    assert source.status(captured.spec).healthy


def test_messages_of_a_stream_keep_their_order_over_partitions_and_writers(
    shop: Callable[..., Captured],
) -> None:
    captured = shop(topic_partitions=3)

    def write(writer: int) -> None:
        with psycopg.connect(captured.database) as connection:
            for number in range(100):
                said = [message(f"order-{writer}-{n}", str(number)) for n in range(4)]
                send(connection, *said)
                connection.commit() if number % 10 else connection.rollback()

    writers = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    by_stream: dict[bytes, list[int]] = {}
    places: dict[bytes, set[int]] = {}
    for record in received(captured, 4 * 4 * 90):
        by_stream.setdefault(record.key, []).append(int(record.value))
        places.setdefault(record.key, set()).add(record.partition)

    expected = [number for number in range(100) if number % 10]
    assert {f"order-{w}-{n}".encode(): expected for w in range(4) for n in range(4)} == by_stream
    assert {1} == {len(found) for found in places.values()}
    assert {0, 1, 2} == set().union(*places.values())


def test_rows_of_tables_are_captured_as_ever_beside_the_outbox(
    shop: Callable[..., Captured],
) -> None:
    captured = shop(epoch=3)
    with psycopg.connect(captured.database) as connection:
        connection.execute("INSERT INTO notes VALUES (1, 'note')")
        send(connection, message("order-1"))

    captured.execute("UPDATE notes SET id = 2", "DELETE FROM notes")

    records = captured.records("notes")
    assert [b'{"id":1}'] * 3 + [b'{"id":2}'] * 3 == [record.key for record in records]
    assert {b"3"} == {dict(record.headers)["headwater.epoch"] for record in records}
    moved = dict(records[1].headers)
    assert {"id": 2} == orjson.loads(moved["__debezium.newkey"])
    (sent,) = received(captured, 1)
    assert "headwater.epoch" not in dict(sent.headers)


def test_messages_of_each_topic_go_to_their_own(shop: Callable[..., Captured]) -> None:
    captured = shop()
    with psycopg.connect(captured.database) as connection:
        send(connection, message("order-1"), message("payment-1", topic="pay_ments-2"))

    assert [b"order-1"] == [record.key for record in received(captured, 1)]
    assert [b"payment-1"] == [record.key for record in received(captured, 1, "pay_ments-2")]
    gone = source.remove(captured.spec, with_topics=True)
    assert f"topic {captured.spec.outbox_prefix}pay_ments-2" in gone


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": "with.dot"},
        {"topic": ""},
        {"topic": "søster"},
        {"payload": ""},
        {"payload": "x" * (1 << 20) + "x"},
    ],
    ids=["dot", "no topic", "not ascii", "no payload", "too large"],
)
def test_what_would_stop_the_capture_is_refused_at_once(
    store_dsn: str, wrong: dict[str, str]
) -> None:
    with psycopg.connect(store_dsn) as connection, pytest.raises(errors.CheckViolation):
        send(connection, message("order-1", **wrong))


@pytest.mark.parametrize(
    "statement", ["UPDATE eventstore.outbox SET type = 'x'", "TRUNCATE eventstore.outbox"]
)
def test_a_message_is_neither_changed_nor_truncated(store_dsn: str, statement: str) -> None:
    with psycopg.connect(store_dsn) as connection, pytest.raises(psycopg.Error) as refused:
        connection.execute(statement.encode())

    assert "HWE01" == refused.value.sqlstate


def test_an_outbox_is_added_to_a_running_capture_without_a_new_epoch(
    store_dsn: str, capture: Callable[..., Captured]
) -> None:
    with psycopg.connect(store_dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE notes (id int PRIMARY KEY, word text)")
        captured = capture("public.notes", dsn=store_dsn)
        captured.execute("INSERT INTO notes VALUES (1, 'before')")
        send(connection, message("order-1", '"before"'))
        captured.records("notes")
        with_outbox = replace(captured, spec=replace(captured.spec, outbox=OUTBOX))

        changes = source.apply(with_outbox.spec)
        send(connection, message("order-1", '"after"'))

    assert f"changed connector {captured.spec.connector}" in changes
    assert [b'"after"'] == [record.value for record in received(with_outbox, 1)]
    source.remove(with_outbox.spec, with_topics=True)


def test_what_is_sent_while_capture_rests_arrives_when_it_goes_on(
    shop: Callable[..., Captured],
) -> None:
    captured = shop()
    with psycopg.connect(captured.database, autocommit=True) as connection:
        send(connection, message("order-1", "1"))
        received(captured, 1)
        source.pause(captured.spec)
        send(connection, message("order-1", "2"))
        source.resume(captured.spec)
        send(connection, message("order-1", "3"))

    values = [record.value for record in received(captured, 3)]

    assert [b"1", b"2", b"3"] == sorted(set(values))
    assert values == sorted(values)


def test_connect_makes_no_other_topic_than_those_of_messages(
    shop: Callable[..., Captured],
) -> None:
    captured = shop(guarded=False)  # which would stop the connector first
    captured.execute("INSERT INTO notes VALUES (1, 'note')")
    captured.records("notes")
    source.pause(captured.spec)
    lost = captured.spec.table_topics[TableName("public", "notes")]
    topics.delete(captured.spec.kafka_bootstrap, [lost])
    captured.execute(
        "INSERT INTO notes VALUES (2, 'note')",
        # as if nobody looked before a connector streams
        "CREATE OR REPLACE FUNCTION headwater.may_stream(capture text) RETURNS boolean"
        " LANGUAGE sql AS 'SELECT true'",
    )

    with closing(ConnectRest(captured.spec.connect_url)) as rest:
        rest.resume(captured.spec.connector)
    failure = wait_until(lambda: source.status(captured.spec).failure, "word of the lost topic")

    assert "32767" in failure
    assert lost not in topics.names(captured.spec.kafka_bootstrap)
