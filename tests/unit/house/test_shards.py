"""The parts of a run that is too long for one machine."""

from __future__ import annotations

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fix_workers import parts_of, shard

names = st.text("abc", min_size=1, max_size=3)


@given(st.sets(names), st.dictionaries(names, st.floats(0, 1000)), st.integers(1, 6))
def test_each_file_is_in_one_part(files, seconds, parts):
    found = parts_of(files, seconds, parts)

    assert parts == len(found)
    assert sorted(files) == sorted(file for part in found for file in part)
    assert found == parts_of(sorted(files, reverse=True), seconds, parts)


def test_parts_take_about_equally_long():
    seconds = {"a": 100.0, "b": 60.0, "c": 50.0, "d": 10.0}

    assert [{"a", "d"}, {"b", "c"}] == parts_of(seconds, seconds, 2)


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "a/b", ""])
def test_no_part_is_taken_for_another(text):
    with pytest.raises(argparse.ArgumentTypeError, match="no part"):
        shard(text)
