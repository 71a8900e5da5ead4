"""A view that is asked for stays asked for until each of its places is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from projections.definition.views import Store
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.verification.requests import Renewals

if TYPE_CHECKING:
    from pathlib import Path

ALL = (Store.TABLE, Store.SEARCH, Store.CACHE)


@pytest.fixture
def renewals(tmp_path: Path) -> Renewals:
    return Renewals(JobSpec(JobConfig("shop", "", "", "", tmp_path, "", "", ())).config)


def test_other_stores_come_after_the_table_and_at_its_boundary(renewals: Renewals) -> None:
    asked = renewals.ask("totals", ALL)

    assert None is renewals.due("totals", Store.SEARCH, 70)
    assert asked == renewals.due("totals", Store.TABLE, 70)
    renewals.done(asked, Store.TABLE, 70)
    # a store that is at an older boundary would be given what was damaged
    assert None is renewals.due("totals", Store.SEARCH, 69)
    assert None is renewals.due("totals", Store.TABLE, 71)
    for store in (Store.SEARCH, Store.CACHE):
        due = renewals.due("totals", store, 70)
        assert due is not None
        renewals.done(due, store, 70)
    assert None is renewals.of_view("totals")


def test_without_the_table_a_store_is_due_at_once(renewals: Renewals) -> None:
    asked = renewals.ask("totals", [Store.CACHE])

    assert asked == renewals.due("totals", Store.CACHE, 1)
    assert None is renewals.due("totals", Store.SEARCH, 1)
    assert None is renewals.due("others", Store.CACHE, 1)


def test_what_is_asked_for_again_is_not_done_by_who_did_the_former(renewals: Renewals) -> None:
    former = renewals.ask("totals", [Store.TABLE])
    later = renewals.ask("totals", [Store.CACHE])
    renewals.done(former, Store.TABLE, 5)

    assert later == renewals.of_view("totals")
    assert {Store.TABLE, Store.CACHE} == set(later.waiting)
    renewals.done(later, Store.TABLE, 6)
    renewals.done(later, Store.CACHE, 6)
    renewals.done(later, Store.CACHE, 6)
    assert None is renewals.of_view("totals")
