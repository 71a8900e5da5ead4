"""What a read of one stream gives."""

# ruff: noqa: D102, S101, PLR2004, SIM300  # tests, though they ship
from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest

from eventstore.log import StreamPart
from eventstore.testing.sample import append_to, log_of, places, some_events, stream_of

if TYPE_CHECKING:
    from eventstore.log import EventLog


PARTS: tuple[tuple[StreamPart, list[int]], ...] = (
    (StreamPart(), [1, 2, 3, 4, 5]),
    (StreamPart(backwards=True), [5, 4, 3, 2, 1]),
    (StreamPart(after=3), [4, 5]),
    (StreamPart(after=5), []),
    (StreamPart(after=99), []),
    (StreamPart(through=2), [1, 2]),
    (StreamPart(through=0), []),
    (StreamPart(through=99), [1, 2, 3, 4, 5]),
    (StreamPart(after=1, through=3), [2, 3]),
    (StreamPart(after=3, through=1), []),
    (StreamPart(limit=2), [1, 2]),
    (StreamPart(limit=0), []),
    (StreamPart(limit=99), [1, 2, 3, 4, 5]),
    (StreamPart(backwards=True, limit=2), [5, 4]),
    (StreamPart(after=1, through=4, backwards=True, limit=2), [4, 3]),
    (StreamPart(after=1, limit=2), [2, 3]),
    (StreamPart(archived=True), [1, 2, 3, 4, 5]),
    (StreamPart(archived=True, backwards=True, limit=1), [5]),
)
"""Parts of a stream of five events, and which of them they are."""

ODD_OFFSETS = (
    timedelta(hours=5, minutes=45),
    timedelta(hours=-23, minutes=-59),
    timedelta(hours=23, minutes=59),  # Postgres reads offsets up to 16 hours only
    timedelta(minutes=53, seconds=28),
    timedelta(microseconds=5),
)


class StreamReadingContract:
    """A stream is read forwards and backwards, from and up to a version, as of an instant."""

    def test_a_part_of_a_stream_is_read(self, log: EventLog) -> None:
        log.append(append_to("order-1", *some_events(3)))
        log.append(append_to("order-11", *some_events(2)))
        log.append(append_to("order-1", *some_events(2)))

        for part, positions in PARTS:
            expected = [("order-1", position) for position in positions]
            assert expected == places(stream_of(log, "order-1", part)), part

    @pytest.mark.parametrize("archived", [False, True])
    def test_a_stream_as_of_an_instant_has_what_was_recorded_by_then(
        self, log: EventLog, *, archived: bool
    ) -> None:
        for _ in range(5):
            log.append(append_to("order-1", *some_events(2)))
        events = stream_of(log, "order-1")
        for last in events:
            instant = last.recorded_at
            expected = [event for event in events if event.recorded_at <= instant]

            part = StreamPart(as_of=instant, archived=archived)
            assert expected == stream_of(log, "order-1", part)
            part = StreamPart(as_of=instant, archived=archived, backwards=True)
            assert expected[::-1] == stream_of(log, "order-1", part)

    def test_before_its_first_event_a_stream_is_empty(self, log: EventLog) -> None:
        log.append(append_to("order-1"))
        (event,) = stream_of(log, "order-1")
        earlier = event.recorded_at - timedelta(microseconds=1)

        assert [] == stream_of(log, "order-1", StreamPart(as_of=earlier))

    @pytest.mark.parametrize("batch", [1, 2], ids=["alone", "in a batch"])
    def test_times_read_back_in_utc_whatever_offset_they_had(
        self, log: EventLog, batch: int
    ) -> None:
        """The date of an event is the same in tests, in memory, as on a database."""
        for number, offset in enumerate(ODD_OFFSETS):
            occurred_at = datetime(2026, 1, 1, tzinfo=timezone(offset))
            stream = f"order-{number}"
            log.append(append_to(stream, *some_events(batch, occurred_at=occurred_at)))
            expected = [occurred_at.astimezone(UTC).isoformat()] * batch
            assert expected == [e.occurred_at.isoformat() for e in stream_of(log, stream)]

    def test_an_instant_is_one_instant_in_every_zone(self, log: EventLog) -> None:
        log.append(append_to("order-1"))
        (event,) = stream_of(log, "order-1")
        elsewhere = event.recorded_at.astimezone(timezone(timedelta(hours=-9, minutes=-30)))

        assert [event] == stream_of(log, "order-1", StreamPart(as_of=elsewhere))

    def test_an_instant_goes_with_the_other_bounds(self, log: EventLog) -> None:
        for _ in range(6):
            log.append(append_to("order-1"))
        fifth = stream_of(log, "order-1")[4].recorded_at
        part = StreamPart(after=1, through=4, as_of=fifth, backwards=True, limit=2)

        assert [("order-1", 4), ("order-1", 3)] == places(stream_of(log, "order-1", part))

    def test_a_read_shows_the_moment_when_it_began(self, log: EventLog) -> None:
        log.append(append_to("order-1", *some_events(2)))
        events = log.read_stream("default", "order-1")
        first = next(events)
        log.append(append_to("order-1", *some_events(2)))

        assert [("order-1", 1), ("order-1", 2)] == places([first, *events])
        assert 4 == len(stream_of(log, "order-1"))

    def test_streams_and_the_log_show_the_same_events(self, log: EventLog) -> None:
        for number in range(12):
            log.append(append_to(f"order-{number % 3}", *some_events(number % 2 + 1)))
        whole = log_of(log)

        for name in ("order-0", "order-1", "order-2"):
            assert [event for event in whole if event.stream == name] == stream_of(log, name)
