"""Compaction: the public name of `eventstore.upkeep.compaction`."""

from __future__ import annotations

from eventstore.upkeep.compaction import (
    Compacted,
    CompactionPolicy,
    CompactionReport,
    Compactor,
    Refusal,
    StreamFold,
)

__all__ = [
    "Compacted",
    "CompactionPolicy",
    "CompactionReport",
    "Compactor",
    "Refusal",
    "StreamFold",
]
