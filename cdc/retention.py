"""Retention: how long the topic of a table keeps its records."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cdc.errors import CaptureSpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

_UNITS: Final = {
    "minute": ("time_ms", 60_000),
    "hour": ("time_ms", 3_600_000),
    "day": ("time_ms", 86_400_000),
    "mb": ("size_bytes", 10**6),
    "gb": ("size_bytes", 10**9),
    "tb": ("size_bytes", 10**12),
    "mib": ("size_bytes", 2**20),
    "gib": ("size_bytes", 2**30),
    "tib": ("size_bytes", 2**40),
}
_AMOUNT: Final = re.compile(r"(\d{1,12})\s*([A-Za-z]+)")
_LATEST: Final = "latest"
_HOUR_MS: Final = 3_600_000
_FOREVER: Final = "-1"

OURS: Final = (
    "cleanup.policy",
    "compression.type",
    "delete.retention.ms",
    "file.delete.delay.ms",  # while a topic is truncated
    "max.compaction.lag.ms",
    "max.message.bytes",
    "min.compaction.lag.ms",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.ms",
)
"""Topic properties that Headwater sets or resets to the broker's default; the user may set all
others."""

SEGMENTS_MIN: Final = 8
"""A size limit is divided into at least so many segments, because brokers delete whole segments."""

_SEGMENT_BYTES_MAX: Final = 2**30
_SEGMENT_BYTES_MIN: Final = 2**20


@dataclass(frozen=True, slots=True)
class TopicRetention:
    """A policy: by time, by size, by both, or the latest record of every key.

    With both limits, a record is deleted as soon as one is exceeded.

    Attributes:
        time_ms: How long records are kept, milliseconds; with `latest`, how long tombstones are
            kept and records are not compacted. None for no limit.
        size_bytes: Size of a partition, bytes; None for no limit.
        latest: Whether the latest record of every key is kept without limit (compaction).
    """

    time_ms: int | None = None
    size_bytes: int | None = None
    latest: bool = False

    @classmethod
    def parse(cls, text: str, time_ms: int) -> TopicRetention:
        """Parses `latest`, `7 days`, `50 GB`, or a time and a size separated by a comma.

        Args:
            text: The setting.
            time_ms: The source's default retention: how long `latest` keeps a tombstone.

        Raises:
            CaptureSpecError: The text has none of these forms.
        """
        if text.strip().lower() == _LATEST:
            return cls(time_ms, latest=True)
        found: dict[str, int] = {}
        for part in text.split(","):
            amount = _AMOUNT.fullmatch(part.strip())
            kind, factor = _UNITS.get(_singular(amount[2]), ("", 0)) if amount else ("", 0)
            if not amount or not kind or kind in found or not int(amount[1]):
                raise CaptureSpecError(
                    "the retention is invalid",
                    detail=text[:80],
                    hint='"latest", "7 days", "36 hours", "50 GB", or "7 days, 50 GB"',
                )
            found[kind] = int(amount[1]) * factor
        return cls(found.get("time_ms"), found.get("size_bytes"))

    def properties(self) -> dict[str, str]:
        """Returns the topic properties that implement the policy."""
        if self.latest:
            kept_ms = str(self.time_ms if self.time_ms is not None else _FOREVER)
            return {
                "cleanup.policy": "compact",
                # a reader that is never later than this sees every delete and every change
                "delete.retention.ms": kept_ms,
                "min.compaction.lag.ms": kept_ms,
                # the active segment is never compacted, so a new one must begin regularly
                "segment.ms": str(_HOUR_MS),
            }
        return {
            "cleanup.policy": "delete",
            "retention.ms": str(self.time_ms if self.time_ms is not None else _FOREVER),
            **self._by_size(),
        }

    def _by_size(self) -> Mapping[str, str]:
        if self.size_bytes is None:
            return {}
        piece = min(max(self.size_bytes // SEGMENTS_MIN, _SEGMENT_BYTES_MIN), _SEGMENT_BYTES_MAX)
        return {"retention.bytes": str(self.size_bytes), "segment.bytes": str(piece)}

    def __str__(self) -> str:
        if self.latest:
            return _LATEST
        parts = []
        if self.time_ms is not None:
            parts.append(f"{self.time_ms / _HOUR_MS:g} hours")
        if self.size_bytes is not None:
            parts.append(f"{self.size_bytes} bytes")
        return ", ".join(parts) or "for ever"


def _singular(unit: str) -> str:
    lower = unit.lower()
    return lower[:-1] if lower in {"minutes", "hours", "days"} else lower
