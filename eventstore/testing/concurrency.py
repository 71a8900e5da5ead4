"""What holds when many threads write and read at once."""

# ruff: noqa: D102, S101, PLR2004, SIM300  # tests, though they ship
from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from threading import Barrier, Event
from typing import TYPE_CHECKING, Final, TypeVar

from eventstore.errors import ConditionFailedError, WrongExpectedVersionError
from eventstore.log import LogPart
from eventstore.model.event import Idempotency, StreamAppend
from eventstore.model.expected_version import ANY, NO_STREAM, accepts
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
    from collections.abc import Callable

    from eventstore.log import EventLog
    from eventstore.model.event import Appended, AppendRequest, StoredEvent

_T = TypeVar("_T")

WRITERS: Final = 8
"""More than the machine has cores, fewer than a pool has connections."""

ROUNDS: Final = 12


def together(work: Callable[[int], _T], count: int = WRITERS) -> list[_T]:
    """Runs work in threads that start at one moment; raises what one of them raised."""
    start = Barrier(count)

    def run(number: int) -> _T:
        start.wait()
        return work(number)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(run, range(count)))


class ConcurrencyContract:
    """A caller that comes at the same time: one order, no gap, no loss, nothing twice."""

    def test_one_writer_wins_each_version(self, log: EventLog) -> None:
        rounds = WRITERS * ROUNDS

        def compete(writer: int) -> list[int]:
            won = []
            while (version := log.stream_version("default", "order-1")) < rounds:
                event = an_event(data=b'{"writer":%d}' % writer)
                with suppress(WrongExpectedVersionError):
                    appended = log.append(append_to("order-1", event, expected_version=version))
                    won.append(appended.version)
            return won

        wins = together(compete)
        events = stream_of(log, "order-1")

        assert rounds == len(events)
        assert list(range(1, len(events) + 1)) == sorted(version for won in wins for version in won)
        assert list(range(1, len(events) + 1)) == [event.stream_position for event in events]
        for writer, won in enumerate(wins):
            assert all(events[v - 1].data == b'{"writer":%d}' % writer for v in won)

    def test_of_many_first_events_one_is_the_first(self, log: EventLog) -> None:
        def first(_writer: int) -> int:
            try:
                request = append_to("order-1", *some_events(3), expected_version=NO_STREAM)
                return log.append(request).version
            except WrongExpectedVersionError as refused:
                return -refused.actual

        # whoever is refused is told of a whole append, never of half of one
        assert [-3] * (WRITERS - 1) + [3] == sorted(together(first))
        assert 3 == len(log_of(log))

    def test_writers_that_expect_nothing_all_succeed_one_after_another(self, log: EventLog) -> None:
        def write(writer: int) -> list[int]:
            size = writer % 3 + 1
            return [
                log.append(append_to("order-1", *some_events(size))).version for _ in range(ROUNDS)
            ]

        answers = together(write)
        total = ROUNDS * sum(writer % 3 + 1 for writer in range(WRITERS))
        events = stream_of(log, "order-1")

        assert list(range(1, total + 1)) == [event.stream_position for event in events]
        assert events == log_of(log)
        ends = sorted(version for versions in answers for version in versions)
        assert WRITERS * ROUNDS == len(set(ends))
        assert all(one < next_ for versions in answers for one, next_ in pairwise(versions))

    def test_streams_that_are_named_in_every_order_are_appended_to_at_once(
        self, log: EventLog
    ) -> None:
        names = ["order-1", "order-2", "order-3"]

        def write(writer: int) -> None:
            mine = names[writer % 3 :] + names[: writer % 3]
            if writer % 2:
                mine.reverse()
            for number in range(ROUNDS):
                flow = f"{writer}/{number}"
                appends = [StreamAppend(name, some_events(2), ANY) for name in mine]
                log.append(append_to_all(*appends, correlation_id=flow))

        together(write)
        streams = [stream_of(log, name) for name in names]
        flows = [[event.correlation_id for event in events[::2]] for events in streams]

        assert [list(range(1, 2 * WRITERS * ROUNDS + 1))] * 3 == [
            [event.stream_position for event in events] for events in streams
        ]
        # one append after another, so their order is the same in each stream
        assert flows[0] == flows[1] == flows[2]
        assert WRITERS * ROUNDS == len(set(flows[0]))

    def test_writers_of_every_kind_at_one_stream_are_told_the_truth(self, log: EventLog) -> None:
        """Who expects nothing is never refused; who is refused, expected something else."""

        def write(writer: int) -> list[WrongExpectedVersionError]:
            refusals = []
            for number in range(2 * ROUNDS):
                try:
                    log.append(_of_a_kind(log, writer + number))
                except WrongExpectedVersionError as refused:
                    refusals.append(refused)
            return refusals

        refusals = [refused for refusals in together(write) for refused in refusals]
        lies = [str(r.detail) for r in refusals if accepts(r.expected, r.actual)]

        assert [] == lies
        for name in ("order-1", "order-2"):
            events = stream_of(log, name)
            assert list(range(1, len(events) + 1)) == [event.stream_position for event in events]

    def test_one_key_sent_by_many_at_once_is_one_append(self, log: EventLog) -> None:
        def send(_writer: int) -> Appended:
            key = Idempotency("k1", bytes(32))
            return log.append(append_to("order-1", *some_events(2), idempotency=key))

        answers = together(send)

        assert [False] + [True] * (WRITERS - 1) == sorted(answer.repeated for answer in answers)
        assert {((2,), answers[0].token)} == {(answer.versions, answer.token) for answer in answers}
        assert 2 == len(log_of(log))

    def test_the_same_events_sent_by_many_at_once_are_stored_once(self, log: EventLog) -> None:
        events = some_events(2)

        def send(writer: int) -> Appended:
            expected = NO_STREAM if writer % 2 else ANY
            return log.append(append_to("order-1", *events, expected_version=expected))

        answers = together(send)

        assert [False] + [True] * (WRITERS - 1) == sorted(answer.repeated for answer in answers)
        assert {(2,)} == {answer.versions for answer in answers}
        assert 2 == len(log_of(log))

    def test_a_rule_across_streams_holds_against_writers_at_the_same_time(
        self, log: EventLog
    ) -> None:
        """A hall of five seats: each decides on its own, none can be sold twice."""
        seats = 5

        def sell(writer: int) -> int:
            sold = 0
            for number in range(ROUNDS):
                query = tagged("hall:1")
                boundary = log.read_boundary("default", query)
                if len(boundary.events) >= seats:
                    return sold
                ticket = f"ticket-{writer}.{number}"
                event = an_event("ticket.sold", tags=("hall:1", f"writer:{writer}"))
                condition = Condition(query, boundary.after)
                try:
                    log.append(append_to(ticket, event, condition=condition))
                    sold += 1
                except ConditionFailedError:
                    continue
            return sold

        sold = together(sell)

        assert sum(sold) == len(log_of(log))
        assert 1 <= sum(sold) <= seats

    def test_a_reader_up_to_the_mark_misses_nothing_that_comes_later(self, log: EventLog) -> None:
        """Each mark is a promise: what was read up to it is all that is ever there."""
        written = Event()

        def follow() -> tuple[list[StoredEvent], list[int]]:
            seen: list[StoredEvent] = []
            marks = [0]
            last_look = False
            while not last_look:
                last_look = written.is_set()
                mark = log.high_water_mark()
                if mark > marks[-1]:
                    seen += log.read_log(None, LogPart(after=marks[-1], through=mark))
                    marks.append(mark)
            return seen, marks

        with ThreadPoolExecutor(2) as readers:
            following = [readers.submit(follow) for _ in range(2)]
            try:
                together(lambda writer: _write_all_ways(log, writer))
            finally:
                written.set()
            followed = [reader.result() for reader in following]
        whole = log_of(log)

        assert WRITERS * ROUNDS * 4 == len(whole)
        for seen, marks in followed:
            assert whole == seen, f"read up to {len(marks)} marks"


