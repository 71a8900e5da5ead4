"""EarliestTimesReducer: the events of a topic, each with the earliest times of its records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from projections.changes.reducer import TopicReducer

if TYPE_CHECKING:
    from collections.abc import Collection

    from projections.changes.raw_change import RawChange


class EarliestTimesReducer(TopicReducer):
    """Keeps the newest change of every event, with the times of all its records.

    An event is added once. A snapshot row of the event lacks its commit time, and reached the
    broker later. Stores keep the earliest times, so the result must not depend on whether the
    records of an event arrive in one batch.
    """

    _every = True

    def __len__(self) -> int:
        return len(self._newest) + len(self._passed)

    def _items(self) -> Collection[tuple[bytes | str, RawChange]]:
        for raw in self._passed:
            key = raw.key or b""
            self._newest[key] = _with_times_of(self._newest[key], raw)
        return super()._items()


def _with_times_of(newest: RawChange, other: RawChange) -> RawChange:
    if newest.row is None or other.row is None:
        return newest
    return replace(
        newest,
        committed_at_us=_earliest(newest.committed_at_us, other.committed_at_us),
        sent_at_us=_earliest(newest.first_sent_at_us, other.first_sent_at_us),
    )


def _earliest(*times_us: int) -> int:
    return min(filter(None, times_us), default=0)
