"""A Spark session over all views: the public name of `headwater.reading.notebook`."""

from __future__ import annotations

from headwater.reading.notebook import spark

__all__ = ["spark"]
