"""NaN and infinities are text in JSON, and everything else is as it was."""

from __future__ import annotations

import json
import math

import orjson
import pytest

from foundation.json_floats import float_json, with_float_texts


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


def test_floats_are_found_within_lists_tuples_and_dicts() -> None:
    row = {"a": math.inf, "b": [(1, math.nan), {"c": -math.inf}], "d": None, "e": 10**20, "f": True}

    written = json.dumps(with_float_texts(row), allow_nan=False)

    expected = {"a": "Infinity", "b": [[1, "NaN"], {"c": "-Infinity"}], "d": None, "e": 10**20}
    assert expected | {"f": True} == json.loads(written)
