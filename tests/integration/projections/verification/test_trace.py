"""One row on its way: its changes in the log, and what each store has of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from projections.definition.views import Store
from projections.erasure.archive import ArchivedTopic, Through
from projections.errors import TraceError
from projections.verification.trace import StoredState, trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fix_capture import Captured
    from tests.fix_spark import ViewJob

pytestmark = pytest.mark.integration


def test_a_row_is_found_at_each_stage_of_its_way(
    capture: Callable[..., Captured], view_job: Callable[..., ViewJob], database: str
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE stock (shop text, sku text, n int, PRIMARY KEY (shop, sku))"
        )
        connection.execute("CREATE TABLE notes (note text)")
        connection.execute("CREATE TABLE marks (id int PRIMARY KEY)")
        connection.execute("INSERT INTO stock VALUES ('a:1', 'x', 1), ('b', 'y', 1)")
    shop = capture("stock", "notes", "marks", topic_partitions=2)
    job = view_job(shop)
    job.start()
    shop.execute("UPDATE stock SET n = 2 WHERE sku = 'x'", "DELETE FROM stock WHERE sku = 'y'")
    assert [] == job.catch_up()
    stock, notes = (
        next(plan for plan in job.spec.plans if plan.name.endswith(name))
        for name in ("stock", "notes")
    )

    kept = trace(job.spec.config, stock, "a\\:1:x")
    gone = trace(job.spec.config, stock, "b:y", 1)
    unknown = trace(job.spec.config, stock, "c:z")

    assert ["r", "u"] == [change.operation for change in kept.changes]
    first, second = kept.changes
    assert (first.partition, first.offset) < (second.partition, second.offset)
    assert first.position < second.position
    assert second.transaction_id is not None
    assert [Store.CACHE, Store.SEARCH, Store.TABLE] == [each.store for each in kept.stores]
    for each in (*kept.stores, *gone.stores):
        assert StoredState.HAS_IT is each.state
        assert each.batch is not None
        assert each.applied_through is not None
    assert {second.position} == {each.position for each in kept.stores}
    assert ["d"] == [change.operation for change in gone.changes]
    assert () == unknown.changes
    assert {StoredState.NEVER_SEEN} == {each.state for each in unknown.stores}
    with pytest.raises(TraceError):
        trace(job.spec.config, notes, "x")
    # whoever forgets writes files of the archive anew, with another engine
    others = ArchivedTopic(job.spec.config.archive, next(iter(stock.topics)))
    assert 2 == others.erase(['{"shop":"b","sku":"y"}'], Through(1, gone.changes[0].position))
    assert kept.changes == trace(job.spec.config, stock, "a\\:1:x").changes

    job.stop()
    shop.execute("UPDATE stock SET n = 3 WHERE sku = 'x'")
    shop.records("marks")  # it comes after
    behind = trace(job.spec.config, stock, "a\\:1:x")

    assert ["r", "u", "u"] == [change.operation for change in behind.changes]
    assert {StoredState.BEHIND} == {each.state for each in behind.stores}
    assert {None} == {each.batch for each in behind.stores}
