"""What a store has not, though it was given it, is counted; what it refuses is told elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fix_log import PLAN

from projections.changes.row_change import Applied, RowChange
from projections.stores.memory import MemorySink
from projections.versions.partial_rebuild import CheckedSink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from projections.planning.view_plan import ViewPlan

LOADED = 5


class Loaded(MemorySink):
    """Takes nothing of a load that it has, as a table does that was filled from the source."""

    def apply(self, plan: ViewPlan, changes: Sequence[RowChange]) -> Applied:
        taken = [change for change in changes if change.version != LOADED]
        return super().apply(plan, taken) + Applied(stale=len(changes) - len(taken))


def change(key: int, version: int, *, kept: tuple[str, ...] = ()) -> RowChange:
    row = {"id": key, "note": "n", "big": None if kept else "b"}
    return RowChange((key,), version, row, 0, kept)


def test_a_row_that_a_store_does_not_take_back_is_counted() -> None:
    sink = CheckedSink(Loaded())
    sink.prepare(PLAN)

    applied = sink.apply(PLAN, [change(1, LOADED), change(2, 7), change(3, 7, kept=("big",))])

    assert (1, 1, 1) == (applied.upserted, applied.stale, len(applied.refused))
    assert 1 == sink.left


def test_a_row_that_a_store_has_is_not_counted() -> None:
    sink = CheckedSink(MemorySink())
    sink.prepare(PLAN)
    sink.apply(PLAN, [change(1, LOADED), change(2, 9)])

    applied = sink.apply(PLAN, [change(1, LOADED), change(2, 7)])

    assert (Applied(stale=2), 0) == (applied, sink.left)
