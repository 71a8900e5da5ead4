"""Histories as the job keeps them: from the log of a real table to two times in Delta."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headwater.reading import sql as reading_sql
from projections.definition.views import HistoryColumns, MirrorView, Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fix_capture import Captured
    from tests.fix_spark import ViewJob

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=2),
    pytest.mark.timeout(1800),
]

PRICES = """
CREATE TABLE prices (
    id int PRIMARY KEY, price numeric(9,2), note text, big text,
    since timestamptz DEFAULT '2026-01-01'
);
ALTER TABLE prices ALTER big SET STORAGE EXTERNAL;
INSERT INTO prices (id, price, big)
SELECT n, n, repeat(n::text, 3000) FROM generate_series(1, 200) n
"""
CHANGES = (
    "UPDATE prices SET price = price + 1 WHERE id <= 20",
    "UPDATE prices SET note = 'seen' WHERE id <= 10",
    "BEGIN; UPDATE prices SET price = 0; UPDATE prices SET price = id + 6; COMMIT",
    "DELETE FROM prices WHERE id = 2",
    "INSERT INTO prices (id, price, since) VALUES (2, 5, '2026-02-01')",
    "UPDATE prices SET price = 5, since = '2025-06-01' WHERE id = 3",
    "UPDATE prices SET big = repeat('eleven', 1000) WHERE id = 11",
    "UPDATE prices SET id = 1000 WHERE id = 11",
)
STATES = """
SELECT count(*) AS states, sum(CASE WHEN is_current THEN 1 ELSE 0 END) AS current
  FROM {view} WHERE id = {id} AND recorded_to IS NULL
"""
PRICE = "SELECT price FROM {view} WHERE id = {id} AND is_current"
BIG = "SELECT length(big) AS n FROM {view} WHERE id = {id}"


def test_the_job_keeps_histories_through_reads_changes_and_a_truncate(
    capture: Callable[..., Captured], view_job: Callable[..., ViewJob], database: str
) -> None:
    import psycopg

    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(PRICES)
    captured = capture("public.prices")
    job = _job(captured, view_job)
    commits, sequenced, _ = (view.name for view in job.spec.views)
    job.start()
    assert job.catch_up() == []

    captured.execute(*CHANGES)

    assert job.catch_up() == []
    expected = {1: (3, 1), 2: (4, 1), 3: (4, 1), 4: (3, 1), 11: (3, 0), 30: (2, 1), 1000: (1, 1)}
    assert expected == {number: _states(job, commits, number) for number in expected}
    # what was recorded last began first, so the price that was known before holds on
    found = _query(job, PRICE.format(view=sequenced, id=3))
    assert [{"price": 9}] == [{"price": int(row["price"])} for row in found]
    (moved,) = _query(job, BIG.format(view=commits, id=1000))
    assert moved["n"] == 6000
    captured.execute("TRUNCATE prices", "INSERT INTO prices (id, price) VALUES (4, 4)")
    assert job.catch_up() == []
    assert {4: (4, 1), 5: (3, 0)} == {n: _states(job, commits, n) for n in (4, 5)}
    assert job.stop() == 0


def _job(captured: Captured, view_job: Callable[..., ViewJob]) -> ViewJob:
    name, (table,) = captured.spec.name, captured.spec.tables
    price = HistoryColumns(tracked=("price",))
    by_time = HistoryColumns(tracked=("price",), sequence_by="since")
    to = frozenset({Store.TABLE})
    return view_job(
        captured,
        views=[
            MirrorView(f"{name}_history", name, table, (), to, history=price),
            MirrorView(
                f"{name}_by_time", name, table, ("id",), to, history=by_time, left_out=("big",)
            ),
            MirrorView(f"{name}_latest", name, table, (), to),
        ],
    )


def _query(job: ViewJob, sql: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = reading_sql.run(sql, job.spec.config.addresses.tables).to_pylist()
    return found


def _states(job: ViewJob, view: str, number: int) -> tuple[int, int]:
    (row,) = _query(job, STATES.format(view=view, id=number))
    return row["states"], row["current"] or 0
