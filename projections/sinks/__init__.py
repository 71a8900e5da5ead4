"""Sinks: where views are kept, each guarded per key by the change's version."""

from __future__ import annotations

from projections.sinks.sink import Sink

__all__ = ["Sink"]
