"""What an append does, and what it leaves alone when it is refused."""

# ruff: noqa: D102, S101, PLR2004, SIM300  # tests, though they ship
from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest

from eventstore.errors import WrongExpectedVersionError
from eventstore.model.event import (
    EVENT_BYTES_MAX,
    EVENTS_MAX,
    STREAMS_MAX,
    TAGS_MAX,
    IntegrationEvent,
    StreamAppend,
)
from eventstore.model.expected_version import ANY, NO_STREAM, STREAM_EXISTS, VERSION_MAX
from eventstore.testing.sample import (
    an_event,
    append_to,
    append_to_all,
    log_of,
    payloads,
    places,
    some_events,
    stream_of,
)

if TYPE_CHECKING:
    from eventstore.log import EventLog

ODD_JSON = (
    b'{"b":1,"a":2,"a":3}',
    b' {"spaces" :\t[ ] ,\n"more": { } } ',
    b'{"number":1.10,"big":123456789012345678901234567890,"tiny":1e-400}',
    '{"text":"Grüße 😀 \\u0000 \\/ \\u00e9"}'.encode(),
    b'"a text"',
    b"null",
    b"[]",
)
ODD_STREAMS = (
    "order-42",
    "order-a-b-c",
    "order-Österreich_1.2:3@x y",
    "order-'; DROP TABLE x; --",
    'order-"{},\\%s%%',
    "orders",
    "o-" + "x" * 253,
)


