"""An append that is sent again has happened once: by its key, and by the ids of its events."""

# ruff: noqa: D102, S101, PLR2004, SIM300  # tests, though they ship
from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from eventstore.errors import (
    ConditionFailedError,
    IdempotencyConflictError,
    WrongExpectedVersionError,
)
from eventstore.model.event import AppendRequest, Idempotency, NewEvent, StreamAppend, digest_of
from eventstore.model.expected_version import ANY, NO_STREAM, STREAM_EXISTS
from eventstore.model.query import Condition, tagged
from eventstore.testing.sample import (
    an_event,
    append_to,
    append_to_all,
    log_of,
    some_events,
    stream_of,
)

if TYPE_CHECKING:
    from eventstore.log import EventLog

EXPECTATIONS = [ANY, NO_STREAM, STREAM_EXISTS, 1, 2, 9]


def keyed(request: AppendRequest, key: str = "k1") -> AppendRequest:
    """Returns an append that happens once under a key."""
    return replace(request, idempotency=Idempotency(key, digest_of(request)))


class KeyContract:
    """One key, one intention: the first answer again, or a conflict."""

    def test_a_repeated_key_gets_the_first_answer_and_writes_nothing(self, log: EventLog) -> None:
        request = keyed(append_to("order-1", *some_events(2)))
        first = log.append(request)
        log.append(append_to("order-1"))
        before = log_of(log)
        again = log.append(request)

        assert (first.versions, False) == ((2,), first.repeated)
        assert replace(first, repeated=True) == again
        assert before == log_of(log)

    def test_a_retry_may_have_new_ids_and_times(self, log: EventLog) -> None:
        first = log.append(keyed(append_to("order-1", an_event(data=b'{"a":1}'))))
        again = log.append(keyed(append_to("order-1", an_event(data=b'{"a":1}'))))

        assert replace(first, repeated=True) == again
        assert 1 == len(log_of(log))

    def test_a_repeated_key_gets_the_first_answer_whatever_version_it_expects(
        self, log: EventLog
    ) -> None:
        first = log.append(keyed(append_to("order-1", an_event(), expected_version=NO_STREAM)))

        for expected in EXPECTATIONS:
            again = log.append(keyed(append_to("order-1", an_event(), expected_version=expected)))
            assert replace(first, repeated=True) == again, expected

    def test_a_repeated_key_gets_the_first_answer_though_its_condition_fails_now(
        self, log: EventLog
    ) -> None:
        request = keyed(
            append_to(
                "seat-1", an_event(tags=("seat:1",)), condition=Condition(tagged("seat:1"), 0)
            )
        )
        first = log.append(request)

        assert replace(first, repeated=True) == log.append(request)

    def test_a_key_that_was_used_for_another_payload_is_a_conflict_whatever_version_it_expects(
        self, log: EventLog
    ) -> None:
        log.append(keyed(append_to("order-1", an_event(data=b'{"a":1}'))))
        before = log_of(log)

        for expected in EXPECTATIONS:
            other = append_to("order-1", an_event(data=b'{"a":2}'), expected_version=expected)
            with pytest.raises(IdempotencyConflictError) as refused:
                log.append(keyed(other))

            assert refused.value.detail
            assert refused.value.hint
            assert before == log_of(log)

    def test_a_key_answers_before_the_ids_of_its_events_do(self, log: EventLog) -> None:
        request = keyed(append_to("order-1", *some_events(2)))
        log.append(request)

        with pytest.raises(IdempotencyConflictError):
            log.append(replace(request, idempotency=Idempotency("k1", bytes(32))))

    @pytest.mark.parametrize(
        ("stream", "event"),
        [
            ("order-2", an_event()),
            ("order-1", an_event("order.paid")),
            ("order-1", an_event(schema_version=2)),
            ("order-1", an_event(tags=("a:1",))),
            ("order-1", an_event(data=b'{"total":2}')),
        ],
        ids=["stream", "type", "version of the type", "tags", "payload"],
    )
    def test_stream_type_version_tags_and_payload_make_another_payload(
        self, log: EventLog, stream: str, event: NewEvent
    ) -> None:
        log.append(keyed(append_to("order-1")))

        with pytest.raises(IdempotencyConflictError):
            log.append(keyed(append_to(stream, event)))

    def test_a_refused_append_leaves_its_key_unused(self, log: EventLog) -> None:
        log.append(append_to("order-1", an_event(tags=("a:1",))))
        with pytest.raises(WrongExpectedVersionError):
            log.append(keyed(append_to("order-1", expected_version=NO_STREAM)))
        with pytest.raises(ConditionFailedError):
            log.append(keyed(append_to("order-1", condition=Condition(tagged("a:1"), 0))))

        assert log.result_of("default", "k1") is None
        assert (2,) == log.append(keyed(append_to("order-1", an_event("another.thing")))).versions

    def test_a_key_remembers_that_nothing_was_to_be_done(self, log: EventLog) -> None:
        log.append(append_to("order-1"))
        nothing = keyed(AppendRequest((StreamAppend("order-1", ()),), idempotency=_ANY_KEY))
        first = log.append(nothing)
        log.append(append_to("order-1"))

        assert ((1,), False) == (first.versions, first.repeated)
        assert replace(first, repeated=True) == log.append(nothing)
        assert 2 == len(log_of(log))

    def test_an_append_of_nothing_still_expects_a_version(self, log: EventLog) -> None:
        with pytest.raises(WrongExpectedVersionError):
            log.append(AppendRequest((StreamAppend("order-1", (), 3),), idempotency=_ANY_KEY))

        assert log.result_of("default", "k1") is None

    def test_the_answer_under_a_key_can_be_asked_for(self, log: EventLog) -> None:
        request = keyed(
            append_to_all(
                StreamAppend("order-1", some_events(2)), StreamAppend("order-2", some_events(1))
            )
        )
        first = log.append(request)
        known = log.result_of("default", "k1")

        assert known is not None
        assert (digest_of(request), replace(first, repeated=True)) == known
        assert log.result_of("default", "k2") is None

    def test_keys_are_told_apart_to_the_byte(self, log: EventLog) -> None:
        keys = ["k1", "K1", "k1.", "k" * 255, "k'1", "ключ"]
        for key in keys:
            assert not log.append(keyed(append_to("order-1"), key)).repeated

        assert len(keys) == log.stream_version("default", "order-1")


