"""Values of every type, from Postgres through Spark into every store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from cdc.postgres import catalog
from cdc.table import TableName
from projections.definition.views import MirrorView, Store
from projections.planning.view_plan import plan_views
from projections.stores.factory import open_sink
from projections.verification import source_rows
from tests.fix_types import HELD, insert_all, make_table, make_types

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fix_capture import Captured
    from tests.fix_spark import ViewJob

# One array of each type would only be one more text.
COLUMNS = [column for column in HELD if column.name.startswith("s")]

pytestmark = [pytest.mark.integration, pytest.mark.spark]


def test_every_value_is_the_same_in_every_store_read_and_streamed(
    database: str, capture: Callable[..., Captured], view_job: Callable[..., ViewJob]
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        make_types(connection)
        make_table(connection, "held", COLUMNS)
        count = insert_all(connection, "held", COLUMNS, 1)
        captured = capture("public.held")
        insert_all(connection, "held", COLUMNS, 1000)
    job = view_job(captured)
    job.start()

    different = job.catch_up()

    assert [] == different
    (plan,) = job.spec.plans
    with source_rows.snapshot(database) as connection:
        wanted = {row["id"]: row for row in source_rows.documents(connection, plan)}
    assert 2 * count == len(wanted)
    for store in Store:
        sink = open_sink(store, job.spec.config.addresses)
        assert wanted.keys() == {row["id"] for row in sink.documents(plan)}
        sink.close()


def test_a_value_that_no_store_holds_shows_in_a_comparison_as_its_text(database: str) -> None:
    table = TableName("public", "far")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE far (id int PRIMARY KEY, at timestamptz, n numeric)")
        connection.execute("INSERT INTO far VALUES (1, 'infinity', 1.50), (2, '2026-01-01', 'NaN')")
        schemas = catalog.describe(connection, [table])
    view = MirrorView("far", "shop", table, (), frozenset({Store.CACHE}))
    (plan,) = plan_views([view], schemas)

    with source_rows.snapshot(database) as connection:
        rows = list(source_rows.documents(connection, plan))

    assert [
        {"id": 1, "at": "infinity", "n": "1.50"},
        {"id": 2, "at": "2026-01-01T00:00:00.000000Z", "n": "NaN"},
    ] == rows
