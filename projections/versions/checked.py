"""A sink that counts what its store has and should not: rows that it does not take."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from projections.changes.row_batch import RowPart
    from projections.changes.row_change import Applied, ReadSpan, RowChange
    from projections.changes.sink import Holding, Sink
    from projections.planning.view_plan import ViewPlan


class CheckedSink:
    """Writes to a store, and looks whether it has at least what it was given.

    A table that was loaded straight from the source takes nothing of that load a second time, as
    it has that. If it has lost some of it, only a read of those rows brings them back.

    Args:
        sink: The store.

    Attributes:
        left: Changes that it has not, and has not refused either.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.left = 0

    def prepare(self, plan: ViewPlan) -> None:
        """See `Sink.prepare`."""
        self._sink.prepare(plan)

    def apply(self, plan: ViewPlan, changes: Sequence[RowChange]) -> Applied:
        """Writes changes and looks whether they are there; see `Sink.apply`."""
        applied = self._sink.apply(plan, changes)
        if applied.stale:
            refused = {(each.change.key, each.change.version) for each in applied.refused}
            there = self._sink.versions(plan, changes)
            self.left += sum(
                version < change.version and (change.key, change.version) not in refused
                for change, version in zip(changes, there, strict=True)
            )
        return applied

    def versions(self, plan: ViewPlan, changes: Sequence[RowChange]) -> list[int]:
        """See `Sink.versions`."""
        return self._sink.versions(plan, changes)

    def stored(self, plan: ViewPlan, keys: Sequence[tuple[object, ...]]) -> list[Holding]:
        """See `Sink.stored`."""
        return self._sink.stored(plan, keys)

    def sweep(self, plan: ViewPlan, below_version: int, reads: Sequence[ReadSpan] = ()) -> int:
        """See `Sink.sweep`."""
        return self._sink.sweep(plan, below_version, reads)

    def documents(self, plan: ViewPlan) -> Iterator[Mapping[str, object]]:
        """See `Sink.documents`."""
        return self._sink.documents(plan)

    def parts(self, plan: ViewPlan) -> Iterator[RowPart]:
        """See `Sink.parts`."""
        return self._sink.parts(plan)

    def versioned(self, plan: ViewPlan) -> Iterator[tuple[int, Mapping[str, object]]]:
        """See `Sink.versioned`."""
        return self._sink.versioned(plan)

    def close(self) -> None:
        """See `Sink.close`."""
        self._sink.close()
