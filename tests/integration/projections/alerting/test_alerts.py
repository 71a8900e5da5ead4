"""Alerts over real tables, a real database, a receiver that fails, and a broker."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from cdc.postgres import own_schema
from projections.alerting import evaluator, watcher
from projections.alerting import tables as alerting_tables
from projections.alerting.watcher import AlertSpec, AlertWatcher, begin
from projections.definition.alert import Recent, Topic
from projections.errors import AlertConditionError
from tests.fix_alerts import (
    SOURCE,
    Connection,
    Receiver,
    View,
    brought,
    looked,
    of,
)
from tests.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def asked(alert_view: View, alert_spec: AlertSpec, *key: str) -> None:
    evaluator.matching_rows(
        alert_view.tables, SOURCE, alert_spec.alerts[0], key or ("id",), datetime.now(UTC)
    )


def test_a_row_is_told_once_and_once_that_it_has_recovered(
    alert_spec: AlertSpec, alert_view: View, alert_connection: Connection, alert_receiver: Receiver
) -> None:
    looked(alert_spec, alert_connection)  # there is no table yet, and nothing fails
    alert_view.publish({"id": 1, "amount": 50}, {"id": 2, "amount": 500})
    for _ in range(3):
        looked(alert_spec, alert_connection)
        brought(alert_spec, alert_connection)
    assert [("opened", 2)] == alert_receiver.told()
    (message,) = alert_receiver.taken
    assert {"id": 2, "amount": 500, "due_at": None} == message["row"]
    assert ("large", "payments", "0/10") == tuple(
        message[name] for name in ("alert", "view", "position")
    )

    alert_view.publish({"id": 1, "amount": 101})  # one is gone, another one comes
    for _ in range(2):
        looked(alert_spec, alert_connection)
        brought(alert_spec, alert_connection)
    assert [("opened", 1), ("opened", 2), ("recovered", 2)] == sorted(alert_receiver.told())
    assert len(alert_receiver.taken) == len({each["id"] for each in alert_receiver.taken})

    alert_view.publish({"id": 1, "amount": 101}, {"id": 2, "amount": 101})  # it is another episode
    looked(alert_spec, alert_connection)
    brought(alert_spec, alert_connection)
    assert 4 == len({each["id"] for each in alert_receiver.taken})
    assert ["1", "2"] == [each.key for each in alerting_tables.row_states(alert_connection, SOURCE)]


def test_a_row_is_told_whatever_its_columns_are(
    alert_spec: AlertSpec, alert_view: View, alert_connection: Connection, alert_receiver: Receiver
) -> None:
    part = pa.struct([("name", pa.string()), ("price", pa.decimal128(12, 2))])
    alert_view.more = {
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
    alert_view.publish({"id": 1, "amount": 5}, row | told, {"id": 3, "amount": 500})
    looked(alert_spec, alert_connection)
    brought(alert_spec, alert_connection)

    assert [("opened", 2), ("opened", 3)] == sorted(alert_receiver.told())
    seen = {message["row"]["id"]: message["row"] for message in alert_receiver.taken}
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
    assert seen[3] == {"id": 3, "amount": 500, "due_at": None} | dict.fromkeys(alert_view.more)


def test_floats_that_json_does_not_have_are_told_apart_and_as_text(
    alert_spec: AlertSpec, alert_view: View
) -> None:
    weights = (float("nan"), float("inf"), float("-inf"), None, 0.5)
    texts = {"NaN": "NaN", "Infinity": "Infinity", "-Infinity": "-Infinity", r"\N": None}
    alert_view.more = {"weight": pa.float64(), "weights": pa.list_(pa.float64())}
    rows = [{"amount": 500, "weight": each, "weights": [each, 1]} for each in weights]
    alert_view.publish(*rows)

    key, now = ("weight",), datetime.now(UTC)
    found = evaluator.matching_rows(alert_view.tables, SOURCE, alert_spec.alerts[0], key, now)

    assert found is not None
    told = {name: row["weights"][0] for name, row in found.rows(found.until.keys()).items()}
    assert texts | {"0.5": 0.5} == told


def test_a_condition_may_ask_for_the_time_and_hold_before_it_is_told(
    alert_spec: AlertSpec, alert_view: View, alert_connection: Connection, alert_receiver: Receiver
) -> None:
    now = alerting_tables.now(alert_connection)
    late, soon = now - timedelta(seconds=1), now + timedelta(hours=1)
    alert_view.publish({"id": 1, "due_at": late}, {"id": 2, "due_at": soon})
    alert_spec = of(alert_spec, where="due_at < now()", hold=timedelta(hours=1))
    looked(alert_spec, alert_connection)
    assert [("1", "pending")] == [
        (s.key, s.state) for s in alerting_tables.row_states(alert_connection, SOURCE)
    ]
    alert_connection.execute(
        "UPDATE headwater.alert_episodes SET since = since - interval '1 hour'"
    )
    looked(alert_spec, alert_connection)
    brought(alert_spec, alert_connection)
    assert [("opened", 1)] == alert_receiver.told()


def test_rows_that_only_grow_are_told_as_they_come_however_many_stand(
    alert_spec: AlertSpec,
    alert_view: View,
    alert_connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watcher, "OPENED_MAX", 2)
    rows = [{"id": n, "amount": 500} for n in range(9)]
    for count in (2, 4, 6):
        alert_view.publish(*rows[:count])
        looked(alert_spec, alert_connection)
        assert count == len(list(alerting_tables.row_states(alert_connection, SOURCE)))
    alert_view.publish(*rows)  # three at once are too many: two are not reported
    looked(alert_spec, alert_connection)
    assert 6 == len(list(alerting_tables.row_states(alert_connection, SOURCE)))
    codes = [each.code for each in alerting_tables.pending_messages(alert_connection, SOURCE)]
    assert any("more than 2 rows at once" in (code or "") for code in codes)
    alert_view.publish(*rows[1:8])
    looked(alert_spec, alert_connection)
    assert 7 == len(list(alerting_tables.row_states(alert_connection, SOURCE)))
    assert 9 == sum(
        each.messages for each in alerting_tables.pending_messages(alert_connection, SOURCE)
    )  # 8 and 1


def test_a_row_that_is_recent_no_more_is_forgotten_without_a_word(
    alert_spec: AlertSpec, alert_view: View, alert_connection: Connection, alert_receiver: Receiver
) -> None:
    now = alerting_tables.now(alert_connection)
    alert_spec = of(
        alert_spec, where="amount > 100 OR amount = 50", recent=Recent("due_at", "1 hour")
    )

    def row(number: int, ago: timedelta | None) -> dict[str, Any]:
        due_at = None if ago is None else now - ago
        return {"id": number, "amount": 500, "due_at": due_at}

    minute = timedelta(minutes=1)
    rows = [row(1, minute), row(2, minute), row(3, timedelta(hours=1)), row(4, None)]
    alert_view.publish(*rows)
    looked(alert_spec, alert_connection)
    brought(alert_spec, alert_connection)
    assert [("opened", 1), ("opened", 2)] == sorted(alert_receiver.told())

    alert_view.publish(row(1, minute / 2), *rows[1:])  # its time has moved on
    looked(alert_spec, alert_connection)
    untils = "SELECT until FROM headwater.alert_episodes ORDER BY key"
    hour = timedelta(hours=1)
    assert [(now - minute / 2 + hour,), (now - minute + hour,)] == alert_connection.execute(
        untils
    ).fetchall()

    # one is too old when it is looked at next, the other one was taken back before it was
    alert_connection.execute("UPDATE headwater.alert_episodes SET until = now() WHERE key = '1'")
    alert_view.publish(row(1, timedelta(hours=2)), *rows[2:])
    looked(alert_spec, alert_connection)
    brought(alert_spec, alert_connection)
    assert [("recovered", 2)] == alert_receiver.told()[2:]
    assert [] == list(alerting_tables.row_states(alert_connection, SOURCE))


def test_a_ledger_of_before_rows_could_be_recent_is_brought_up_to_date(
    alert_spec: AlertSpec, alert_view: View, alert_connection: Connection
) -> None:
    alert_view.publish({"id": 1, "amount": 500})
    looked(alert_spec, alert_connection)
    alert_connection.execute("ALTER TABLE headwater.alert_episodes DROP until")
    alert_connection.execute("DROP TABLE headwater.migrations")  # which it had not, either
    assert own_schema.exists(alert_connection)  # who only asks what is captured finds it
    assert ["added to schema headwater"] == own_schema.ensure(alert_connection)
    looked(alert_spec, alert_connection)
    assert ["1"] == [each.key for each in alerting_tables.row_states(alert_connection, SOURCE)]
    assert [] == own_schema.ensure(alert_connection)


def test_what_is_due_of_an_alert_that_cannot_be_looked_at_makes_nobody_look(
    alert_spec: AlertSpec,
    alert_view: View,
    alert_connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alert_view.publish({"id": 1, "amount": 500})
    lookout = AlertWatcher(of(alert_spec, hold=timedelta(hours=1)), threading.Event())
    lookout.evaluate(alert_connection)
    assert 1 == len(lookout._due)
    monkeypatch.setattr(evaluator, "ROWS_MAX", 0)
    lookout.evaluate(alert_connection)
    assert {} == lookout._due


def test_a_comment_ends_only_the_condition(
    alert_spec: AlertSpec, alert_view: View, alert_connection: Connection
) -> None:
    due = datetime.now(UTC)
    alert_view.publish(
        {"id": 1, "amount": 500, "due_at": due},
        {"id": 2, "amount": 50, "due_at": due},
        {"id": 3, "amount": 500, "due_at": due - timedelta(days=1)},
    )
    commented = of(alert_spec, where="amount > 100 -- dear", recent=Recent("due_at", "1 hour"))
    asked(alert_view, commented)
    looked(commented, alert_connection)
    known = alerting_tables.row_states(alert_connection, SOURCE)
    assert ["1"] == [each.key for each in known]


@pytest.mark.parametrize(
    ("where", "detail"),
    [
        ("100 / (amount - amount) > 0", "a division by zero"),
        ("CAST('secret' || amount AS int) > 0", "a value that cannot be cast"),
    ],
)
def test_a_row_that_a_condition_does_not_allow_for_pauses_that_alert_alone(
    alert_spec: AlertSpec,
    alert_view: View,
    alert_connection: Connection,
    where: str,
    detail: str,
) -> None:
    alert_view.publish({"id": 1, "amount": 500})
    (right,) = alert_spec.alerts
    wrong = replace(right, name="wrong", where=where)

    looked(replace(alert_spec, alerts=(wrong, right)), alert_connection)

    known = alerting_tables.row_states(alert_connection, SOURCE)
    assert [right.name] == [each.alert for each in known]
    whys = {
        each.alert: each.code
        for each in alerting_tables.pending_messages(alert_connection, SOURCE)
        if each.channel == alerting_tables.CONDITION
    }
    said = f"HW-P146: the condition of alert wrong cannot be evaluated for a row: {detail}"
    assert {"wrong": said} == whys


def test_a_condition_is_evaluated_later_while_the_table_is_replaced(
    alert_spec: AlertSpec, alert_view: View, alert_connection: Connection
) -> None:
    alert_view.publish({"id": 1, "amount": 500})
    for file in alert_view.tables.rglob("*.parquet"):
        file.unlink()

    found = evaluator.matching_rows(
        alert_view.tables, SOURCE, alert_spec.alerts[0], ("id",), datetime.now(UTC)
    )
    assert found is None


def test_a_condition_that_cannot_be_asked_recovers_nothing(
    alert_spec: AlertSpec,
    alert_view: View,
    alert_connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alert_view.publish({"id": 1, "amount": 500}, {"id": 2, "amount": 500})
    looked(alert_spec, alert_connection)
    for wrong, said in (("amonut > 1", "cannot be evaluated"), ("amount >", "cannot be evaluated")):
        with pytest.raises(AlertConditionError, match=said):
            asked(alert_view, of(alert_spec, where=wrong))
        looked(of(alert_spec, where=wrong), alert_connection)
    with pytest.raises(AlertConditionError, match="lacks columns of its key"):
        asked(alert_view, alert_spec, "id", "gone")
    with pytest.raises(AlertConditionError, match="several rows"):
        asked(alert_view, alert_spec, "amount")
    for column in ("amount", "gone"):
        with pytest.raises(AlertConditionError, match="has no time column") as told:
            asked(alert_view, of(alert_spec, recent=Recent(column, "1 hour")))
        assert "due_at" == told.value.detail
    monkeypatch.setattr(evaluator, "ROWS_MAX", 1)
    with pytest.raises(AlertConditionError, match="more than 1 rows"):
        asked(alert_view, alert_spec)
    looked(alert_spec, alert_connection)
    assert 2 == len(list(alerting_tables.row_states(alert_connection, SOURCE)))


def test_an_alert_that_cannot_be_looked_at_keeps_no_other_waiting(
    alert_spec: AlertSpec, alert_view: View, alert_connection: Connection
) -> None:
    first = alert_spec.alerts[0]
    alerts = (replace(first, name="wrong", where="amonut > 1"), first)
    alert_spec = replace(
        alert_spec, alerts=(replace(first, name="absurd", where="id = 1"), *alerts)
    )
    year_10000_us = 253_402_300_800_000_000
    alert_view.publish({"id": 1, "amount": 5, "due_at": year_10000_us}, {"id": 2, "amount": 500})
    lookout = AlertWatcher(alert_spec, threading.Event())
    with capture_logs() as logs:
        for _ in range(3):
            lookout.evaluate(alert_connection)

    assert ["absurd", "wrong"] == [each["alert"] for each in logs if "why" in each]
    assert [("large", "2")] == [
        (e.alert, e.key) for e in alerting_tables.row_states(alert_connection, SOURCE)
    ]
    waiting = {
        each.alert: (each.messages, each.code)
        for each in alerting_tables.pending_messages(alert_connection, SOURCE)
        if each.channel == alerting_tables.CONDITION
    }
    assert {"absurd", "wrong"} == waiting.keys()
    messages, why = waiting["absurd"]
    assert (0, "HW-P146: a row that meets the condition of alert absurd cannot be serialised") == (
        messages,
        why,
    )
    alerting_tables.retire(alert_connection, SOURCE, alert_spec.alerts)
    brought(alert_spec, alert_connection)  # and it is sent to no address
    assert alerting_tables.CONDITION in {
        each.channel for each in alerting_tables.pending_messages(alert_connection, SOURCE)
    }
    alert_view.publish({"id": 1, "amount": 5}, {"id": 2, "amount": 500})
    looked(replace(alert_spec, alerts=(alert_spec.alerts[0],)), alert_connection)
    left = {
        e.alert
        for e in alerting_tables.pending_messages(alert_connection, SOURCE)
        if e.channel == alerting_tables.CONDITION
    }
    assert {"wrong"} == left


def test_what_is_declared_no_more_is_forgotten(
    alert_spec: AlertSpec, alert_view: View, alert_connection: Connection
) -> None:
    alert_view.publish({"id": 1, "amount": 500})
    looked(alert_spec, alert_connection)
    alerting_tables.retire(alert_connection, SOURCE, alert_spec.alerts)
    assert 1 == len(alerting_tables.pending_messages(alert_connection, SOURCE))
    alerting_tables.retire(
        alert_connection, SOURCE, [replace(alert_spec.alerts[0], to=(Topic("t"),))]
    )
    assert [] == alerting_tables.pending_messages(alert_connection, SOURCE)
    assert 1 == len(list(alerting_tables.row_states(alert_connection, SOURCE)))
    alerting_tables.retire(alert_connection, SOURCE, [])
    assert [] == list(alerting_tables.row_states(alert_connection, SOURCE))


def test_alerts_go_on_by_themselves_and_one_process_looks_at_a_time(
    alert_spec: AlertSpec, alert_view: View, alert_connection: Connection, alert_receiver: Receiver
) -> None:
    stop = threading.Event()
    threads = [*begin(alert_spec, stop), *begin(alert_spec, stop)]
    try:
        alert_view.publish({"id": 1, "amount": 500})
        wait_until(lambda: len(alert_receiver.taken) == 1, timeout_s=30)
        alert_view.publish({"id": 1, "amount": 5})
        wait_until(lambda: len(alert_receiver.taken) == 2, timeout_s=30)
        with psycopg.connect(alert_spec.dsn, autocommit=True) as other:
            assert not alerting_tables.try_reserve(other, SOURCE, alerting_tables.EVALUATION_LOCK)
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert [("opened", 1), ("recovered", 1)] == alert_receiver.told()
    assert not any(thread.is_alive() for thread in threads)
