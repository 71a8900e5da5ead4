"""Floats in JSON, which has neither NaN nor infinities: those become the text that Postgres prints.

Without this, `json` writes words that no JSON parser accepts, and orjson writes `null`.
"""

from __future__ import annotations

import math


def float_json(value: float) -> float | str:
    """Returns a float, or `NaN`, `Infinity` or `-Infinity` as text."""
    if math.isfinite(value):
        return float(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def with_float_texts(value: object) -> object:
    """Applies `float_json` to a value, and to all values within its lists, tuples and dicts."""
    if isinstance(value, float):
        return float_json(value)
    if isinstance(value, dict):
        return {name: with_float_texts(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [with_float_texts(each) for each in value]
    return value
