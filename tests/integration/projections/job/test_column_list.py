"""Views that leave columns out, kept by the job: in no store, and never in the way."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import orjson
import psycopg
import pytest
import redis
from deltalake import DeltaTable

from cdc.table import TableName
from headwater.reading import sql
from projections.definition.columns import VERSION_COLUMN
from projections.definition.views import HistoryColumns, MirrorView, Store
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
    pytest.mark.timeout(1800),
]

PEOPLE = TableName("public", "people")
MADE = """
CREATE TABLE people (
    id int PRIMARY KEY, name text, secret text, big text, born timestamptz DEFAULT '-infinity'
);
ALTER TABLE people ALTER big SET STORAGE EXTERNAL;
INSERT INTO people
SELECT n, 'name ' || n, 'secret ' || n, repeat(n::text, 3000) FROM generate_series(1, 100) n
"""
# no store holds such a time; the first updates leave `big` as it is
CHANGES = (
    "UPDATE people SET name = 'changed' WHERE id <= 10",
    "UPDATE people SET id = 1000 WHERE id = 11",
    (
        "BEGIN; UPDATE people SET secret = '1'; ALTER TABLE people ALTER secret TYPE int USING 5;"
        "UPDATE people SET secret = 6, name = 'retyped' WHERE id = 12; COMMIT"
    ),
    "ALTER TABLE people RENAME secret TO hidden; UPDATE people SET name = 'named' WHERE id = 13",
    "ALTER TABLE people DROP born; UPDATE people SET name = 'dropped' WHERE id = 14",
    "DELETE FROM people WHERE id = 15",
)
FILLED = """
SELECT min(length(big)) AS n, sum(hidden) AS hidden FROM {view} WHERE is_current
"""
WAITING = "SELECT count(*) FROM headwater.quarantine"


def test_what_a_view_leaves_out_is_in_no_store_and_never_in_the_way(
    capture: Callable[..., Captured], view_job: Callable[..., ViewJob], database: str
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(MADE)
    captured = capture("public.people")
    job = view_job(captured, views=_views(captured, "secret", "big", "born"), load_rows_min=1)
    with reading(captured):
        job.start()
        assert job.catch_up() == []
        assert b"view loaded from the source" in (job.spec.config.home / "job.log").read_bytes()
        assert _columns(job, captured) == _each({"id", "name"})

        captured.execute(*CHANGES)
        assert job.catch_up() == []
        assert (job.bound().paused, _source(database, WAITING)) == ((), [(0,)])
        assert _columns(job, captured) == _each({"id", "name"})
        assert job.stop() == 0

        captured.execute("UPDATE people SET name = 'later' WHERE id = 16")
        # it has another name by now; `big` has not moved since it was read
        job = view_job(captured, views=_views(captured))
        job.start()
        assert job.catch_up() == []
        every = {"id", "name", "hidden", "big"}
        assert _columns(job, captured) == _each(every)
        filled = FILLED.format(view=f"{captured.spec.name}_history")
        (found,) = sql.run(filled, job.spec.config.addresses.tables).to_pylist()
        assert found == {"n": 3000, "hidden": 99 * 5 + 1}
        assert job.stop() == 0

        job = view_job(captured, views=_views(captured, "name"))
        job.start()
        assert job.catch_up() == []
        assert _columns(job, captured) == _each(every - {"name"})
        assert job.stop() == 0


def _views(captured: Captured, *out: str) -> list[MirrorView]:
    """A mirror in every store, and a history."""
    source, table = captured.spec.name, frozenset({Store.TABLE})
    kept = HistoryColumns()
    return [
        MirrorView(f"{source}_people", source, PEOPLE, (), frozenset(Store), left_out=out),
        MirrorView(f"{source}_history", source, PEOPLE, (), table, history=kept, left_out=out),
    ]


def _each(columns: set[str]) -> dict[Store, set[str]]:
    return dict.fromkeys(Store, columns)


def _columns(job: ViewJob, captured: Captured) -> dict[Store, set[str]]:
    """What the rows of the mirror have in each store, as it lies there."""
    name, spec = f"{captured.spec.name}_people", job.spec.config.addresses
    table = DeltaTable(str(spec.tables / name)).schema().to_arrow().names
    with closing(SearchEngine(spec.search_url)) as engine:
        documents = [hit["_source"] for page in engine.scanned(name, {}) for hit in page]
    with redis.Redis.from_url(spec.cache_url) as client:
        keys: Any = client.keys(f"{spec.cache_prefix}{name}:*")
        values: list[Any] = client.mget(keys)
    cached = [fields for fields in map(orjson.loads, values) if "id" in fields]
    assert len(documents) == len(cached)
    return {
        Store.TABLE: {*table} - {VERSION_COLUMN},
        Store.SEARCH: {field for row in documents for field in row},
        Store.CACHE: {field for row in cached for field in row} - {VERSION_COLUMN},
    }


def _source(database: str, text: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database) as connection:
        return connection.execute(text.encode()).fetchall()
