"""QueryBacklog: how many records a query has still to read, and when it will have read them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.streaming.listener import StreamingQueryProgress

SAMPLES_KEPT: Final = 10
"""Batches that the estimate looks back at: few, as a connector that catches up, too, adds much."""


def unread_records(progress: StreamingQueryProgress) -> int:
    """Returns the records after those of a query's last batch, of all its topics.

    Spark asks Kafka for the ends of the topics before each batch. Records that compaction has
    removed, and marks of transactions, count as records.
    """
    count = 0
    for source in progress.sources:
        latest, read = _offsets(source.latestOffset), _offsets(source.endOffset)
        for topic, partitions in latest.items():
            processed = read.get(topic, {})
            count += sum(max(0, end - processed.get(name, 0)) for name, end in partitions.items())
    return count


@dataclass(slots=True)
class QueryBacklog:
    """The unread records of a query after each of its last batches.

    Attributes:
        batch_max: Most records of a batch. Fewer unread records than that are no backlog.
    """

    batch_max: int
    _samples: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=SAMPLES_KEPT))

    def add(self, at_s: float, records: int) -> None:
        """Adds the unread records after a batch.

        Args:
            at_s: Time of the batch, in seconds.
            records: How many there were.
        """
        if records <= self.batch_max:
            self._samples.clear()
        else:
            self._samples.append((at_s, records))

    def clear(self) -> None:
        """Forgets the batches so far."""
        self._samples.clear()

    def figures(self) -> dict[str, Any] | None:
        """Returns the backlog for the status file; None if there is none.

        `records` is the number of unread records, `fewer_per_s` how many fewer they become each
        second (None after a single batch, negative if they become more), and `left_s` the seconds
        until all are read at that rate, None if they never are.
        """
        if not self._samples:
            return None
        (first_s, before), (last_s, records) = self._samples[0], self._samples[-1]
        rate = (before - records) / (last_s - first_s) if last_s > first_s else None
        return {
            "records": records,
            "fewer_per_s": None if rate is None else round(rate, 1),
            "left_s": round(records / rate, 1) if rate and rate > 0 else None,
        }


def _offsets(text: str) -> Mapping[str, Mapping[str, int]]:
    offsets = orjson.loads(text) if text else None
    return offsets if isinstance(offsets, dict) else {}
