"""Postgres against its twin in memory: whatever is asked of both, both answer the same.

The machine appends in every way at random and compares each answer and each refusal; then it reads
both in every way. Global positions differ, because Postgres leaves gaps: they are compared, and
given as bounds, by what lies at them. What no log may do whatever its twin says is an invariant.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from eventstore.errors import EventStoreError, WrongExpectedVersionError
from eventstore.log import LogPart, StateSnapshot, StreamPart
from eventstore.memory import MemoryEventLog
from eventstore.model.event import AppendRequest, Idempotency, NewEvent, StreamAppend, digest_of
from eventstore.model.expected_version import ANY, NO_STREAM, STREAM_EXISTS
from eventstore.model.query import Condition, Query, QueryItem
from tests.fix_seeds import examples

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventstore.log import EventLog
    from eventstore.model.event import Appended, StoredEvent
    from eventstore.postgres.log import PostgresEventLog

pytestmark = pytest.mark.integration

TENANTS = ("a", "b")
STREAMS = ("order-1", "order-2", "seat-1", "orders")
TYPES = ("thing.done", "thing.undone", "note")
TAGS = ("seat:1", "seat:2", "hall:1")
KEYS = ("k1", "k2", "k3")
runs = count(1)


class RequestOutcome(NamedTuple):
    """An append before it is known where the streams are: versions as distances, if any."""

    streams: tuple[tuple[str, tuple[tuple[str, bytes, tuple[str, ...]], ...], str | int], ...]
    key: str | None
    condition: tuple[tuple[QueryItem, ...], float] | None


few = st.integers(0, 9)
contents = st.tuples(
    st.sampled_from(TYPES),
    st.sampled_from([b"1", b'{"a": 2}', b'"\\u0000"']),
    st.sampled_from([(), (), ("seat:1",), ("seat:2", "hall:1"), TAGS]),
)
expectations = st.sampled_from(["any", "any", "exists", "none", 0, 0, 0, 0, -1, 1])
items = st.builds(
    QueryItem,
    st.frozensets(st.sampled_from(TYPES), max_size=2),
    st.frozensets(st.sampled_from(TAGS), max_size=2),
)
tagged_items = st.builds(
    QueryItem,
    st.frozensets(st.sampled_from(TYPES), max_size=2),
    st.frozensets(st.sampled_from(TAGS), min_size=1, max_size=2),
)
conditions = st.tuples(
    st.lists(tagged_items, min_size=1, max_size=2).map(tuple),
    st.sampled_from([0.0, 0.5, 0.9, 1.0, 1.0]),
)


def streams_of(least: int) -> st.SearchStrategy[Any]:
    one = st.tuples(
        st.sampled_from(STREAMS),
        st.lists(contents, min_size=least, max_size=3).map(tuple),
        expectations,
    )
    return st.lists(one, min_size=1, max_size=3, unique_by=lambda s: s[0]).map(tuple)


plain = st.builds(RequestOutcome, streams_of(1).map(lambda s: s[:1]), st.none(), st.none())
several = st.builds(RequestOutcome, streams_of(1), st.none(), st.none() | conditions)
keyed = st.builds(RequestOutcome, streams_of(0), st.sampled_from(KEYS), st.none() | conditions)


class LogMachine(RuleBasedStateMachine):
    """Does the same to both logs."""

    sent = Bundle("sent")

    def __init__(self, postgres: PostgresEventLog) -> None:
        super().__init__()
        self.postgres, self.memory = postgres, MemoryEventLog()
        self.before = postgres.head()  # other runs have used this database
        self.run = next(runs)
        # for each event in the order of the log: its position in memory and in Postgres
        self.positions: list[tuple[int, int]] = []
        self.acknowledged: dict[tuple[str, str], int] = {}

    def tenant(self, name: str) -> str:
        return f"{name}{self.run}"

    @rule(target=sent, tenant=st.sampled_from(TENANTS), asked=plain)
    def append_to_one_stream(
        self, tenant: str, asked: RequestOutcome
    ) -> tuple[AppendRequest, float | None]:
        return self._ask(tenant, asked)

    @rule(target=sent, tenant=st.sampled_from(TENANTS), asked=several)
    def append_to_several(
        self, tenant: str, asked: RequestOutcome
    ) -> tuple[AppendRequest, float | None]:
        return self._ask(tenant, asked)

    @rule(target=sent, tenant=st.sampled_from(TENANTS), asked=keyed)
    def append_under_a_key(
        self, tenant: str, asked: RequestOutcome
    ) -> tuple[AppendRequest, float | None]:
        return self._ask(tenant, asked)

    def _ask(self, tenant: str, asked: RequestOutcome) -> tuple[AppendRequest, float | None]:
        request = self._request(self.tenant(tenant), asked)
        looked_at = asked.condition[1] if asked.condition else None
        self._append(request, looked_at)
        return request, looked_at

    @rule(sent=sent, expected=st.sampled_from([None, ANY, STREAM_EXISTS, NO_STREAM, 1]))
    def append_again(self, sent: tuple[AppendRequest, float | None], expected: int | None) -> None:
        request, looked_at = sent
        if expected is not None:
            request = replace(
                request,
                appends=tuple(replace(a, expected_version=expected) for a in request.appends),
            )
        self._append(request, looked_at)

    @rule(sent=sent, change=st.sampled_from(["data", "type", "stream", "id", "more", "fewer"]))
    def append_nearly_the_same(self, sent: tuple[AppendRequest, float | None], change: str) -> None:
        request, looked_at = sent
        first, *rest = request.appends
        if not first.events:
            return
        event = first.events[0]
        other = {
            "data": replace(event, data=b"[9]"),
            "type": replace(event, type="other.type"),
            "id": replace(event, event_id=uuid4()),
        }.get(change, event)
        events = (other, *first.events[1:])
        if change == "more":
            events = (*events, replace(event, event_id=uuid4()))
        if change == "fewer" and len(events) > 1:
            events = events[1:]
        stream = "other-1" if change == "stream" else first.stream
        changed = replace(first, stream=stream, events=events)
        request = replace(request, appends=(changed, *rest))
        if request.idempotency is not None and change in {"data", "type", "stream"}:
            key = replace(request.idempotency, digest=digest_of(request))
            request = replace(request, idempotency=key)
        self._append(request, looked_at)

    def _request(self, tenant: str, asked: RequestOutcome) -> AppendRequest:
        request = AppendRequest(
            tuple(
                StreamAppend(
                    stream,
                    tuple(
                        NewEvent(type_, data, uuid4(), datetime.now(UTC), tags=tags)
                        for type_, data, tags in events
                    ),
                    self._expected(tenant, stream, expected),
                )
                for stream, events, expected in asked.streams
            ),
            tenant=tenant,
            idempotency=Idempotency(asked.key, bytes(32)) if asked.key else None,
            condition=Condition(Query(asked.condition[0]), 0) if asked.condition else None,
            correlation_id=f"flow {self.run}",
        )
        if request.idempotency is None:
            return request
        return replace(request, idempotency=Idempotency(asked.key or "", digest_of(request)))

    def _expected(self, tenant: str, stream: str, expected: str | int) -> int:
        if isinstance(expected, str):
            return {"any": ANY, "exists": STREAM_EXISTS, "none": NO_STREAM}[expected]
        return max(0, self.memory.stream_version(tenant, stream) + expected)

    def _append(self, request: AppendRequest, looked_at: float | None) -> None:
        """Appends to both; a condition looks from a place that is the same in both."""
        answers = []
        place = round((looked_at or 0) * len(self.positions))
        after = (0, self.before) if place == 0 else self.positions[place - 1]
        for log, position in zip((self.memory, self.postgres), after, strict=True):
            asked = request
            if request.condition is not None:
                asked = replace(request, condition=replace(request.condition, after=position))
            answers.append(answer_of(log, asked))
        by_memory, by_postgres = answers
        self._take_positions()

        assert by_memory[:-1] == by_postgres[:-1], request
        if by_memory[0] in {"appended", "repeated"}:
            assert self._place(0, by_memory[-1]) == self._place(1, by_postgres[-1]), request
            for append, version in zip(request.appends, by_memory[1], strict=True):
                known = self.acknowledged.get((request.tenant, append.stream), 0)
                self.acknowledged[request.tenant, append.stream] = max(known, version)

    def _take_positions(self) -> None:
        last = self.positions[-1] if self.positions else (0, self.before)
        memory = list(self.memory.read_log(None, LogPart(after=last[0])))
        postgres = list(self.postgres.read_log(None, LogPart(after=last[1])))
        assert list(map(content, memory)) == list(map(content, postgres))
        self.positions += [
            (one.global_position, other.global_position)
            for one, other in zip(memory, postgres, strict=True)
        ]

    def _place(self, log: int, position: int) -> int:
        """How many events lie at a position or before it."""
        return sum(both[log] <= position for both in self.positions)

    def _both(self, read: Callable[[EventLog, int], Any]) -> None:
        assert read(self.memory, 0) == read(self.postgres, 1)

    @rule(
        tenant=st.sampled_from(TENANTS),
        stream=st.sampled_from(STREAMS),
        after=few,
        through=st.none() | few,
        limit=st.none() | few,
        backwards=st.booleans(),
        archived=st.booleans(),
    )
    def read_stream(self, tenant: str, stream: str, **bounds: Any) -> None:
        tenant, part = self.tenant(tenant), StreamPart(**bounds)
        self._both(lambda log, _: list(map(content, log.read_stream(tenant, stream, part))))

    @rule(
        tenant=st.sampled_from(TENANTS),
        stream=st.sampled_from(STREAMS),
        place=few,
        backwards=st.booleans(),
    )
    def read_stream_as_of(self, tenant: str, stream: str, place: int, *, backwards: bool) -> None:
        tenant = self.tenant(tenant)
        events = list(self.memory.read_stream(tenant, stream))
        # Memory records all events of an append at one instant: an instant between appends it is.
        ends = [
            one.stream_position
            for one, next_ in pairwise([*events, None])
            if next_ is None or one.recorded_at != next_.recorded_at
        ]
        if not ends:
            return
        end = ends[place % len(ends)]

        def read(log: EventLog, _: int) -> list[tuple[Any, ...]]:
            (last,) = log.read_stream(tenant, stream, StreamPart(after=end - 1, through=end))
            part = StreamPart(as_of=last.recorded_at, backwards=backwards)
            return list(map(content, log.read_stream(tenant, stream, part)))

        self._both(read)
        assert end == len(read(self.postgres, 1))

    @rule(
        tenant=st.none() | st.sampled_from(TENANTS),
        query=st.builds(
            Query,
            st.lists(items, max_size=3).map(tuple),
            st.sampled_from([None, None, "order", "seat", "orders"]),
        ),
        bounds=st.tuples(st.floats(0, 1), st.none() | st.floats(0, 1), st.none() | few),
        backwards=st.booleans(),
    )
    def read_log(
        self,
        tenant: str | None,
        query: Query,
        bounds: tuple[float, float | None, int | None],
        *,
        backwards: bool,
    ) -> None:
        first, last, limit = bounds

        def at(part_of: float, log: int) -> int:
            place = round(part_of * len(self.positions))
            return self.positions[place - 1][log] if place else (0, self.before)[log]

        def read(log: EventLog, number: int) -> list[tuple[Any, ...]]:
            through = None if last is None else at(last, number)
            part = LogPart(query, at(first, number), through, backwards, limit)
            mine = None if tenant is None else self.tenant(tenant)
            return list(map(content, log.read_log(mine, part)))

        self._both(read)

    @rule(tenant=st.sampled_from(TENANTS), boundary=st.lists(tagged_items, min_size=1, max_size=3))
    def read_boundary(self, tenant: str, boundary: list[QueryItem]) -> None:
        def read(log: EventLog, number: int) -> tuple[list[tuple[Any, ...]], int]:
            found = log.read_boundary(self.tenant(tenant), Query(tuple(boundary)))
            return list(map(content, found.events)), self._place(number, found.after)

        self._both(read)

    @rule(tenant=st.sampled_from(TENANTS), key=st.sampled_from(KEYS))
    def ask_for_a_key(self, tenant: str, key: str) -> None:
        def read(log: EventLog, number: int) -> Any:
            known = log.result_of(self.tenant(tenant), key)
            if known is None:
                return None
            appended = known.appended
            place = self._place(number, appended.token.global_position)
            return known.digest, appended.versions, appended.repeated, place

        self._both(read)

    @rule(
        tenant=st.sampled_from(TENANTS),
        stream=st.sampled_from(STREAMS[:2]),
        fold=st.sampled_from(["f@1", "f@2"]),
        position=few,
        through=st.none() | few,
    )
    def save_and_find_a_snapshot(
        self, tenant: str, stream: str, fold: str, position: int, through: int | None
    ) -> None:
        tenant = self.tenant(tenant)
        state = StateSnapshot(stream, fold, position, uuid4().bytes, bytes(32), ("c1",))
        self.memory.save_snapshot(tenant, state)
        self.postgres.save_snapshot(tenant, state)

        self._both(lambda log, _: log.snapshot(tenant, stream, fold, through=through))

    @invariant()
    def streams_are_contiguous_and_hold_what_was_acknowledged(self) -> None:
        for (tenant, stream), version in self.acknowledged.items():
            events = list(self.postgres.read_stream(tenant, stream))

            assert list(range(1, version + 1)) == [event.stream_position for event in events]
            assert version == self.postgres.stream_version(tenant, stream)

    @invariant()
    def the_mark_is_at_the_last_event(self) -> None:
        """Nobody else writes, so nothing is under way."""
        last = self.positions[-1][1] if self.positions else self.before

        assert last <= self.postgres.high_water_mark()


def content(event: StoredEvent) -> tuple[Any, ...]:
    """An event without what each log says in its own way."""
    return (*event[1:9], tuple(event.tags or ()), *event[10:14])


def answer_of(log: EventLog, request: AppendRequest) -> tuple[Any, ...]:
    """What an append did, or why it was refused; at the end the position, if there is one."""
    try:
        appended: Appended = log.append(request)
    except WrongExpectedVersionError as refused:
        return (type(refused), refused.stream, refused.expected, refused.actual, None)
    except EventStoreError as refused:
        return (type(refused), bool(refused.detail), None)
    done = "repeated" if appended.repeated else "appended"
    return (done, appended.versions, appended.token.global_position)


def test_postgres_and_memory_answer_alike_whatever_is_asked(pg_log):
    run_state_machine_as_test(
        lambda: LogMachine(pg_log),
        settings=settings(
            max_examples=examples(150),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
