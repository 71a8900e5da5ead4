"""Frontier: up to which source position a query's views are complete.

Sample the slot's `confirmed_flush_lsn`, then the end offsets of the topics. The connector moves the
slot only after Kafka has acknowledged every record up to there, so all of them are below those
offsets; a query that has finished a batch reaching them has applied everything up to that position.
The order of the two samples is essential.

One position proves nothing: the one at which the slot was created, which stays until the connector
begins to stream. A position therefore counts only once the slot has moved.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cdc.lsn import Lsn
    from projections.common.offsets import Offsets

SAMPLES_MAX: Final = 120
"""Samples stored while a query lags; the oldest one not reached is always among them."""


@dataclass(frozen=True, slots=True)
class FrontierSample:
    """A position, and offsets such that all records up to the position are below them."""

    position: Lsn
    ends: Offsets


class Frontier:
    """Tracks one query.

    Args:
        topics: Topics of the query's views.
    """

    def __init__(self, topics: frozenset[str]) -> None:
        self.topics = topics
        self._first: Lsn | None = None
        self._samples: deque[FrontierSample] = deque()

    def sample(self, position: Lsn | None, ends: Mapping[tuple[str, int], int]) -> None:
        """Takes a sample; `position` must have been read before `ends`.

        Args:
            position: The slot's confirmed position; None without a slot, or while a table of the
                views has not been read yet.
            ends: Next offset of every partition of the topics.
        """
        if position is None or (self._first is not None and position < self._first):
            self._first = None  # another slot: it must move before its position counts
            self._samples.clear()
        if position is None:
            return
        if self._first is None:
            self._first = position
        if position == self._first or (self._samples and self._samples[-1].position == position):
            return
        wanted = {place: end for place, end in ends.items() if place[0] in self.topics}
        if len(self._samples) >= SAMPLES_MAX:
            self._samples.pop()  # drops the newest sample: the oldest is reached first
        self._samples.append(FrontierSample(position, wanted))

    def advance(self, committed: Mapping[tuple[str, int], int]) -> Lsn | None:
        """Records how far the query has finished.

        Args:
            committed: Next offset of every partition, as of the query's last finished batch.

        Returns:
            The newest position reached since the last call; None if there is none.
        """
        reached = None
        while self._samples and _covers(committed, self._samples[0].ends):
            reached = self._samples.popleft().position
        return reached


def _covers(committed: Mapping[tuple[str, int], int], ends: Mapping[tuple[str, int], int]) -> bool:
    return all(end == 0 or committed.get(place, 0) >= end for place, end in ends.items())
