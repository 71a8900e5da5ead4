"""Bad input that a log finds: a typed error with detail, and nothing half written."""

# ruff: noqa: D102, S101, SIM300  # tests, though they ship
from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from eventstore.errors import (
    BatchRefusedError,
    EventRefusedError,
    EventStoreError,
    NameRefusedError,
    WrongKindError,
)
from eventstore.model.event import SNAPSHOT_TYPE, Idempotency, IntegrationEvent, StreamAppend
from eventstore.model.query import EVERYTHING, Query, QueryItem, tagged
from eventstore.testing.sample import (
    an_event,
    append_to,
    append_to_all,
    log_of,
    some_events,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventstore.log import EventLog
    from eventstore.model.event import AppendRequest, NewEvent

BAD_JSON = {
    "nothing": b"",
    "no JSON": b"{",
    "two values": b"1 2",
    "NaN": b'{"a":NaN}',
    "infinity": b"[-Infinity]",
    "single quotes": b"{'a':1}",
    "trailing comma": b"[1,]",
    "no UTF-8": b'"\xff"',
    "surrogates in UTF-8": b'"\xed\xa0\x80"',
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf{}",
    "a raw NUL": b'"a\x00b"',
    "a raw line end": b'"a\nb"',
    "nested too deep": b"[" * 200_000 + b"]" * 200_000,
}


def _alone(event: NewEvent) -> AppendRequest:
    return append_to("order-2", event)


def _in_a_batch(event: NewEvent) -> AppendRequest:
    return append_to("order-2", an_event(), event)


def _across_streams(event: NewEvent) -> AppendRequest:
    return append_to_all(
        StreamAppend("order-3", (an_event(),)),
        StreamAppend("order-2", (event,)),
        idempotency=Idempotency("k1", bytes(32)),
    )


def _message(**fields: Any) -> IntegrationEvent:
    said = {"type": "order-placed", "payload": b"{}", "stream": "order-2", "message_id": uuid4()}
    return IntegrationEvent(**{**said, **fields})


def refused(
    log: EventLog,
    request: AppendRequest | Callable[[], AppendRequest],
    error: type[EventStoreError],
) -> None:
    """Asserts that an append is refused with an error of this type, and that nothing is left.

    What no value can be is refused when it is made, what only the log can tell by the log.
    """
    version = log.append(append_to("order-1")).version
    before = log_of(log)

    with pytest.raises(error) as raised:
        log.append(request() if callable(request) else request)

    assert error is type(raised.value)
    assert raised.value.detail
    assert not raised.value.retriable
    assert before == log_of(log)
    assert log.result_of("default", "k1") is None
    assert version + 1 == log.append(append_to("order-1")).version


class RefusalContract:
    """What no value could tell, the log tells."""

    @pytest.mark.parametrize(
        "way", [_alone, _in_a_batch, _across_streams], ids=["alone", "in a batch", "across streams"]
    )
    def test_a_payload_that_is_no_json_is_refused(
        self, log: EventLog, way: Callable[[NewEvent], AppendRequest]
    ) -> None:
        for data in BAD_JSON.values():
            refused(log, way(an_event(data=data)), EventRefusedError)

    def test_metadata_that_is_no_json_is_refused(self, log: EventLog) -> None:
        for metadata in BAD_JSON.values():
            refused(log, _alone(an_event(metadata=metadata)), EventRefusedError)

    @pytest.mark.parametrize(
        "occurred_at",
        [
            datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))),
            datetime(9999, 12, 31, 23, 59, tzinfo=timezone(timedelta(hours=-12))),
        ],
        ids=["before year 1", "after year 9999"],
    )
    def test_an_instant_that_no_datetime_in_utc_can_be_is_refused(
        self, log: EventLog, occurred_at: datetime
    ) -> None:
        """It could be stored and never be read."""
        refused(log, lambda: _alone(an_event(occurred_at=occurred_at)), EventRefusedError)

    def test_an_event_without_an_id_or_version_is_refused(self, log: EventLog) -> None:
        """Postgres has no form for them: an append would report a missing function."""
        for event_id in ("an id", None, 7):
            refused(log, lambda given=event_id: _alone(an_event(event_id=given)), WrongKindError)  # type: ignore[misc]
        for version in (True, "1", 1.0, None):
            refused(
                log,
                lambda given=version: _in_a_batch(an_event(schema_version=given)),  # type: ignore[misc]
                EventRefusedError,
            )

    def test_a_condition_of_another_kind_is_refused(self, log: EventLog) -> None:
        """An empty dict would count as no condition."""
        conditions: tuple[Any, ...] = ({}, tagged("a:1"), "a:1")
        for condition in conditions:
            refused(
                log,
                lambda given=condition: append_to("order-2", condition=given),  # type: ignore[misc]
                WrongKindError,
            )

    @pytest.mark.parametrize(
        ("fields", "error"),
        [
            ({"message_id": "an id"}, WrongKindError),
            ({"message_id": None}, WrongKindError),
            ({"payload": "{}"}, WrongKindError),
            ({"payload": b'"\xff"'}, EventRefusedError),
            ({"payload": b"\0"}, EventRefusedError),
            ({"payload": b""}, EventRefusedError),
            ({"version": "1"}, EventRefusedError),
            ({"version": True}, EventRefusedError),
            ({"version": 2**31}, EventRefusedError),
            ({"topic": 7}, NameRefusedError),
        ],
    )
    def test_a_message_that_cannot_be_sent_is_refused(
        self, log: EventLog, fields: dict[str, Any], error: type[EventStoreError]
    ) -> None:
        refused(log, lambda: append_to("order-2", outbox=(_message(**fields),)), error)

    def test_an_outbox_of_another_kind_is_refused(self, log: EventLog) -> None:
        for outbox in ("x", (an_event(),), (b"{}",)):
            refused(
                log,
                lambda given=outbox: append_to("order-2", outbox=given),  # type: ignore[misc]
                WrongKindError,
            )

    def test_two_messages_of_one_id_in_one_append_are_refused(self, log: EventLog) -> None:
        message = _message()
        refused(log, lambda: append_to("order-2", outbox=(message, message)), BatchRefusedError)

    def test_two_events_of_one_id_in_one_append_are_refused(self, log: EventLog) -> None:
        event = an_event()
        refused(log, lambda: append_to("order-2", event, event), BatchRefusedError)

    def test_one_id_for_two_streams_in_one_append_is_refused(self, log: EventLog) -> None:
        event = an_event()
        streams = (StreamAppend("order-2", (event,)), StreamAppend("order-3", (event,)))
        refused(log, lambda: append_to_all(*streams), BatchRefusedError)

    def test_a_type_of_the_store_s_own_is_refused(self, log: EventLog) -> None:
        refused(log, lambda: _alone(an_event(SNAPSHOT_TYPE)), NameRefusedError)

    def test_what_is_no_transaction_is_refused_to_be_joined(self, log: EventLog) -> None:
        for call in (
            lambda: log.append(append_to("order-1"), connection=object()),
            lambda: list(log.read_stream("default", "order-1", connection=object())),
            lambda: log.stream_version("default", "order-1", connection=object()),
            lambda: log.result_of("default", "k1", connection=object()),
        ):
            with pytest.raises(BatchRefusedError) as raised:
                call()

            assert "object" in (raised.value.detail or "")
        assert [] == log_of(log)

    @pytest.mark.parametrize(
        "query",
        [
            EVERYTHING,
            Query((QueryItem(types=frozenset(["order.placed"])),)),
            Query((*tagged("a:1").items, QueryItem())),
            Query(tagged("a:1").items, category="order"),
        ],
        ids=["everything", "by type", "one item without a tag", "of a category"],
    )
    def test_a_boundary_that_no_tag_bounds_is_refused(self, log: EventLog, query: Query) -> None:
        """Its events would be read, and then no condition could hold it."""
        log.append(append_to("order-1", *some_events(1, tags=("a:1",))))

        with pytest.raises(BatchRefusedError):
            log.read_boundary("default", query)
