"""Alerts over real tables, a real database, a receiver that fails, and a broker."""

from __future__ import annotations

import json
import threading
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from structlog.testing import capture_logs

from cdc.broker.client.admin import consumer
from cdc.postgres import own_schema
from projections.alerting import channels as alerting_channels
from projections.alerting import evaluator, watcher
from projections.alerting import tables as alerting_tables
from projections.alerting.channels import Post
from projections.alerting.dispatcher import Messenger
from projections.alerting.signature import verify
from projections.alerting.watcher import AlertSpec, Lookout, begin
from projections.definition.alert import Alert, Event, Handler, Message, Recent, Topic, Webhook
from projections.errors import AlertConditionError
from projections.publishing.published_versions import Published
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SOURCE, SECRET = "shop", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
AT_ONCE = timedelta(0)
Connection = psycopg.Connection[Any]
_WAITS = (
    "SELECT count(*) FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database"
    " WHERE l.locktype = 'advisory' AND NOT l.granted AND d.datname = current_database()"
)


class Receiver(ThreadingHTTPServer):
    """What a user runs: it takes messages, once each, if it is well."""

    def __init__(self) -> None:
        self.taken: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.status = 204
        super().__init__(("127.0.0.1", 0), _Receiving)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/alerts"

    def told(self) -> list[tuple[str, str]]:
        return [(each["event"], each["key"]["id"]) for each in self.taken]


class _Receiving(BaseHTTPRequestHandler):
    def do_POST(self) -> None:  # the library's name
        body = self.rfile.read(int(self.headers["Content-Length"]))
        receiver: Any = self.server
        message_id = verify(dict(self.headers), body, SECRET)
        receiver.asked.append(message_id)
        assert message_id == self.headers["Idempotency-Key"]
        if receiver.status == 204:
            receiver.taken.append(json.loads(body))
        self.send_response(receiver.status)
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


COLUMNS = {"id": pa.int64(), "amount": pa.int64(), "due_at": pa.timestamp("us", "UTC")}


class View:
    """A view's table, published at one boundary after the other."""

    def __init__(self, tables: Path) -> None:
        self.tables = tables
        self.more: dict[str, pa.DataType] = {}
        self._lsn = 0

    def publish(self, *rows: Mapping[str, Any]) -> None:
        """Publishes the view with these rows and no others."""
        schema = pa.schema(list((COLUMNS | self.more).items()))
        made = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
        place = str(self.tables / "payments")
        write_deltalake(place, made, mode="overwrite")
        self._lsn += 16
        version = DeltaTable(place).version()
        Published(self.tables, SOURCE).publish(1, self._lsn, {"payments": version})


@pytest.fixture
def view(tmp_path: Path) -> View:
    return View(tmp_path / "tables")


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    with psycopg.connect(database, autocommit=True) as found:
        own_schema.ensure(found)
        yield found


@pytest.fixture
def spec(view: View, database: str, receiver: Receiver) -> AlertSpec:
    large = Alert(
        "large", "payments", "amount > 100", AT_ONCE, AT_ONCE, (Webhook(receiver.url, "fraud"),)
    )
    secrets = {"fraud": SECRET}
    keys = {"payments": ("id",)}
    tables = view.tables
    return AlertSpec(SOURCE, database, tables, "127.0.0.1:1", (large,), lambda: keys, secrets)


def of(spec: AlertSpec, **said: Any) -> AlertSpec:
    """The same, with one alert that is otherwise."""
    return replace(spec, alerts=(replace(spec.alerts[0], **said),))


def looked(spec: AlertSpec, connection: Connection) -> None:
    """One look by a process that knows nothing but what was noted."""
    Lookout(spec, threading.Event()).look(connection)


def asked(view: View, spec: AlertSpec, *key: str) -> None:
    evaluator.met(view.tables, SOURCE, spec.alerts[0], key or ("id",), datetime.now(UTC))


