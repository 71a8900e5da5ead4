"""Numbers that JSON or its reader does not have are text, and everything else is as it was."""

from __future__ import annotations

import json
import math

import orjson
import pytest

from foundation.json_numbers import float_json, with_number_texts


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.nan, '"NaN"'),
        (math.inf, '"Infinity"'),
        (-math.inf, '"-Infinity"'),
        (-0.0, "-0.0"),
        (0.1, "0.1"),
    ],
)
def test_a_float_is_a_number_if_json_has_one(value: float, expected: str) -> None:
    assert expected == orjson.dumps(float_json(value)).decode()


def test_integers_that_the_reader_does_not_have_are_text() -> None:
    row = {"id": 2**53, "other": -(2**53), "ids": [2**53 - 1, True]}

    texts = {"id": "9007199254740992", "other": "-9007199254740992", "ids": [2**53 - 1, True]}
    assert texts == with_number_texts(row, 2**53 - 1)
    assert row == with_number_texts(row)


def test_floats_are_found_within_lists_tuples_and_dicts() -> None:
    row = {"a": math.inf, "b": [(1, math.nan), {"c": -math.inf}], "d": None, "e": 10**20, "f": True}

    written = json.dumps(with_number_texts(row), allow_nan=False)

    expected = {"a": "Infinity", "b": [[1, "NaN"], {"c": "-Infinity"}], "d": None, "e": 10**20}
    assert expected | {"f": True} == json.loads(written)