def _of_a_kind(log: EventLog, number: int) -> AppendRequest:
    """An append to one stream or both, of one of the kinds that a log may store in its own way."""
    version = log.stream_version("default", "order-1")
    other = log.stream_version("default", "order-2")
    kinds: tuple[Callable[[], AppendRequest], ...] = (
        lambda: append_to("order-1", expected_version=version),
        lambda: append_to("order-1"),
        lambda: append_to("order-1", *some_events(2)),
        lambda: append_to("order-1", *some_events(2), expected_version=version),
        lambda: append_to("order-1", an_event(tags=("a:1",))),
        lambda: append_to("order-2", expected_version=other),
        lambda: append_to_all(
            StreamAppend("order-1", some_events(1)), StreamAppend("order-2", some_events(1))
        ),
        lambda: append_to_all(
            StreamAppend("order-2", some_events(1), other),
            StreamAppend("order-1", some_events(1), version),
        ),
    )
    return kinds[number % len(kinds)]()


def _write_all_ways(log: EventLog, writer: int) -> None:
    """Four events a round, by each way that a log may have to append; some are refused first."""
    for number in range(ROUNDS):
        mine, tag = f"mine-{writer}", f"writer:{writer}"
        log.append(append_to(mine, expected_version=2 * number))
        log.append(append_to("everyone-1", an_event(tags=(tag, "everyone"))))
        try:
            log.append(append_to(mine, expected_version=0))
        except WrongExpectedVersionError as refused:
            log.append(
                append_to_all(
                    StreamAppend("everyone-2", some_events(1, tags=(tag,))),
                    StreamAppend(mine, some_events(1), refused.actual),
                )
            )
