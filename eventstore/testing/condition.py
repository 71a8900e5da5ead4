"""A decision across streams: it is out of date if an event came in that it had not seen."""

# ruff: noqa: D102, S101, PLR2004, SIM300  # tests, though they ship
from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eventstore.errors import ConditionFailedError, WrongExpectedVersionError
from eventstore.model.event import StreamAppend
from eventstore.model.expected_version import NO_STREAM
from eventstore.model.query import Condition, Query, tagged
from eventstore.testing.sample import (
    an_event,
    append_to,
    append_to_all,
    log_of,
    places,
    some_events,
)

if TYPE_CHECKING:
    from eventstore.log import EventLog

EITHER = Query(tagged("seat:1", types=("seat.sold",)).items + tagged("hall:1").items)


class ConditionContract:
    """The dynamic consistency boundary: a query is what must not have changed."""

    def test_a_boundary_has_the_events_that_its_query_means_oldest_first(
        self, log: EventLog
    ) -> None:
        log.append(append_to("seat-1", an_event("seat.sold", tags=("seat:1", "hall:1"))))
        log.append(append_to("seat-2", an_event("seat.sold", tags=("seat:2",))))
        log.append(append_to("hall-1", an_event("hall.opened", tags=("hall:1",))))
        log.append(append_to("seat-1", an_event("seat.freed", tags=("seat:1",))))
        log.append(append_to("note-1"))
        events = log_of(log)

        assert [events[0], events[3]] == log.read_boundary("default", tagged("seat:1")).events
        assert [events[0], events[2]] == log.read_boundary("default", EITHER).events
        assert [events[0]] == log.read_boundary("default", tagged("hall:1", "seat:1")).events
        assert [] == log.read_boundary("default", tagged("seat:3")).events

    def test_an_append_after_an_unchanged_boundary_succeeds(self, log: EventLog) -> None:
        for number in range(4):
            boundary = log.read_boundary("default", tagged("seat:1"))
            log.append(append_to("note-1", an_event(tags=("note:1",))))
            log.append(
                append_to(
                    "seat-1",
                    an_event(tags=("seat:1",)),
                    condition=Condition(tagged("seat:1"), boundary.after),
                )
            )

            assert number == len(boundary.events)
        assert 4 == log.stream_version("default", "seat-1")

    @pytest.mark.parametrize("position", [0, 1], ids=["of nothing", "of one event"])
    def test_an_append_after_a_boundary_that_has_changed_is_refused(
        self, log: EventLog, position: int
    ) -> None:
        for _ in range(position):
            log.append(append_to("seat-1", an_event(tags=("seat:1",))))
        boundary = log.read_boundary("default", tagged("seat:1"))
        log.append(append_to("elsewhere-7", an_event(tags=("seat:1", "more:1"))))
        before = log_of(log)

        with pytest.raises(ConditionFailedError) as refused:
            log.append(
                append_to(
                    "seat-1",
                    an_event(tags=("seat:1",)),
                    condition=Condition(tagged("seat:1"), boundary.after),
                )
            )

        assert refused.value.detail
        assert refused.value.hint
        assert before == log_of(log)

    @pytest.mark.parametrize(
        ("type_", "tags", "refused"),
        [
            ("seat.sold", ("seat:1",), True),
            ("seat.sold", ("other:1", "seat:1"), True),
            ("seat.freed", ("hall:1",), True),
            ("seat.freed", ("seat:1",), False),
            ("seat.sold", ("seat:2",), False),
            ("seat.sold", (), False),
        ],
    )
    def test_only_an_event_that_an_item_means_refuses(
        self, log: EventLog, type_: str, tags: tuple[str, ...], *, refused: bool
    ) -> None:
        log.append(append_to("seat-1", an_event(type_, tags=tags)))
        request = append_to("sale-1", condition=Condition(EITHER, 0))
        if refused:
            with pytest.raises(ConditionFailedError):
                log.append(request)
        else:
            log.append(request)

        assert (0 if refused else 1) == log.stream_version("default", "sale-1")

    def test_an_item_means_events_that_carry_all_its_tags(self, log: EventLog) -> None:
        both = tagged("course:1", "student:1")
        log.append(append_to("a-1", an_event(tags=("course:1",))))
        log.append(append_to("a-1", an_event(tags=("student:1",))))
        log.append(
            append_to("b-1", an_event(tags=("student:1", "course:1")), condition=Condition(both, 0))
        )

        with pytest.raises(ConditionFailedError):
            log.append(append_to("b-1", condition=Condition(both, 0)))

    def test_events_up_to_where_the_decision_has_looked_do_not_refuse(self, log: EventLog) -> None:
        token = log.append(append_to("seat-1", *some_events(3, tags=("seat:1",)))).token
        condition = Condition(tagged("seat:1"), token.global_position)
        log.append(append_to("seat-1", an_event(tags=("seat:1",)), condition=condition))

        with pytest.raises(ConditionFailedError):
            log.append(append_to("seat-1", condition=condition))

    def test_an_append_is_not_refused_by_its_own_events(self, log: EventLog) -> None:
        events = some_events(3, tags=("seat:1",))
        log.append(append_to("seat-1", *events, condition=Condition(tagged("seat:1"), 0)))

        assert 3 == log.stream_version("default", "seat-1")

    def test_a_condition_goes_with_expected_versions_of_several_streams(
        self, log: EventLog
    ) -> None:
        log.append(append_to("seat-2"))
        condition = Condition(tagged("seat:1"), 0)
        one = StreamAppend("seat-1", some_events(1, tags=("seat:1",)), NO_STREAM)
        with pytest.raises(WrongExpectedVersionError):
            log.append(
                append_to_all(
                    one, StreamAppend("seat-2", some_events(1), NO_STREAM), condition=condition
                )
            )
        log.append(
            append_to_all(one, StreamAppend("seat-2", some_events(1), 1), condition=condition)
        )

        assert [("seat-2", 1), ("seat-1", 1), ("seat-2", 2)] == places(log_of(log))
