"""What tables cost that nothing happens to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalake import DeltaTable

from cdc.lsn import Lsn
from projections.changes import applier
from projections.changes.applier import TaskApplier
from projections.publishing.frontier import Frontier
from projections.stores.delta.table_sink import TableSink
from tests.oracles.sink_contract import make_plan, make_row, upsert

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_table_is_looked_at_again_only_if_somebody_wrote_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    update = DeltaTable.update_incremental

    def noted(table: DeltaTable) -> None:
        looked.append(table.table_uri)
        update(table)

    monkeypatch.setattr(DeltaTable, "update_incremental", noted)
    plan = make_plan()
    ours, other = TableSink(tmp_path), TableSink(tmp_path)
    ours.prepare(plan)
    other.prepare(plan)
    before = ours.version(plan)
    looked.clear()

    assert before == ours.version(plan)
    assert [] == looked
    for version in (1, 2, 3):
        other.apply(plan, [upsert(version, make_row(version))])
    assert other.version(plan) == ours.version(plan) == before + 3
    assert 1 == len(looked)


def test_a_topic_without_records_costs_a_batch_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    reducer = applier.reducer

    def noted(plans, topic):
        made.append(topic)
        return reducer(plans, topic)

    monkeypatch.setattr(applier, "reducer", noted)
    plan = make_plan()
    idle = TaskApplier([plan], lambda: None)
    idle.finish()
    assert [] == made

    idle.take(plan.topic, [])

    assert [plan.topic] == made


def test_a_frontier_needs_the_ends_of_its_own_topics_only() -> None:
    own, all_of_them = Frontier(frozenset({"t"})), Frontier(frozenset({"t"}))
    ends = {("t", 0): 5, ("idle", 0): 9}
    for position in (1, 2):
        all_of_them.sample(Lsn(position), ends)
        own.sample(Lsn(position), {("t", 0): 5})

    assert Lsn(2) == own.advance({("t", 0): 5}) == all_of_them.advance({("t", 0): 5})