class AppendContract:
    """Appends are atomic; streams are contiguous; versions are what the writer thinks, or not."""

    def test_an_append_answers_with_the_version_of_the_stream_afterwards(
        self, log: EventLog
    ) -> None:
        first = log.append(append_to("order-1", *some_events(2)))
        second = log.append(append_to("order-1", *some_events(3)))

        assert (2,) == first.versions
        assert 5 == second.version
        assert 5 == log.stream_version("default", "order-1")
        assert not first.repeated
        assert not second.repeated

    def test_a_stream_counts_its_events_from_one_without_gaps(self, log: EventLog) -> None:
        for count in (1, 3, 1, 2):
            log.append(append_to("order-1", *some_events(count)))
            log.append(append_to("order-2"))

        assert list(range(1, 8)) == [e.stream_position for e in stream_of(log, "order-1")]
        assert list(range(1, 5)) == [e.stream_position for e in stream_of(log, "order-2")]

    def test_the_order_of_an_append_is_the_order_of_the_stream_and_of_the_log(
        self, log: EventLog
    ) -> None:
        events = some_events(50)
        log.append(append_to("order-1", *events[:20]))
        log.append(append_to("order-1", *events[20:]))

        assert [event.data for event in events] == payloads(stream_of(log, "order-1"))
        assert [event.data for event in events] == payloads(log_of(log))

    def test_a_stream_that_nobody_wrote_is_at_version_zero_and_empty(self, log: EventLog) -> None:
        assert 0 == log.stream_version("default", "order-1")
        assert [] == stream_of(log, "order-1")

    def test_an_event_reads_back_as_it_was_written(self, log: EventLog) -> None:
        somewhere = timezone(timedelta(hours=5, minutes=45))
        event = an_event(
            "order.re-priced.v2_x",
            b'{"total": "1.10"}',
            occurred_at=datetime(1999, 12, 31, 23, 59, 59, 999999, somewhere),
            schema_version=7,
            tags=("customer:c1", "region:eu", 'odd "tag", {with} \\ signs'),
            metadata=b'{"ip": "::1"}',
        )
        log.append(
            append_to("order-1", event, correlation_id="flow 1", causation_id="m:2", actor="zoë")
        )
        (stored,) = stream_of(log, "order-1")

        assert ("default", "order-1", 1) == (stored.tenant, stored.stream, stored.stream_position)
        assert ("order.re-priced.v2_x", 7) == (stored.type, stored.schema_version)
        assert (event.event_id, event.data) == (stored.event_id, stored.data)
        assert event.metadata == stored.metadata
        assert event.tags == tuple(stored.tags or ())
        assert ("flow 1", "m:2", "zoë") == (
            stored.correlation_id,
            stored.causation_id,
            stored.actor,
        )
        assert event.occurred_at == stored.occurred_at
        assert [stored] == log_of(log)

    def test_what_an_event_does_not_say_reads_back_as_nothing(self, log: EventLog) -> None:
        log.append(append_to("order-1"))
        log.append(append_to("order-1", an_event(), an_event()))

        for stored in stream_of(log, "order-1"):
            assert stored.metadata is None
            assert not stored.tags
            assert [None] * 3 == [stored.correlation_id, stored.causation_id, stored.actor]

    def test_times_read_back_with_their_offset(self, log: EventLog) -> None:
        log.append(append_to("order-1"))
        (stored,) = stream_of(log, "order-1")

        assert stored.occurred_at.utcoffset() is not None
        assert stored.recorded_at.utcoffset() is not None

    @pytest.mark.parametrize("batch", [1, 2], ids=["alone", "in a batch"])
    def test_payloads_and_metadata_keep_every_byte(self, log: EventLog, batch: int) -> None:
        for data in ODD_JSON:
            log.append(append_to("order-1", an_event(data=data, metadata=data)))
            many = [an_event(data=data, metadata=data) for _ in range(batch)]
            log.append(append_to("order-2", *many))

        assert list(ODD_JSON) == payloads(stream_of(log, "order-1"))
        assert list(ODD_JSON) == [event.metadata for event in stream_of(log, "order-1")]
        expected = [data for data in ODD_JSON for _ in range(batch)]
        assert expected == payloads(stream_of(log, "order-2"))

    def test_every_name_of_a_stream_is_a_stream_of_its_own(self, log: EventLog) -> None:
        for stream in ODD_STREAMS:
            log.append(append_to(stream, expected_version=NO_STREAM))

        assert [(stream, 1) for stream in ODD_STREAMS] == places(log_of(log))
        assert ODD_STREAMS == tuple(
            event.stream for stream in ODD_STREAMS for event in stream_of(log, stream)
        )

    @pytest.mark.parametrize(
        ("events", "expected"),
        [
            (0, ANY),
            (0, NO_STREAM),
            (2, ANY),
            (2, STREAM_EXISTS),
            (2, 2),
        ],
    )
    def test_an_append_succeeds_if_the_stream_is_where_the_writer_thinks(
        self, log: EventLog, events: int, expected: int
    ) -> None:
        if events:
            log.append(append_to("order-1", *some_events(events)))

        assert events + 1 == log.append(append_to("order-1", expected_version=expected)).version

    @pytest.mark.parametrize(
        ("events", "expected"),
        [
            (0, STREAM_EXISTS),
            (0, 1),
            (2, NO_STREAM),
            (2, 1),
            (2, 3),
            (2, VERSION_MAX),
        ],
    )
    @pytest.mark.parametrize("batch", [1, 2], ids=["one event", "two events"])
    def test_an_append_is_refused_if_the_stream_is_elsewhere(
        self, log: EventLog, events: int, expected: int, batch: int
    ) -> None:
        if events:
            log.append(append_to("order-1", *some_events(events)))
        before = log_of(log)

        with pytest.raises(WrongExpectedVersionError) as refused:
            log.append(append_to("order-1", *some_events(batch), expected_version=expected))

        assert ("order-1", expected, events) == (
            refused.value.stream,
            refused.value.expected,
            refused.value.actual,
        )
        assert refused.value.detail
        assert refused.value.hint
        assert before == log_of(log)

    def test_a_refused_writer_succeeds_after_reading_again(self, log: EventLog) -> None:
        log.append(append_to("order-1"))
        with pytest.raises(WrongExpectedVersionError) as refused:
            log.append(append_to("order-1", expected_version=NO_STREAM))
        log.append(append_to("order-1", expected_version=refused.value.actual))

        assert [1, 2] == [event.stream_position for event in stream_of(log, "order-1")]

    def test_several_streams_are_appended_to_at_once(self, log: EventLog) -> None:
        log.append(append_to("order-2"))
        appended = log.append(
            append_to_all(
                StreamAppend("order-2", some_events(2), 1),
                StreamAppend("order-1", some_events(3), NO_STREAM),
                StreamAppend("payment-1", some_events(1)),
            )
        )

        assert (3, 3, 1) == appended.versions
        assert [b'{"number":0}', b'{"number":1}'] == payloads(stream_of(log, "order-2")[1:])
        assert [1, 2, 3] == [event.stream_position for event in stream_of(log, "order-1")]
        assert 7 == len(log_of(log))

    @pytest.mark.parametrize("stale", ["order-1", "order-2", "order-3"])
    def test_one_stream_that_is_elsewhere_refuses_the_whole_append(
        self, log: EventLog, stale: str
    ) -> None:
        log.append(append_to(stale))
        before = log_of(log)
        names = ("order-1", "order-2", "order-3")

        with pytest.raises(WrongExpectedVersionError) as refused:
            log.append(
                append_to_all(*[StreamAppend(name, some_events(2), NO_STREAM) for name in names])
            )

        assert (stale, NO_STREAM, 1) == (
            refused.value.stream,
            refused.value.expected,
            refused.value.actual,
        )
        assert before == log_of(log)

    def test_a_token_is_where_the_last_event_of_its_append_is(self, log: EventLog) -> None:
        first = log.append(append_to("order-1", *some_events(2)))
        second = log.append(
            append_to_all(StreamAppend("a-1", some_events(2)), StreamAppend("b-1", some_events(1)))
        )
        positions = [event.global_position for event in log_of(log)]

        assert [positions[1], positions[-1]] == [
            first.token.global_position,
            second.token.global_position,
        ]
        assert first.token < second.token

    def test_an_append_with_messages_for_others_is_an_append_like_any_other(
        self, log: EventLog
    ) -> None:
        message = IntegrationEvent("order-placed", b'{"id": 1}', "order-1", an_event().event_id)
        appended = log.append(append_to("order-1", an_event(), outbox=(message,)))

        assert (1,) == appended.versions
        assert [("order-1", 1)] == places(log_of(log))

    def test_the_largest_batch_is_one_append(self, log: EventLog) -> None:
        events = some_events(EVENTS_MAX)
        log.append(append_to("order-1"))
        appended = log.append(append_to("order-1", *events, expected_version=1))
        last = log.append(append_to("order-1", expected_version=EVENTS_MAX + 1))

        assert (EVENTS_MAX + 1,) == appended.versions
        assert [event.data for event in events] == payloads(stream_of(log, "order-1")[1:-1])
        assert log.high_water_mark() >= last.token.global_position

    def test_as_many_streams_as_an_append_can_name_are_one_append(self, log: EventLog) -> None:
        names = [f"order-{number}" for number in range(STREAMS_MAX)]
        appended = log.append(
            append_to_all(*[StreamAppend(name, some_events(1), NO_STREAM) for name in names])
        )

        assert (1,) * STREAMS_MAX == appended.versions
        assert set(names) == {event.stream for event in log_of(log)}

    def test_the_largest_event_reads_back(self, log: EventLog) -> None:
        data = b'"' + b"x" * (EVENT_BYTES_MAX - 2) + b'"'
        tags = tuple(f"tag:{number}" for number in range(TAGS_MAX))
        log.append(append_to("order-1", an_event(data=data, tags=tags)))
        (stored,) = stream_of(log, "order-1")

        assert data == stored.data
        assert tags == tuple(stored.tags or ())

    def test_what_was_read_once_reads_the_same_later(self, log: EventLog) -> None:
        log.append(append_to("order-1", *some_events(3, tags=("a:1",))))
        once = log_of(log)
        log.append(append_to("order-1"))
        log.append(append_to("order-2"))

        assert once == log_of(log)[:3]
        assert once == stream_of(log, "order-1")[:3]

    def test_closing_twice_is_closing(self, log: EventLog) -> None:
        log.append(append_to("order-1"))
        log.close()
        log.close()
