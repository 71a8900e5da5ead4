"""The views that a store's batches have, of which there may be more from one batch on."""

from __future__ import annotations

from cdc.table import Column, ColumnKind, TableName, TableSchema
from projections.definition.views import Store
from projections.job.active_plans import ActivePlans
from projections.planning.view_plan import ViewPlan


def plan(name: str, table: str) -> ViewPlan:
    place = TableName("public", table)
    schema = TableSchema(place, (Column("id", ColumnKind.INTEGER, "bigint", nullable=False),))
    return ViewPlan(name, "shop", place.topic("shop"), schema, ("id",), frozenset({Store.CACHE}))


NOTES, LATE, COMING = plan("notes", "notes"), plan("late", "late"), plan("notes.v2", "notes")
TOPIC = NOTES.topic


def test_batches_have_what_is_added_before_all_others_and_begin_where_the_last_has_ended() -> None:
    active_plans = ActivePlans([NOTES, LATE])
    before = active_plans.sent
    assert {} == active_plans.stands

    active_plans.written({(TOPIC, 0): 7})
    active_plans.add([COMING])

    assert {(TOPIC, 0): 7} == active_plans.stands
    assert (COMING, NOTES, LATE) == active_plans.plans == tuple(active_plans.sent)
    assert (NOTES, LATE) == tuple(before)
