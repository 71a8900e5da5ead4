"""A search index that somebody deleted: noticed at once, and filled again by the next start."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest

from projections.errors import IndexLostError
from projections.stores.opensearch.client import SearchEngine
from tests.fix_capture import reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fix_capture import Captured
    from tests.fix_spark import ViewJob

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=2),
    pytest.mark.timeout(1200),
]

TABLES = """
CREATE TABLE notes (id int PRIMARY KEY, body text);
CREATE TABLE others (id int PRIMARY KEY, body text);
INSERT INTO notes SELECT n, 'note' FROM generate_series(1, 40) n;
INSERT INTO others SELECT n, 'other' FROM generate_series(1, 5) n
"""


def test_an_index_that_was_deleted_stops_the_job_and_is_filled_by_the_next(
    database: str,
    search_url: str,
    capture: Callable[..., Captured],
    view_job: Callable[..., ViewJob],
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES)
    captured = capture("notes", "others")
    index = f"{captured.spec.name}_notes-v1"
    job = view_job(captured, to=("search",))
    job.start()
    with reading(captured), closing(SearchEngine(search_url)) as engine:
        assert [] == job.catch_up()
        engine.request("DELETE", f"/{index}")

        captured.execute("UPDATE notes SET body = 'changed' WHERE id = 7")

        assert job.process is not None
        assert 1 == job.process.wait(120)
        assert IndexLostError.code == job.status()["error"]["code"]
        job.start()
        assert [] == job.catch_up()
        assert 0 == job.stop()
        found = engine.request("GET", f"/{captured.spec.name}_notes/_count")
        assert 40 == found["count"]