_ANY_KEY = Idempotency("k1", bytes(32))


class EventIdContract:
    """An event's id is given to one event only, so the same events again are a repetition."""

    @pytest.mark.parametrize("count", [1, 3])
    def test_the_same_events_again_get_the_first_answer_whatever_version_is_expected(
        self, log: EventLog, count: int
    ) -> None:
        events = some_events(count)
        first = log.append(append_to("order-1", *events, expected_version=NO_STREAM))
        log.append(append_to("order-1"))
        before = log_of(log)

        for expected in EXPECTATIONS:
            again = log.append(append_to("order-1", *events, expected_version=expected))
            assert first.versions == again.versions
            assert first.token.global_position == again.token.global_position
            assert again.repeated
            assert before == log_of(log)

    def test_the_same_events_to_several_streams_get_the_first_answer(self, log: EventLog) -> None:
        request = append_to_all(
            StreamAppend("order-1", some_events(2), NO_STREAM),
            StreamAppend("order-2", some_events(1), NO_STREAM),
        )
        first = log.append(request)
        log.append(append_to("order-1"))
        again = log.append(request)

        assert (first.versions, True) == (again.versions, again.repeated)
        assert 4 == len(log_of(log))

    def test_the_same_events_get_the_first_answer_though_their_condition_fails_now(
        self, log: EventLog
    ) -> None:
        request = append_to(
            "seat-1", an_event(tags=("seat:1",)), condition=Condition(tagged("seat:1"), 0)
        )
        first = log.append(request)
        again = log.append(request)

        assert (first.versions, True) == (again.versions, again.repeated)

    def test_the_same_events_under_a_key_that_is_new_get_the_first_answer(
        self, log: EventLog
    ) -> None:
        events = some_events(2)
        first = log.append(append_to("order-1", *events))
        again = log.append(keyed(append_to("order-1", *events)))

        assert (first.versions, True) == (again.versions, again.repeated)

    def test_the_same_events_beside_a_stream_without_any_get_the_first_answer(
        self, log: EventLog
    ) -> None:
        events = some_events(2)
        log.append(append_to("order-2", *some_events(3)))
        log.append(append_to("order-1", *events))
        again = log.append(
            AppendRequest(
                (StreamAppend("order-1", events), StreamAppend("order-2", ())),
                idempotency=_ANY_KEY,
            )
        )

        assert ((2, 3), True) == (again.versions, again.repeated)

    @pytest.mark.parametrize(
        ("stream", "changes"),
        [
            ("order-1", {"data": b'{"total":2}'}),
            ("order-1", {"type": "order.paid"}),
            ("order-1", {"schema_version": 2}),
            ("order-2", {}),
        ],
        ids=["payload", "type", "version of the type", "stream"],
    )
    def test_an_id_that_has_other_content_is_a_conflict_whatever_version_is_expected(
        self, log: EventLog, stream: str, changes: dict[str, object]
    ) -> None:
        event = an_event()
        log.append(append_to("order-1", event))
        before = log_of(log)
        other = replace(event, **changes)  # type: ignore[arg-type]

        for expected in EXPECTATIONS:
            with pytest.raises(IdempotencyConflictError) as refused:
                log.append(append_to(stream, other, expected_version=expected))

            assert str(event.event_id) in (refused.value.detail or "")
            assert before == log_of(log)

    def test_events_of_which_only_some_are_stored_are_a_conflict(self, log: EventLog) -> None:
        events = some_events(3)
        log.append(append_to("order-1", *events[:2]))

        with pytest.raises(IdempotencyConflictError):
            log.append(append_to("order-1", *events))

        assert 2 == len(stream_of(log, "order-1"))

    def test_an_append_that_was_refused_leaves_the_ids_of_its_events_unused(
        self, log: EventLog
    ) -> None:
        event = an_event()
        with pytest.raises(WrongExpectedVersionError):
            log.append(append_to("order-1", event, expected_version=1))

        assert not log.append(append_to("order-2", event)).repeated
