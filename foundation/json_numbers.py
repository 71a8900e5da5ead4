"""Numbers that JSON, or who reads it, does not have: they become the text that Postgres prints.

Without this, `json` writes words that no JSON parser accepts, and orjson writes `null`.
"""

from __future__ import annotations

import math


def float_json(value: float) -> float | str:
    """Returns a float, or `NaN`, `Infinity` or `-Infinity` as text."""
    if math.isfinite(value):
        return float(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def with_number_texts(value: object, integer_max: int | None = None) -> object:
    """Replaces numbers by texts in a value, and within its lists, tuples and dicts.

    Args:
        value: NaN and infinities are replaced in it.
        integer_max: Greatest integer that the reader has; larger ones, and smaller ones than its
            negative, are replaced as well. None for all.
    """
    if isinstance(value, float):
        return float_json(value)
    if isinstance(value, int) and integer_max is not None and abs(value) > integer_max:
        return str(value)
    if isinstance(value, dict):
        return {name: with_number_texts(each, integer_max) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [with_number_texts(each, integer_max) for each in value]
    return value
