"""Messages of alerts: sent once, in order, again after a failure, to each channel by itself."""

from __future__ import annotations

import json
import threading
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc.broker.client.admin import consumer
from projections.alerting import channels as alerting_channels
from projections.alerting import tables as alerting_tables
from projections.alerting.channels import ChannelSender
from projections.definition.alert import Event, Handler, Message, Topic, Webhook
from tests.fix_alerts import (
    SOURCE,
    Connection,
    Receiver,
    View,
    brought,
    looked,
    messenger,
    of,
)
from tests.waiting import wait_until

if TYPE_CHECKING:
    from projections.alerting.watcher import AlertSpec

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


_WAITS = (
    "SELECT count(*) FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database"
    " WHERE l.locktype = 'advisory' AND NOT l.granted AND d.datname = current_database()"
)


def test_what_nobody_takes_is_sent_again_in_order_under_the_same_id(
    alert_spec: AlertSpec, alert_view: View, alert_connection: Connection, alert_receiver: Receiver
) -> None:
    got: list[Message] = []
    channels = (*alert_spec.alerts[0].to, Handler(got.append))
    alert_spec = of(alert_spec, to=channels)
    alert_receiver.status = 307  # and no request goes elsewhere
    alert_view.publish({"id": 2, "amount": 500})
    looked(alert_spec, alert_connection)
    brought(alert_spec, alert_connection)
    alert_view.publish()
    looked(alert_spec, alert_connection)
    brought(alert_spec, alert_connection)
    assert [] == alert_receiver.taken
    assert {"shop.large.1.opened"} == set(alert_receiver.asked)  # what follows it waits behind it
    assert [Event.OPENED, Event.RECOVERED] == [each.event for each in got]
    assert [{"id": 2}, {"id": 2}] == [each.key for each in got]
    (waits,) = alerting_tables.pending_messages(alert_connection, SOURCE)
    assert (2, "HTTP 307") == (waits.messages, waits.code)

    alert_receiver.status = 204
    alert_connection.execute("UPDATE headwater.alert_messages SET next_at = clock_timestamp()")
    brought(alert_spec, alert_connection)
    assert [("opened", 2), ("recovered", 2)] == alert_receiver.told()
    assert [] == alerting_tables.pending_messages(alert_connection, SOURCE)


def test_a_messenger_that_is_killed_after_it_has_sent_sends_the_same_again(
    alert_spec: AlertSpec, alert_view: View, alert_connection: Connection, alert_receiver: Receiver
) -> None:
    alert_view.publish({"id": 2, "amount": 500})
    looked(alert_spec, alert_connection)
    with messenger(alert_spec) as (_, post):
        for _ in range(2):  # it has no time column to note that it was taken
            (letter,) = alerting_tables.due(
                alert_connection, SOURCE, [alert_spec.alerts[0].to[0].name]
            )
            post.send(alert_spec.alerts[0].to[0], letter)
    brought(alert_spec, alert_connection)
    assert 3 == len(alert_receiver.taken)
    assert 1 == len({each["id"] for each in alert_receiver.taken})


