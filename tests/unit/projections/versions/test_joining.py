"""Where queries go back to for a version that joins, and when it is too late for that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cdc.table import Column, ColumnKind, TableName, TableSchema
from projections.definition.views import Store
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.planning.view_plan import ViewPlan
from projections.versions import handover


def plan(name: str, table: str) -> ViewPlan:
    place = TableName("public", table)
    schema = TableSchema(place, (Column("id", ColumnKind.INTEGER, "bigint", nullable=False),))
    return ViewPlan(name, "shop", place.topic("shop"), schema, ("id",), frozenset({Store.CACHE}))


NOTES, LATE, COMING = plan("notes", "notes"), plan("late", "late"), plan("notes.v2", "notes")
TOPIC, OTHER = NOTES.topic, LATE.topic


@pytest.mark.parametrize(
    ("ends", "back"),
    [
        pytest.param({(TOPIC, 0): 4, (TOPIC, 1): 2}, {0: 4, 1: 2}, id="behind the query"),
        pytest.param({(TOPIC, 0): 9, (TOPIC, 1): 2}, {0: 7, 1: 2}, id="before it in one"),
        pytest.param({(TOPIC, 0): 4}, {0: 4, 1: 0}, id="the archive had nothing of one"),
        pytest.param({}, {0: 0, 1: 0}, id="its table was empty"),
    ],
)
def test_a_query_goes_back_to_where_a_version_that_joins_has_everything(
    ends: dict[tuple[str, int], int], back: dict[int, int]
) -> None:
    plans, home = (COMING, NOTES, LATE), Path("nowhere")
    spec = JobSpec(JobConfig.of_tables("shop", home, ()), joining={"notes.v2": ends})
    spec = replace(spec, plans=plans)
    at = {(TOPIC, 0): 7, (TOPIC, 1): 3, (OTHER, 0): 5}

    found = handover.rewound(spec, Store.CACHE, at)

    assert {**{(TOPIC, number): offset for number, offset in back.items()}, (OTHER, 0): 5} == found


def test_a_version_comes_too_late_once_its_own_topics_have_lost_what_it_lacks() -> None:
    bounds = {(TOPIC, 0): (3, 9), (TOPIC, 1): (0, 2), (OTHER, 0): (8, 9)}

    assert not handover.too_late(COMING, {(TOPIC, 0): 3}, bounds)
    assert handover.too_late(COMING, {(TOPIC, 0): 2}, bounds)
    assert handover.too_late(COMING, {}, bounds)