@contextmanager
def messenger(spec: AlertSpec) -> Iterator[tuple[Messenger, Post]]:
    with (
        closing(Post(spec.bootstrap, spec.secrets)) as post,
        closing(Messenger(spec.source, spec.alerts, post, threading.Event())) as found,
    ):
        yield found, post


def brought(spec: AlertSpec, connection: Connection) -> None:
    with messenger(spec) as (messages, _):
        while messages.tell(connection) or messages.busy:
            pass


def test_a_row_is_told_once_and_once_that_it_has_recovered(
    spec: AlertSpec, view: View, connection: Connection, receiver: Receiver
) -> None:
    looked(spec, connection)  # there is no table yet, and nobody fails
    view.publish({"id": 1, "amount": 50}, {"id": 2, "amount": 500})
    for _ in range(3):
        looked(spec, connection)
        brought(spec, connection)
    assert [("opened", 2)] == receiver.told()
    (message,) = receiver.taken
    assert {"id": 2, "amount": 500, "due_at": None} == message["row"]
    assert ("large", "payments", "0/10") == tuple(
        message[name] for name in ("alert", "view", "position")
    )

    view.publish({"id": 1, "amount": 101})  # one is gone, another one comes
    for _ in range(2):
        looked(spec, connection)
        brought(spec, connection)
    assert [("opened", 1), ("opened", 2), ("recovered", 2)] == sorted(receiver.told())
    assert len(receiver.taken) == len({each["id"] for each in receiver.taken})

    view.publish({"id": 1, "amount": 101}, {"id": 2, "amount": 101})  # it is another episode
    looked(spec, connection)
    brought(spec, connection)
    assert 4 == len({each["id"] for each in receiver.taken})
    assert ["1", "2"] == [each.key for each in alerting_tables.standing(connection, SOURCE)]


def test_a_row_is_told_whatever_its_columns_are(
    spec: AlertSpec, view: View, connection: Connection, receiver: Receiver
) -> None:
    part = pa.struct([("name", pa.string()), ("price", pa.decimal128(12, 2))])
    view.more = {
        "name": pa.string(),
        "seal": pa.binary(),
        "day": pa.date32(),
        "open": pa.bool_(),
        "weight": pa.float64(),
        "parts": pa.list_(part),
        "first": part,
    }
    told = {"name": "Lämpchen 藍", "open": True, "weight": 0.5, "day": date(2026, 2, 28)}
    dear = {"name": "shade", "price": Decimal("1.50")}
    row = {"id": 2, "amount": 500, "seal": b"\x00\x01", "parts": [dear, None], "first": dear}
    view.publish({"id": 1, "amount": 5}, row | told, {"id": 3, "amount": 500})
    looked(spec, connection)
    brought(spec, connection)

    assert [("opened", 2), ("opened", 3)] == sorted(receiver.told())
    seen = {message["row"]["id"]: message["row"] for message in receiver.taken}
    shown = dear | {"price": "1.50"}
    assert seen[2] == {
        **told,
        "id": 2,
        "amount": 500,
        "due_at": None,
        "day": "2026-02-28",
        "seal": "AAE=",
        "parts": [shown, None],
        "first": shown,
    }
    assert seen[3] == {"id": 3, "amount": 500, "due_at": None} | dict.fromkeys(view.more)


def test_what_nobody_takes_is_sent_again_in_order_under_the_same_id(
    spec: AlertSpec, view: View, connection: Connection, receiver: Receiver
) -> None:
    got: list[Message] = []
    channels = (*spec.alerts[0].to, Handler(got.append))
    spec = of(spec, to=channels)
    receiver.status = 307  # and nobody is sent elsewhere
    view.publish({"id": 2, "amount": 500})
    looked(spec, connection)
    brought(spec, connection)
    view.publish()
    looked(spec, connection)
    brought(spec, connection)
    assert [] == receiver.taken
    assert {"shop.large.1.opened"} == set(receiver.asked)  # what follows it waits behind it
    assert [Event.OPENED, Event.RECOVERED] == [each.event for each in got]
    assert [{"id": 2}, {"id": 2}] == [each.key for each in got]
    (waits,) = alerting_tables.waiting(connection, SOURCE)
    assert (2, "HTTP 307") == (waits.messages, waits.code)

    receiver.status = 204
    connection.execute("UPDATE headwater.alert_messages SET next_at = clock_timestamp()")
    brought(spec, connection)
    assert [("opened", 2), ("recovered", 2)] == receiver.told()
    assert [] == alerting_tables.waiting(connection, SOURCE)


