"""Where queries begin when views come and go, which views lack records, and what is to be swept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.lsn import Lsn
from cdc.position import ChangePosition
from cdc.snapshot.reads import WholeRead
from cdc.table import Column, ColumnKind, TableName, TableSchema
from projections.changes import sweeps
from projections.common import spark_checkpoint
from projections.definition.views import Store
from projections.job import backfill
from projections.job.backfill import Arrivals, arrivals
from projections.planning.view_plan import ViewPlan

if TYPE_CHECKING:
    from pathlib import Path

EARLIEST = -2


def plan(name: str, table: str) -> ViewPlan:
    place = TableName("public", table)
    schema = TableSchema(place, (Column("id", ColumnKind.INTEGER, "bigint", nullable=False),))
    return ViewPlan(name, "shop", place.topic("shop"), schema, ("id",), frozenset({Store.CACHE}))


NOTES, AGAIN, LATE = plan("notes", "notes"), plan("again", "notes"), plan("late", "late")
TOPIC, OTHER = NOTES.topic, LATE.topic


@pytest.mark.parametrize(
    ("known", "at", "bounds", "lacking"),
    [
        # the first time: everything is still to come
        (None, {}, {(TOPIC, 0): (0, 9), (OTHER, 0): (0, 9)}, {}),
        # a query that has kept no account has had them all
        (None, {(TOPIC, 0): 9}, {(TOPIC, 0): (0, 9), (OTHER, 0): (5, 9)}, {}),
        # it is past the records of a view, and not past those of another
        (
            {"notes": {}},
            {(TOPIC, 0): 9},
            {(TOPIC, 0): (0, 9), (OTHER, 0): (0, 9)},
            {"again": {TOPIC}},
        ),
        # it is at the beginning still
        ({"notes": {}}, {(TOPIC, 0): 0}, {(TOPIC, 0): (0, 9), (OTHER, 0): (0, 9)}, {}),
        # records are gone, whether anything was ever read or not
        (
            {"notes": {}, "again": {}},
            {(TOPIC, 0): 9},
            {(TOPIC, 0): (0, 9), (OTHER, 0): (5, 9)},
            {"late": {OTHER}},
        ),
        (None, {}, {(TOPIC, 0): (0, 9), (OTHER, 0): (5, 9)}, {"late": {OTHER}}),
        # what was there before lacks nothing, and waits for what it waited for
        ({"notes": {TOPIC: 7}, "again": {}, "late": {}}, {(TOPIC, 0): 9}, {}, {}),
    ],
)
def test_a_view_lacks_what_its_query_is_past_or_its_topic_has_let_go(
    known: dict[str, dict[str, int]] | None,
    at: dict[tuple[str, int], int],
    bounds: dict[tuple[str, int], tuple[int, int]],
    lacking: dict[str, set[str]],
) -> None:
    found = arrivals(known, (NOTES, AGAIN, LATE), at, bounds)

    assert lacking == found.lacking
    assert found.known == (None if known is None and at else known or {})


def test_the_account_of_a_query_is_kept_and_none_is_told_apart_from_an_empty_one(
    tmp_path: Path,
) -> None:
    file = tmp_path / "shop" / "cache.json"
    assert backfill.read(file) is None
    for known in ({}, {"notes": {}, "again": {TOPIC: 12}}):
        backfill.write(file, known)
        assert known == backfill.read(file)
    assert Arrivals().known is None
    assert {} == spark_checkpoint.positions(tmp_path, "shop")


OFFSETS = st.dictionaries(
    st.tuples(st.sampled_from("abc"), st.integers(0, 1)), st.integers(0, 20), max_size=6
)
BOUNDS = st.fixed_dictionaries(
    {
        (topic, part): st.tuples(st.integers(0, 9), st.integers(9, 20))
        for topic in "abc"
        for part in (0, 1)
    }
)


@given(OFFSETS, st.frozensets(st.sampled_from("abc"), min_size=1), BOUNDS)
def test_a_new_checkpoint_begins_where_the_old_one_stands_and_passes_nothing_over(
    at: dict[tuple[str, int], int],
    topics: frozenset[str],
    bounds: dict[tuple[str, int], tuple[int, int]],
) -> None:
    bounds = {place: found for place, found in bounds.items() if place[0] in topics}

    starts = spark_checkpoint.starts(at, topics, bounds)

    if starts is None:
        lost = any(
            not bounds[place][0] <= offset <= bounds[place][1]
            for place, offset in at.items()
            if place in bounds
        )
        same = {topic for topic, _ in at} <= topics
        whole = all(first == 0 for place, (first, _) in bounds.items() if place not in at)
        assert not at or lost or (same and whole)
        return
    places = {(topic, int(n)): v for topic, parts in starts.items() for n, v in parts.items()}
    assert places.keys() == bounds.keys()
    for place, start in places.items():
        if place in at:
            assert bounds[place][0] <= start <= at[place] <= start + 1
        else:
            assert EARLIEST == start


def test_a_checkpoint_that_is_set_aside_comes_back_unless_another_has_taken_its_place(
    tmp_path: Path,
) -> None:
    place = tmp_path / "checkpoints" / "shop" / "cache"
    _batches(place, 7)
    place.with_name(".cache").mkdir()  # somebody was killed here before
    spark_checkpoint.take_back(place)
    assert {"query cache": {("t", 0): 7}} == spark_checkpoint.positions(tmp_path, "shop")

    spark_checkpoint.set_aside(place)
    assert {} == spark_checkpoint.positions(tmp_path, "shop")
    (place / "offsets").mkdir(parents=True)  # killed before its first batch was finished
    spark_checkpoint.take_back(place)
    assert {("t", 0): 7} == spark_checkpoint.committed(place)

    spark_checkpoint.set_aside(place)
    _batches(place, 9)
    spark_checkpoint.take_back(place)
    assert {("t", 0): 9} == spark_checkpoint.committed(place)
    assert [place] == list(place.parent.iterdir())
    assert (
        orjson.dumps(spark_checkpoint.starts({}, frozenset({"t"}), {("t", 0): (3, 9)})) == b"null"
    )


def _batches(place: Path, offset: int) -> None:
    for number in (0, 1):
        for name in ("offsets", "commits"):
            (place / name).mkdir(parents=True, exist_ok=True)
            (place / name / str(number)).write_text(f'v1\n{{}}\n{{"t": {{"0": {offset}}}}}\n')


def test_a_view_has_to_be_swept_until_that_is_noted_for_its_store() -> None:
    read = WholeRead(3, 2, Lsn(700), {0: 9})
    version = ChangePosition.of_read(2, Lsn(700)).version
    before = ChangePosition.of_read(1, Lsn(900)).version

    def pending(**done: int) -> bool:
        swept = {("notes", Store(store)): below for store, below in done.items()}
        return sweeps.pending(NOTES, Store.CACHE, {TOPIC: read}, swept) is not None

    assert [True, True, True, False] == [
        pending(),
        pending(cache=before),
        pending(search=version),
        pending(cache=version),
    ]
    assert sweeps.pending(NOTES, Store.CACHE, {OTHER: read}, {}) is None
