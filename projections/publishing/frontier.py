"""Frontier: up to which source position a query's views are complete.

Sample the slot's `confirmed_flush_lsn`, then the end offsets of the topics. The connector moves
the slot only after Kafka has acknowledged every record up to there, so all of them lie below
those offsets; a query that has finished a batch reaching them has applied everything up to that
position. The order of the two samples is what makes it true.

One position proves nothing: the one at which the slot was created, which stays until the connector
has begun to stream. A position therefore counts only once the slot has moved.
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
"""Samples kept while a query lags; the oldest unreached one is always among them."""


@dataclass(frozen=True, slots=True)
class FrontierSample:
    """A position and the offsets below which all records up to it lie."""

    position: Lsn
    ends: Offsets


class Frontier:
    """Follows one query.

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
                views has not been read.
            ends: Next offset of every partition of the topics.
        """
        if position is None or (self._first is not None and position < self._first):
            self._first = None  # another slot than before: it has to move before it counts
            self._samples.clear()
        if position is None:
            return
        if self._first is None:
            self._first = position
        if position == self._first or (self._samples and self._samples[-1].position == position):
            return
        wanted = {place: end for place, end in ends.items() if place[0] in self.topics}
        if len(self._samples) >= SAMPLES_MAX:
            self._samples.pop()  # the newest gives way: the oldest is reached first
        self._samples.append(FrontierSample(position, wanted))

    def advance(self, committed: Mapping[tuple[str, int], int]) -> Lsn | None:
        """Takes what the query has finished.

        Args:
            committed: Next offset of every partition, as of the query's last finished batch.

        Returns:
            The newest position that is reached since the last call; None if none is.
        """
        reached = None
        while self._samples and _covers(committed, self._samples[0].ends):
            reached = self._samples.popleft().position
        return reached


def _covers(committed: Mapping[tuple[str, int], int], ends: Mapping[tuple[str, int], int]) -> bool:
    return all(end == 0 or committed.get(place, 0) >= end for place, end in ends.items())