def test_a_messenger_that_is_killed_after_it_has_sent_sends_the_same_again(
    spec: AlertSpec, view: View, connection: Connection, receiver: Receiver
) -> None:
    view.publish({"id": 2, "amount": 500})
    looked(spec, connection)
    with messenger(spec) as (_, post):
        for _ in range(2):  # it has no time column to note that it was taken
            (letter,) = alerting_tables.due(connection, SOURCE, [spec.alerts[0].to[0].name])
            post.bring(spec.alerts[0].to[0], letter)
    brought(spec, connection)
    assert 3 == len(receiver.taken)
    assert 1 == len({each["id"] for each in receiver.taken})


def test_what_is_noted_is_noted_with_the_messages_that_tell_it(
    spec: AlertSpec, view: View, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    view.publish({"id": 2, "amount": 500}, {"id": 3, "amount": 500})
    noted: list[int] = []
    note = alerting_tables.AlertRecorder.note

    def killed_at_the_second(self: alerting_tables.AlertRecorder, *given: Any) -> None:
        note(self, *given)
        noted.append(1)
        if len(noted) == 2:
            raise SystemExit

    monkeypatch.setattr(alerting_tables.AlertRecorder, "note", killed_at_the_second)
    with pytest.raises(SystemExit):
        looked(spec, connection)
    assert [] == list(alerting_tables.standing(connection, SOURCE))
    assert [] == alerting_tables.waiting(connection, SOURCE)
    looked(spec, connection)
    assert 2 == len(list(alerting_tables.standing(connection, SOURCE)))


def test_what_waits_can_be_told_without_its_row(
    spec: AlertSpec, view: View, connection: Connection, receiver: Receiver
) -> None:
    view.publish({"id": 1, "amount": 500}, {"id": 2, "amount": 500})
    looked(spec, connection)
    assert [2, 0] == [alerting_tables.withhold(connection, SOURCE) for _ in range(2)]
    view.publish({"id": 2, "amount": 501})
    looked(spec, connection)
    brought(spec, connection)
    assert {("opened", 1), ("opened", 2), ("recovered", 1)} == set(receiver.told())
    assert [None] * 3 == [each["row"] for each in receiver.taken]


def test_whoever_looks_is_waited_for_before_rows_are_withheld(
    spec: AlertSpec, view: View, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    view.publish({"id": 1, "amount": 500})
    withheld: list[int] = []

    def asks() -> None:
        with psycopg.connect(spec.dsn, autocommit=True) as other:
            withheld.append(alerting_tables.withhold(other, SOURCE))

    asking = threading.Thread(target=asks)
    known = alerting_tables.known

    def asked_now(*given: Any) -> Any:
        asking.start()
        wait_until(lambda: connection.execute(_WAITS).fetchone() == (1,), timeout_s=30)
        return known(*given)

    monkeypatch.setattr(alerting_tables, "known", asked_now)
    looked(spec, connection)
    asking.join(30)
    assert [1] == withheld


def test_a_condition_may_ask_for_the_time_and_hold_before_it_is_told(
    spec: AlertSpec, view: View, connection: Connection, receiver: Receiver
) -> None:
    now = alerting_tables.now(connection)
    late, soon = now - timedelta(seconds=1), now + timedelta(hours=1)
    view.publish({"id": 1, "due_at": late}, {"id": 2, "due_at": soon})
    spec = of(spec, where="due_at < now()", hold=timedelta(hours=1))
    looked(spec, connection)
    assert [("1", "pending")] == [
        (s.key, s.state) for s in alerting_tables.standing(connection, SOURCE)
    ]
    connection.execute("UPDATE headwater.alert_episodes SET since = since - interval '1 hour'")
    looked(spec, connection)
    brought(spec, connection)
    assert [("opened", 1)] == receiver.told()


def test_rows_that_only_grow_are_told_as_they_come_however_many_stand(
    spec: AlertSpec, view: View, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "OPENED_MAX", 2)
    rows = [{"id": n, "amount": 500} for n in range(9)]
    for count in (2, 4, 6):
        view.publish(*rows[:count])
        looked(spec, connection)
        assert count == len(list(alerting_tables.standing(connection, SOURCE)))
    view.publish(*rows)  # three at once are too many, and nobody is told of two of them
    looked(spec, connection)
    assert 6 == len(list(alerting_tables.standing(connection, SOURCE)))
    codes = [each.code for each in alerting_tables.waiting(connection, SOURCE)]
    assert any("more than 2 rows at once" in (code or "") for code in codes)
    view.publish(*rows[1:8])
    looked(spec, connection)
    assert 7 == len(list(alerting_tables.standing(connection, SOURCE)))
    assert 9 == sum(
        each.messages for each in alerting_tables.waiting(connection, SOURCE)
    )  # 8 and 1


def test_a_row_that_is_recent_no_more_is_forgotten_without_a_word(
    spec: AlertSpec, view: View, connection: Connection, receiver: Receiver
) -> None:
    now = alerting_tables.now(connection)
    spec = of(spec, where="amount > 100 OR amount = 50", recent=Recent("due_at", "1 hour"))

    def row(number: int, ago: timedelta | None) -> dict[str, Any]:
        due_at = None if ago is None else now - ago
        return {"id": number, "amount": 500, "due_at": due_at}

    minute = timedelta(minutes=1)
    rows = [row(1, minute), row(2, minute), row(3, timedelta(hours=1)), row(4, None)]
    view.publish(*rows)
    looked(spec, connection)
    brought(spec, connection)
    assert [("opened", 1), ("opened", 2)] == sorted(receiver.told())

    view.publish(row(1, minute / 2), *rows[1:])  # its time has moved on
    looked(spec, connection)
    untils = "SELECT until FROM headwater.alert_episodes ORDER BY key"
    hour = timedelta(hours=1)
    assert [(now - minute / 2 + hour,), (now - minute + hour,)] == connection.execute(
        untils
    ).fetchall()

    # one is too old when it is looked at next, the other one was taken back before it was
    connection.execute("UPDATE headwater.alert_episodes SET until = now() WHERE key = '1'")
    view.publish(row(1, timedelta(hours=2)), *rows[2:])
    looked(spec, connection)
    brought(spec, connection)
    assert [("recovered", 2)] == receiver.told()[2:]
    assert [] == list(alerting_tables.standing(connection, SOURCE))


def test_a_ledger_of_before_rows_could_be_recent_is_brought_up_to_date(
    spec: AlertSpec, view: View, connection: Connection
) -> None:
    view.publish({"id": 1, "amount": 500})
    looked(spec, connection)
    connection.execute("ALTER TABLE headwater.alert_episodes DROP until")
    connection.execute("DROP TABLE headwater.migrations")  # which it had not, either
    assert own_schema.exists(connection)  # who only asks what is captured finds it
    assert ["added to schema headwater"] == own_schema.ensure(connection)
    looked(spec, connection)
    assert ["1"] == [each.key for each in alerting_tables.standing(connection, SOURCE)]
    assert [] == own_schema.ensure(connection)


def test_a_channel_that_never_comes_back_keeps_no_other_one_waiting(
    spec: AlertSpec, view: View, connection: Connection, receiver: Receiver
) -> None:
    let_go, got = threading.Event(), list[Message]()

    def hangs(message: Message) -> None:
        assert let_go.wait(60)
        got.append(message)

    def leaves(_: Message) -> None:
        raise SystemExit

    spec = of(spec, to=(Handler(hangs), Handler(leaves), *spec.alerts[0].to))
    view.publish(*({"id": n, "amount": 500} for n in range(3)))
    looked(spec, connection)
    with messenger(spec) as (messages, _):

        def told() -> int:
            messages.tell(connection)
            return len(receiver.taken)

        wait_until(told, "three messages", accept=lambda count: count == 3, pause_s=0.01)
        assert ([], True) == (got, messages.busy)
        let_go.set()

        def idle() -> bool:
            messages.tell(connection)
            return not messages.busy

        wait_until(idle, "messages that rest", pause_s=0.01)
    assert 3 == len(got)
    (waits,) = alerting_tables.waiting(connection, SOURCE)
    assert (3, "SystemExit") == (waits.messages, waits.code)


def test_what_is_due_of_an_alert_that_cannot_be_looked_at_makes_nobody_look(
    spec: AlertSpec, view: View, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    view.publish({"id": 1, "amount": 500})
    lookout = Lookout(of(spec, hold=timedelta(hours=1)), threading.Event())
    lookout.look(connection)
    assert 1 == len(lookout._due)
    monkeypatch.setattr(evaluator, "ROWS_MAX", 0)
    lookout.look(connection)
    assert {} == lookout._due


def test_a_condition_that_cannot_be_asked_recovers_nothing(
    spec: AlertSpec, view: View, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    view.publish({"id": 1, "amount": 500}, {"id": 2, "amount": 500})
    looked(spec, connection)
    for wrong, said in (("amonut > 1", "cannot be evaluated"), ("amount >", "cannot be evaluated")):
        with pytest.raises(AlertConditionError, match=said):
            asked(view, of(spec, where=wrong))
        looked(of(spec, where=wrong), connection)
    with pytest.raises(AlertConditionError, match="lacks columns of its key"):
        asked(view, spec, "id", "gone")
    with pytest.raises(AlertConditionError, match="several rows"):
        asked(view, spec, "amount")
    for column in ("amount", "gone"):
        with pytest.raises(AlertConditionError, match="has no time column") as told:
            asked(view, of(spec, recent=Recent(column, "1 hour")))
        assert "due_at" == told.value.detail
    monkeypatch.setattr(evaluator, "ROWS_MAX", 1)
    with pytest.raises(AlertConditionError, match="more than 1 rows"):
        asked(view, spec)
    looked(spec, connection)
    assert 2 == len(list(alerting_tables.standing(connection, SOURCE)))


def test_an_alert_that_cannot_be_looked_at_keeps_no_other_waiting(
    spec: AlertSpec, view: View, connection: Connection
) -> None:
    first = spec.alerts[0]
    alerts = (replace(first, name="wrong", where="amonut > 1"), first)
    spec = replace(spec, alerts=(replace(first, name="absurd", where="id = 1"), *alerts))
    year_10000_us = 253_402_300_800_000_000
    view.publish({"id": 1, "amount": 5, "due_at": year_10000_us}, {"id": 2, "amount": 500})
    lookout = Lookout(spec, threading.Event())
    with capture_logs() as logs:
        for _ in range(3):
            lookout.look(connection)

    assert ["absurd", "wrong"] == [each["alert"] for each in logs if "why" in each]
    assert [("large", "2")] == [
        (e.alert, e.key) for e in alerting_tables.standing(connection, SOURCE)
    ]
    waiting = {
        each.alert: (each.messages, each.code)
        for each in alerting_tables.waiting(connection, SOURCE)
        if each.channel == alerting_tables.CONDITION
    }
    assert {"absurd", "wrong"} == waiting.keys()
    messages, why = waiting["absurd"]
    assert (0, "HW-P146: a row that meets the condition of alert absurd cannot be serialised") == (
        messages,
        why,
    )
    alerting_tables.retire(connection, SOURCE, spec.alerts)
    brought(spec, connection)  # and nobody is sent it
    assert alerting_tables.CONDITION in {
        each.channel for each in alerting_tables.waiting(connection, SOURCE)
    }
    view.publish({"id": 1, "amount": 5}, {"id": 2, "amount": 500})
    looked(replace(spec, alerts=(spec.alerts[0],)), connection)
    left = {
        e.alert
        for e in alerting_tables.waiting(connection, SOURCE)
        if e.channel == alerting_tables.CONDITION
    }
    assert {"wrong"} == left


def test_what_is_declared_no_more_is_forgotten(
    spec: AlertSpec, view: View, connection: Connection
) -> None:
    view.publish({"id": 1, "amount": 500})
    looked(spec, connection)
    alerting_tables.retire(connection, SOURCE, spec.alerts)
    assert 1 == len(alerting_tables.waiting(connection, SOURCE))
    alerting_tables.retire(connection, SOURCE, [replace(spec.alerts[0], to=(Topic("t"),))])
    assert [] == alerting_tables.waiting(connection, SOURCE)
    assert 1 == len(list(alerting_tables.standing(connection, SOURCE)))
    alerting_tables.retire(connection, SOURCE, [])
    assert [] == list(alerting_tables.standing(connection, SOURCE))


def test_alerts_go_on_by_themselves_and_one_process_looks_at_a_time(
    spec: AlertSpec, view: View, connection: Connection, receiver: Receiver
) -> None:
    stop = threading.Event()
    threads = [*begin(spec, stop), *begin(spec, stop)]
    try:
        view.publish({"id": 1, "amount": 500})
        wait_until(lambda: len(receiver.taken) == 1, timeout_s=30)
        view.publish({"id": 1, "amount": 5})
        wait_until(lambda: len(receiver.taken) == 2, timeout_s=30)
        with psycopg.connect(spec.dsn, autocommit=True) as other:
            assert not alerting_tables.alone(other, SOURCE, alerting_tables.LOOKING)
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert [("opened", 1), ("recovered", 1)] == receiver.told()
    assert not any(thread.is_alive() for thread in threads)


def test_a_topic_has_each_message_under_the_alert_and_its_row(
    spec: AlertSpec, view: View, connection: Connection, kafka_bootstrap: str
) -> None:
    topic = f"alerts-{spec.dsn.rpartition('/')[2]}"
    spec = replace(of(spec, to=(Topic(topic),)), bootstrap=kafka_bootstrap)
    view.publish({"id": 1, "amount": 500})
    looked(spec, connection)
    brought(spec, connection)
    with consumer(kafka_bootstrap) as client:
        client.subscribe([topic])
        found: list[Any] = []

        def polled() -> bool:
            found.extend(r for records in client.poll(500).values() for r in records)
            return bool(found)

        wait_until(polled, timeout_s=60)
    (record,) = found
    assert b"large:1" == record.key
    assert ("opened", {"id": 1}) == tuple(json.loads(record.value)[n] for n in ("event", "key"))
    assert [("id", b"shop.large.1.opened")] == list(record.headers)


def test_a_trial_tells_which_channel_does_not_take_it(
    spec: AlertSpec, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("projections.alerting.channels.TIMEOUT_S", 1.0)

    def refuses(message: Message) -> None:
        raise KeyError(message.alert)

    gone = Webhook("http://127.0.0.1:1/nobody", "fraud")
    unsigned = Webhook(f"{receiver.url}?unsigned", "other")
    alert = replace(spec.alerts[0], to=(*spec.alerts[0].to, gone, unsigned, Handler(refuses)))
    with closing(Post(spec.bootstrap, spec.secrets)) as post:
        tried = alerting_channels.run(post, SOURCE, alert)
    assert [None, "NewConnectionError", "no secret", "KeyError"] == [each.why for each in tried]
    assert ["test"] == [each["event"] for each in receiver.taken]