def test_what_is_noted_is_noted_with_the_messages_that_tell_it(
    alert_spec: AlertSpec,
    alert_view: View,
    alert_connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alert_view.publish({"id": 2, "amount": 500}, {"id": 3, "amount": 500})
    noted: list[int] = []
    note = alerting_tables.AlertRecorder.note

    def killed_at_the_second(self: alerting_tables.AlertRecorder, *given: Any) -> None:
        note(self, *given)
        noted.append(1)
        if len(noted) == 2:
            raise SystemExit

    monkeypatch.setattr(alerting_tables.AlertRecorder, "note", killed_at_the_second)
    with pytest.raises(SystemExit):
        looked(alert_spec, alert_connection)
    assert [] == list(alerting_tables.row_states(alert_connection, SOURCE))
    assert [] == alerting_tables.pending_messages(alert_connection, SOURCE)
    looked(alert_spec, alert_connection)
    assert 2 == len(list(alerting_tables.row_states(alert_connection, SOURCE)))


def test_what_waits_can_be_told_without_its_row(
    alert_spec: AlertSpec, alert_view: View, alert_connection: Connection, alert_receiver: Receiver
) -> None:
    alert_view.publish({"id": 1, "amount": 500}, {"id": 2, "amount": 500})
    looked(alert_spec, alert_connection)
    assert [2, 0] == [alerting_tables.withhold(alert_connection, SOURCE) for _ in range(2)]
    alert_view.publish({"id": 2, "amount": 501})
    looked(alert_spec, alert_connection)
    brought(alert_spec, alert_connection)
    assert {("opened", 1), ("opened", 2), ("recovered", 1)} == set(alert_receiver.told())
    assert [None] * 3 == [each["row"] for each in alert_receiver.taken]


def test_whoever_looks_is_waited_for_before_rows_are_withheld(
    alert_spec: AlertSpec,
    alert_view: View,
    alert_connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alert_view.publish({"id": 1, "amount": 500})
    withheld: list[int] = []

    def asks() -> None:
        with psycopg.connect(alert_spec.dsn, autocommit=True) as other:
            withheld.append(alerting_tables.withhold(other, SOURCE))

    asking = threading.Thread(target=asks)
    known = alerting_tables.known

    def asked_now(*given: Any) -> Any:
        asking.start()
        wait_until(lambda: alert_connection.execute(_WAITS).fetchone() == (1,), timeout_s=30)
        return known(*given)

    monkeypatch.setattr(alerting_tables, "known", asked_now)
    looked(alert_spec, alert_connection)
    asking.join(30)
    assert [1] == withheld


def test_a_channel_that_never_comes_back_keeps_no_other_one_waiting(
    alert_spec: AlertSpec, alert_view: View, alert_connection: Connection, alert_receiver: Receiver
) -> None:
    let_go, got = threading.Event(), list[Message]()

    def hangs(message: Message) -> None:
        assert let_go.wait(60)
        got.append(message)

    def leaves(_: Message) -> None:
        raise SystemExit

    alert_spec = of(alert_spec, to=(Handler(hangs), Handler(leaves), *alert_spec.alerts[0].to))
    alert_view.publish(*({"id": n, "amount": 500} for n in range(3)))
    looked(alert_spec, alert_connection)
    with messenger(alert_spec) as (messages, _):

        def told() -> int:
            messages.dispatch(alert_connection)
            return len(alert_receiver.taken)

        wait_until(told, "three messages", accept=lambda count: count == 3, pause_s=0.01)
        assert ([], True) == (got, messages.busy)
        let_go.set()

        def idle() -> bool:
            messages.dispatch(alert_connection)
            return not messages.busy

        wait_until(idle, "messages that rest", pause_s=0.01)
    assert 3 == len(got)
    (waits,) = alerting_tables.pending_messages(alert_connection, SOURCE)
    assert (3, "SystemExit") == (waits.messages, waits.code)


def test_a_topic_has_each_message_under_the_alert_and_its_row(
    alert_spec: AlertSpec, alert_view: View, alert_connection: Connection, kafka_bootstrap: str
) -> None:
    topic = f"alerts-{alert_spec.dsn.rpartition('/')[2]}"
    alert_spec = replace(of(alert_spec, to=(Topic(topic),)), bootstrap=kafka_bootstrap)
    alert_view.publish({"id": 1, "amount": 500})
    looked(alert_spec, alert_connection)
    brought(alert_spec, alert_connection)
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
    alert_spec: AlertSpec, alert_receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("projections.alerting.channels.TIMEOUT_S", 1.0)

    def refuses(message: Message) -> None:
        raise KeyError(message.alert)

    gone = Webhook("http://127.0.0.1:1/nobody", "fraud")
    unsigned = Webhook(f"{alert_receiver.url}?unsigned", "other")
    alert = replace(
        alert_spec.alerts[0], to=(*alert_spec.alerts[0].to, gone, unsigned, Handler(refuses))
    )
    with closing(ChannelSender(alert_spec.bootstrap, alert_spec.secrets)) as post:
        tried = alerting_channels.run(post, SOURCE, alert)
    assert [None, "NewConnectionError", "no secret", "KeyError"] == [each.why for each in tried]
    assert ["test"] == [each["event"] for each in alert_receiver.taken]
