"""Freshness: the time until a reader sees a commit, measured end to end from outside.

A prober commits a rising counter into one row of a captured table. For each store, one reader polls
that row as a user would, and records when each counter, or a later one, first appears. The time
runs from *before* the commit is sent until *after* the response is read, so it is never too short.
It includes the poll interval.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_left
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from headwater.demo.result import Freshness

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headwater.demo.workload import Probe

_PROBE_EVERY_S: Final = 0.15
_ASK_EVERY_S: Final = {"cache": 0.02, "search": 0.1, "table": 0.25}
_JOIN_S: Final = 10.0


class ProbeReader(Protocol):
    """Reads the probe's counter from one store, as a user would."""

    def __call__(self) -> int | None:
        """Returns the counter; None if the row does not exist or the store is unavailable."""


@dataclass(frozen=True, slots=True)
class CounterReading:
    """A counter's value at a time of `time.monotonic`."""

    count: int
    at_s: float


def freshness_of(
    commits: Sequence[CounterReading], sightings: Sequence[CounterReading]
) -> Freshness:
    """Matches commits with the first sighting of the same or a later counter.

    Args:
        commits: When each counter was committed; counters rise.
        sightings: When a new counter was first read; counters rise.
    """
    counts = [sighting.count for sighting in sightings]
    waits_ms = []
    for commit in commits:
        place = bisect_left(counts, commit.count)
        if place < len(sightings):
            waits_ms.append(1000 * (sightings[place].at_s - commit.at_s))
    waits_ms.sort()
    return Freshness(
        p50_ms=quantile(waits_ms, 0.50),
        p99_ms=quantile(waits_ms, 0.99),
        max_ms=round(waits_ms[-1], 1) if waits_ms else math.nan,
        samples=len(waits_ms),
        unseen=len(commits) - len(waits_ms),
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Returns the percentile `share` by the nearest-rank method."""
    if not ordered:
        return math.nan
    return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 1)


@dataclass(slots=True)
class FreshnessMeter:
    """Commits probes and polls the stores, in threads.

    Attributes:
        dsn: The source.
        probe: The row to write.
        readers: One reader per store.
    """

    dsn: str = field(repr=False)
    probe: Probe
    readers: Mapping[str, ProbeReader]
    _commits: list[CounterReading] = field(default_factory=list)
    _sightings: dict[str, list[CounterReading]] = field(default_factory=dict)
    _stop_probing: threading.Event = field(default_factory=threading.Event)
    _stop_reading: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        """Starts the prober and the readers."""
        self._sightings = {store: [] for store in self.readers}
        self._run(self._probe)
        for store, reader in self.readers.items():
            self._run(self._watch, store, reader)

    def stop_probing(self) -> None:
        """Stops the prober; the readers continue, to see the last commits."""
        self._stop_probing.set()
        self._threads[0].join(_JOIN_S)

    def stop(self) -> dict[str, Freshness]:
        """Ends all threads; returns the freshness by store."""
        self._stop_probing.set()
        self._stop_reading.set()
        for thread in self._threads:
            thread.join(_JOIN_S)
        return self.so_far()

    def so_far(self) -> dict[str, Freshness]:
        """Returns the freshness by store until now, without commits not yet seen."""
        commits = list(self._commits)
        return {store: freshness_of(commits, list(seen)) for store, seen in self._sightings.items()}

    def within(self, since_s: float, until_s: float) -> dict[str, Freshness]:
        """Returns the freshness by store of the commits within a period of `time.monotonic`."""
        commits = [each for each in list(self._commits) if since_s <= each.at_s < until_s]
        return {store: freshness_of(commits, list(seen)) for store, seen in self._sightings.items()}

    def sighted(self) -> bool:
        """Whether every reader has seen a counter."""
        return all(self._sightings.values())

    def all_seen(self) -> bool:
        """Whether every reader has seen the last commit."""
        return self.seen_until(math.inf)

    def seen_until(self, until_s: float) -> bool:
        """Whether every reader has seen all commits until a time of `time.monotonic`."""
        last = max((each.count for each in list(self._commits) if each.at_s < until_s), default=0)
        seen = (moments[-1].count if moments else 0 for moments in self._sightings.values())
        return all(count >= last for count in seen)

    def _run(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _probe(self) -> None:
        import psycopg  # noqa: PLC0415

        count = 0
        with ExitStack() as open_, psycopg.connect(self.dsn, autocommit=True) as connection:
            open_.callback(self._stop_probing.set)
            while not self._stop_probing.wait(_PROBE_EVERY_S):
                count += 1
                began = time.monotonic()
                connection.execute(self.probe.update, [count])
                self._commits.append(CounterReading(count, began))

    def _watch(self, store: str, reader: ProbeReader) -> None:
        seen = self._sightings[store]
        newest = 0
        while not self._stop_reading.wait(_ASK_EVERY_S[store]):
            count = reader()
            if count is not None and count > newest:
                newest = count
                seen.append(CounterReading(count, time.monotonic()))
