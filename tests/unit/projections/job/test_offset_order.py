"""Records of a batch are refused if those of a Kafka partition are not in order."""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.errors import RecordOrderError
from projections.job.record_runs import RECORD_COLUMNS, OffsetOrder, by_topic

Place = tuple[str, int, int]
PLACES = st.tuples(st.sampled_from("ab"), st.integers(0, 1), st.integers(0, 3))


def batch(places: list[Place]) -> pa.RecordBatch:
    kinds = {"key": pa.binary(), "value": pa.binary(), "old_key": pa.binary()}
    columns = {name: pa.nulls(len(places), kinds.get(name, pa.int64())) for name in RECORD_COLUMNS}
    columns |= {
        "topic": pa.array([topic for topic, _, _ in places], pa.string()),
        "partition": pa.array([partition for _, partition, _ in places], pa.int32()),
        "offset": pa.array([offset for _, _, offset in places], pa.int64()),
    }
    return pa.RecordBatch.from_pydict(columns)


@given(st.lists(st.lists(PLACES, min_size=1, max_size=6), max_size=3))
def test_each_partition_has_an_order_of_its_own(given: list[list[Place]]) -> None:
    offsets = defaultdict(list)
    for places in given:
        for topic, partition, offset in places:
            offsets[topic, partition].append(offset)
    ordered = all(sorted(set(each)) == each for each in offsets.values())

    order, taken = OffsetOrder(), []
    try:
        for places in given:
            for topic, run in by_topic(batch(places), order):
                taken += [(topic, record[3], record[4]) for record in run]
    except RecordOrderError:
        assert not ordered
    else:
        assert ordered
        assert [each for places in given for each in places] == taken


def test_the_topic_and_the_partition_are_named() -> None:
    with pytest.raises(RecordOrderError) as caught:
        list(by_topic(batch([("a", 1, 7), ("a", 1, 7)]), OffsetOrder()))
    assert caught.value.detail == "a, partition 1"
