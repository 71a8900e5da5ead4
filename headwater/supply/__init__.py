"""The Java side of Headwater, locked: which jars, which bytes, which Java."""

from __future__ import annotations
