"""Of all records of a key, the newest makes its row."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from projections.archive.rebuilding.row_times import newest_of


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6))))
def test_the_first_of_the_greatest_versions_of_a_key_is_its_newest(
    records: list[tuple[int, int]],
) -> None:
    expected: dict[int, int] = {}
    for place, (key, version) in enumerate(records):
        if key not in expected or version > records[expected[key]][1]:
            expected[key] = place
    keys, versions = (np.array([each[n] for each in records], np.int64) for n in (0, 1))

    assert sorted(expected.values()) == newest_of(keys, versions).tolist()
