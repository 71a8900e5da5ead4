"""What a read of the log gives, and up to where."""

# ruff: noqa: D102, S101, PLR2004, SIM300  # tests, though they ship
from __future__ import annotations

from itertools import pairwise, product
from typing import TYPE_CHECKING

import pytest

from eventstore.log import LogPart
from eventstore.model.event import StreamAppend
from eventstore.model.query import Query, QueryItem, tagged
from eventstore.testing.sample import (
    an_event,
    append_to,
    append_to_all,
    log_of,
    places,
    some_events,
    stream_of,
)

if TYPE_CHECKING:
    from eventstore.log import EventLog
    from eventstore.model.event import NewEvent


def typed(*types: str) -> Query:
    """Returns the query for events of these types."""
    return Query((QueryItem(types=frozenset(types)),))


_COURSE = (
    ("course-1", an_event("course.opened", tags=("course:1",))),
    ("course-2", an_event("course.opened", tags=("course:2",))),
    ("student-1", an_event("student.enrolled", tags=("course:1", "student:1"))),
    ("student-1", an_event("student.enrolled", tags=("student:1", "course:2"))),
    ("student-2", an_event("student.enrolled", tags=("course:1", "student:2"))),
    ("coursework-1", an_event("work.handed-in")),
    ("course", an_event("course.opened")),
    ("course-1", an_event("course.closed", tags=("course:1",))),
)


QUERIES: tuple[tuple[Query, list[int]], ...] = (
    (Query(), [0, 1, 2, 3, 4, 5, 6, 7]),
    (Query(category="course"), [0, 1, 6, 7]),
    (Query(category="student"), [2, 3, 4]),
    (Query(category="nobody"), []),
    (typed("course.opened"), [0, 1, 6]),
    (typed("course.opened", "course.closed"), [0, 1, 6, 7]),
    (typed("course"), []),
    (tagged("course:1"), [0, 2, 4, 7]),
    (tagged("course:2", "student:1"), [3]),
    (tagged("student:1", "course:2"), [3]),
    (tagged("course"), []),
    (tagged("course:1", types=("student.enrolled",)), [2, 4]),
    (tagged("course:1", types=("student.enrolled", "course.closed")), [2, 4, 7]),
    (Query(tagged("student:2").items + tagged("course:2").items), [1, 3, 4]),
    (Query(tagged("course:1").items + tagged("student:1").items), [0, 2, 3, 4, 7]),
    (Query(typed("work.handed-in").items + tagged("course:2").items), [1, 3, 5]),
    (Query(typed("course.opened").items, category="course"), [0, 1, 6]),
    (Query(tagged("course:1").items, category="course"), [0, 7]),
    (Query((QueryItem(),)), [0, 1, 2, 3, 4, 5, 6, 7]),
)
"""Queries, and which of the sample's events they mean."""


def write(log: EventLog, events: tuple[tuple[str, NewEvent], ...] = _COURSE) -> None:
    """Appends events one by one."""
    for stream, event in events:
        log.append(append_to(stream, event))


class LogReadingContract:
    """The log is one order of all events, complete up to its mark."""

    def test_an_empty_log_has_the_mark_zero(self, log: EventLog) -> None:
        assert 0 == log.high_water_mark()
        assert [] == log_of(log)
        assert [] == log_of(log, LogPart(backwards=True))

    def test_positions_in_the_log_ascend(self, log: EventLog) -> None:
        for number in range(10):
            log.append(
                append_to_all(
                    StreamAppend(f"b-{number % 2}", some_events(2)),
                    StreamAppend(f"a-{number % 3}", some_events(1)),
                )
            )
        events = log_of(log)

        assert 30 == len(events)
        assert all(one.global_position < next_.global_position for one, next_ in pairwise(events))
        assert events[0].global_position > 0
        for stream in {event.stream for event in events}:
            mine = stream_of(log, stream)
            assert mine == sorted(mine, key=lambda event: event.global_position)

    def test_the_mark_is_behind_no_event_when_nobody_writes(self, log: EventLog) -> None:
        for number in range(3):
            token = log.append(append_to(f"order-{number}", *some_events(2))).token

            assert token.global_position == log.high_water_mark()
            assert token.global_position == log_of(log)[-1].global_position

    def test_the_log_up_to_the_mark_has_every_event(self, log: EventLog) -> None:
        write(log)

        assert places(log_of(log)) == places(log_of(log, LogPart(through=log.high_water_mark())))

    def test_a_read_of_the_log_ends_at_the_mark_of_its_start(self, log: EventLog) -> None:
        log.append(append_to("order-1", *some_events(3)))
        events = log.read_log(None)
        first = next(events)
        log.append(append_to("order-1", *some_events(3)))

        assert [("order-1", 1), ("order-1", 2), ("order-1", 3)] == places([first, *events])

    @pytest.mark.parametrize("backwards", [False, True])
    def test_a_part_of_the_log_is_read(self, log: EventLog, *, backwards: bool) -> None:
        for number in range(5):
            log.append(append_to(f"order-{number % 2}", *some_events(2)))
        events = log_of(log)
        positions = [0, *(event.global_position for event in events)]
        bounds = product([0, 1, 5, 10], [None, 0, 4, 10], [None, 0, 1, 3, 99])

        for first, last, limit in bounds:
            through = None if last is None else positions[last]
            part = LogPart(
                after=positions[first], through=through, limit=limit, backwards=backwards
            )
            expected = events[first:last]

            assert (expected[::-1] if backwards else expected)[:limit] == log_of(log, part), part

    def test_positions_beyond_the_mark_are_not_waited_for(self, log: EventLog) -> None:
        write(log)

        assert log_of(log) == log_of(log, LogPart(through=2**62))
        assert [] == log_of(log, LogPart(after=2**62))

    def test_a_reader_comes_to_the_end_page_by_page(self, log: EventLog) -> None:
        log.append(append_to("order-1", *some_events(20)))
        seen, after = [], 0
        while page := log_of(log, LogPart(after=after, limit=3)):
            seen += page
            after = page[-1].global_position

        assert seen == log_of(log)

    @pytest.mark.parametrize("backwards", [False, True])
    def test_a_query_finds_its_events_in_the_order_of_the_log(
        self, log: EventLog, *, backwards: bool
    ) -> None:
        _rewrite(log)
        events = log_of(log)

        for query, numbers in QUERIES:
            expected = [events[number] for number in numbers]
            if backwards:
                expected.reverse()
            for tenant in (None, "default"):
                part = LogPart(query, backwards=backwards)
                assert expected == log_of(log, part, tenant=tenant), query
                part = LogPart(query, backwards=backwards, limit=2)
                assert expected[:2] == log_of(log, part, tenant=tenant), query

    def test_a_query_goes_with_bounds(self, log: EventLog) -> None:
        _rewrite(log)
        events = log_of(log)
        positions = [event.global_position for event in events]

        for query, numbers in QUERIES:
            part = LogPart(query, after=positions[0], through=positions[6])
            expected = [events[number] for number in numbers if 0 < number <= 6]
            assert expected == log_of(log, part), query


def _rewrite(log: EventLog) -> None:
    """Appends the sample; some of it in batches, which a log may store by another way."""
    (_, opened), (_, other), *rest = _COURSE
    log.append(
        append_to_all(StreamAppend("course-1", (opened,)), StreamAppend("course-2", (other,)))
    )
    log.append(append_to("student-1", rest[0][1], rest[1][1]))
    write(log, tuple(rest[2:]))
