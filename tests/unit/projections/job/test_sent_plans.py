"""Plans that travel with every batch are read once by whoever gets them."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import TYPE_CHECKING

from cdc.table import Column, ColumnKind, TableName, TableSchema
from projections.definition.views import Store
from projections.job import active_plans
from projections.job.active_plans import SentPlans
from projections.job.batch_writer import BatchWriter
from projections.planning.view_plan import ViewPlan

if TYPE_CHECKING:
    import pytest

TABLE = TableSchema(
    TableName("public", "orders"), (Column("id", ColumnKind.INTEGER, "bigint"),), ("id",)
)


def plan(name: str) -> ViewPlan:
    return ViewPlan(name, "shop", f"t.{name}", TABLE, ("id",), frozenset(Store))


def received(content: bytes) -> SentPlans:
    found = pickle.loads(content)  # noqa: S301  # our own
    assert isinstance(found, SentPlans)
    return found


def test_plans_arrive_as_they_were_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active_plans, "_known", type(active_plans._known)())
    plans = plan("orders"), plan("customers")

    found = received(pickle.dumps(SentPlans(plans)))

    assert plans == tuple(found)
    assert (2, plans[1], plans[:1]) == (len(found), found[1], found[:1])


def test_the_same_plans_are_read_once_and_others_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active_plans, "_known", type(active_plans._known)())
    first, second = (SentPlans([plan(name)]) for name in ("orders", "customers"))

    found = [received(pickle.dumps(each)) for each in (first, first, second, first)]

    assert found[0][0] is found[1][0] is found[3][0]
    assert "customers" == found[2][0].name


def test_few_sets_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active_plans, "_known", known := type(active_plans._known)())

    for number in range(20):
        assert f"v{number}" == received(pickle.dumps(SentPlans([plan(f"v{number}")])))[0].name

    assert active_plans._KEPT_MAX == len(known)


def test_a_writer_of_another_batch_brings_the_same_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active_plans, "_known", type(active_plans._known)())
    writer = BatchWriter(Store.CACHE, SentPlans([plan("orders")]), None, None)  # type: ignore[arg-type]

    one, other = (
        pickle.loads(pickle.dumps(replace(writer, turn=turn)))  # noqa: S301  # our own
        for turn in (1, 2)
    )

    assert (1, 2) == (one.turn, other.turn)
    assert one.plans is other.plans
