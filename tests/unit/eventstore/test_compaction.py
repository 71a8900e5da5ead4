"""Planning a compaction and folding twice, without a database."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.deciding.decider import Decider
from eventstore.errors import CompactionError, EventRefusedError, UndeclaredError
from eventstore.model.event import EVENT_BYTES_MAX, SNAPSHOT_TYPE, StoredEvent
from eventstore.model.event_id import new_event_id
from eventstore.planning.snapshotting import open_prefix
from eventstore.privacy.keyring import MemoryKeyRing
from eventstore.privacy.personal import Personal, Redacted
from eventstore.serialization.codec import Codec
from eventstore.serialization.registry import EventTypes
from eventstore.upkeep.compaction import (
    CompactionPolicy,
    CompactionStep,
    Folding,
    StreamExtent,
    StreamFold,
    steps,
)

types = EventTypes()
STREAM = "counter-1"


@types.event("counter.added")
@dataclass(frozen=True)
class Added:
    number: int


@types.event("counter.named", subject="person")
@dataclass(frozen=True)
class Named:
    person: str
    name: Personal[str]


@dataclass(frozen=True)
class Counter:
    total: int = 0
    seen: frozenset[int] = frozenset()
    name: str | None = None


def evolve(state: Counter, event: Added | Named) -> Counter:
    if isinstance(event, Named):
        return replace(state, name=str(event.name))
    return replace(state, total=state.total + event.number, seen=state.seen | {event.number})


def counting(
    evolve: Any = evolve, initial: Any = Counter, version: int = 1
) -> Decider[Any, Any, Any]:
    return Decider(
        category="counter",
        decide=lambda command, state: None,  # noqa: ARG005
        evolve=evolve,
        initial_state=initial,
        commands=(),
        stream_id=str,
        version=version,
    )


def stored(codec: Codec, *events: object) -> list[StoredEvent]:
    now = datetime.now(UTC)
    rows = []
    for position, event in enumerate(events, 1):
        made = codec.encode(event, tenant="default", stream=STREAM, stream_position=position)
        row = (made.type, made.schema_version, made.event_id, made.data)
        rows.append(
            StoredEvent(
                *(position, "default", STREAM, position, *row, None, None),
                *(None, None, None, now, now),
            )
        )
    return rows


def folding(fold: StreamFold, through: int, rows: list[StoredEvent]) -> Folding:
    made = Folding(fold, STREAM, through)
    for row in rows:
        made.add(row)
    return made


def standing(row: StoredEvent, payload: bytes | None) -> StoredEvent:
    assert payload is not None
    return row._replace(type=SNAPSHOT_TYPE, event_id=new_event_id(), data=payload)


@pytest.mark.parametrize(
    ("extent", "through"),
    [
        pytest.param((1, "counter.added", 10), None, id="as large as allowed"),
        pytest.param((1, "counter.added", 11), 7, id="larger"),
        pytest.param((7, SNAPSHOT_TYPE, 11), None, id="compacted, and small since"),
        pytest.param((7, SNAPSHOT_TYPE, 17), 13, id="compacted, and grown again"),
        pytest.param((7, SNAPSHOT_TYPE, 16), None, id="compacted, just not large again"),
    ],
)
def test_a_policy_folds_all_but_the_last_events_of_streams_that_are_large(
    extent: tuple[int, str, int], through: int | None
) -> None:
    policy = CompactionPolicy("counter", larger_than=10, keep_events=4)

    assert through == policy.through(StreamExtent(STREAM, *extent))


def test_a_policy_may_fold_the_head_and_is_then_done() -> None:
    policy = CompactionPolicy("counter", larger_than=0, keep_events=0)

    assert 5 == policy.through(StreamExtent(STREAM, 1, "counter.added", 5))
    assert policy.through(StreamExtent(STREAM, 5, SNAPSHOT_TYPE, 5)) is None
    assert policy.through(StreamExtent(STREAM, 1, "counter.added", 1)) is None


@pytest.mark.parametrize(
    "numbers", [{"keep_events": -1}, {"larger_than": 2.5}, {"larger_than": 1, "keep_events": 2}]
)
def test_a_policy_that_makes_no_sense_is_refused(numbers: dict[str, Any]) -> None:
    with pytest.raises(CompactionError):
        CompactionPolicy("counter", **numbers)


@given(compacted=st.integers(0, 50), more=st.integers(0, 200), events_max=st.integers(1, 40))
def test_steps_move_a_bounded_number_of_events_and_compare_every_later_version(
    compacted: int, more: int, events_max: int
) -> None:
    through = compacted + more

    made = list(steps(compacted, through, events_max))

    ends = [compacted, *(step.through for step in made)]
    moved = [later - earlier for earlier, later in pairwise(ends)]
    assert through == ends[-1]
    assert all(0 < number <= events_max for number in moved) or made == [
        CompactionStep(through, None)
    ]
    assert made[-1].checked_through is None
    assert [step.checked_through for step in made[:-1]] == [step.through for step in made[1:]]


def test_a_prefix_folds_to_the_state_after_its_last_event() -> None:
    fold = StreamFold(counting(), Codec(types))
    rows = stored(fold.codec, *map(Added, (3, 1, 2, 1, 9)))

    made = folding(fold, 3, rows)

    base = open_prefix(fold.codec, fold.decider, standing(rows[2], made.payload))
    assert base is not None
    assert (3, b'{"total":6,"seen":[1,2,3],"name":null}') == (base.stream_position, base.state)
    assert 5 == made.position


def test_a_snapshot_is_folded_further_as_its_originals_would_be() -> None:
    fold = StreamFold(counting(), Codec(types))
    rows = stored(fold.codec, *map(Added, (3, 1, 2, 1, 9)))
    first = standing(rows[1], folding(fold, 2, rows).payload)
    base = fold.base_of(first)
    assert base is not None

    again = Folding(fold, STREAM, 4, base)
    for row in rows[2:]:
        again.add(row)

    assert folding(fold, 4, rows).payload == again.payload


def test_a_snapshot_of_another_version_of_the_fold_is_no_base() -> None:
    codec = Codec(types)
    rows = stored(codec, Added(1), Added(2))
    payload = folding(StreamFold(counting(), codec), 1, rows).payload

    newer = StreamFold(counting(version=2), codec)

    assert newer.base_of(standing(rows[0], payload)) is None


@pytest.mark.parametrize(
    "places", [pytest.param((1,), id="the first"), pytest.param((0, 2), id="one between")]
)
def test_a_missing_original_is_noticed(places: tuple[int, ...]) -> None:
    fold = StreamFold(counting(), Codec(types))
    rows = stored(fold.codec, *map(Added, range(4)))

    with pytest.raises(CompactionError, match="from its first event"):
        folding(fold, 2, [rows[place] for place in places])


def test_an_event_of_an_unknown_type_is_not_folded_over() -> None:
    fold = StreamFold(counting(), Codec(types))
    rows = [row._replace(type="counter.moved") for row in stored(fold.codec, Added(1))]

    with pytest.raises(UndeclaredError):
        folding(fold, 1, rows)


def test_an_evolve_that_fails_is_named_with_the_version() -> None:
    def failing(state: Counter, event: Added) -> Counter:
        return replace(state, total=state.total // event.number)

    fold = StreamFold(counting(failing), Codec(types))

    with pytest.raises(CompactionError) as caught:
        folding(fold, 3, stored(fold.codec, Added(1), Added(0)))

    assert "ZeroDivisionError at version 2" == caught.value.detail


def test_a_state_that_does_not_read_back_as_it_was_is_not_folded() -> None:
    def narrow() -> tuple[int, int]:
        return (0, 0)

    def widening(state: Any, event: Added) -> Any:
        return (*state, event.number)

    fold = StreamFold(counting(widening, narrow), Codec(types))

    with pytest.raises(EventRefusedError):
        folding(fold, 1, stored(fold.codec, Added(1)))


def test_a_fold_that_depends_on_more_than_the_state_is_found_out_at_a_later_version() -> None:
    calls: list[int] = []

    def counting_calls(state: int, event: Added) -> int:
        calls.append(event.number)
        return state + len(calls)

    fold = StreamFold(counting(counting_calls, int), Codec(types))

    with pytest.raises(CompactionError, match="folds differently") as caught:
        folding(fold, 2, stored(fold.codec, *map(Added, range(4))))

    assert "folded through 2, different at version 3" == caught.value.detail


def test_a_fold_whose_state_keeps_an_order_that_its_json_does_not_is_found_out() -> None:
    def first_key(state: dict[str, int], event: Added) -> dict[str, int]:
        if event.number < 0:
            return {next(iter(state)): 1}
        return {**state, f"n{event.number}": 0}

    def nothing() -> dict[str, int]:
        return {}

    fold = StreamFold(counting(first_key, nothing), Codec(types))

    with pytest.raises(CompactionError, match="folds differently"):
        folding(fold, 2, stored(fold.codec, Added(7), Added(1), Added(-1)))


def test_a_state_that_is_too_large_for_an_event_is_refused() -> None:
    def growing(state: str, event: Added) -> str:
        return state + "x" * event.number

    fold = StreamFold(counting(growing, str), Codec(types))

    with pytest.raises(CompactionError, match="too large"):
        folding(fold, 1, stored(fold.codec, Added(EVENT_BYTES_MAX)))


def test_a_state_with_personal_fields_is_sealed_until_the_person_is_forgotten() -> None:
    ring = MemoryKeyRing()
    fold = StreamFold(counting(), Codec(types, ring))
    rows = stored(fold.codec, Named("p1", "Ada"), Added(1), Named("p2", "Bob"))

    first = standing(rows[1], folding(fold, 2, rows).payload)

    base = fold.base_of(first)
    assert base is not None
    assert frozenset({"p1"}) == base.subjects
    assert b"Ada" in (base.state or b"")
    assert b"Ada" not in first.data
    ring.shred("default", "p1")
    assert fold.base_of(first) is None


def test_what_was_forgotten_before_does_not_seal_the_state() -> None:
    ring = MemoryKeyRing()
    fold = StreamFold(counting(), Codec(types, ring))
    rows = stored(fold.codec, Named("p1", "Ada"), Added(1))
    ring.shred("default", "p1")

    base = fold.base_of(standing(rows[1], folding(fold, 2, rows).payload))

    assert base is not None
    assert frozenset() == base.subjects
    assert str(Redacted("p1")).encode() in (base.state or b"")
