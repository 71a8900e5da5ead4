"""Derived views as the job keeps them: from the log of real tables into every store."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.rows import dict_row

from headwater.reading import sql as reading_sql
from projections.definition.registry import load
from projections.job.batch.verify_derived import verify_derived
from projections.publishing.published_versions import Published
from projections.stores.opensearch.query import SearchQuery
from projections.stores.opensearch.searcher import Searcher
from projections.stores.valkey.reader import CacheReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from projections.publishing.published_content import PublishedVersion
    from tests.fix_capture import Captured
    from tests.fix_spark import ViewJob

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=4),
    pytest.mark.timeout(2400),
]

TABLES = """
CREATE TABLE customers (id int PRIMARY KEY, name text);
CREATE TABLE orders (
    id int PRIMARY KEY, customer_id int, status text, total numeric(12,2) NOT NULL
);
CREATE TABLE items (
    order_id int REFERENCES orders ON UPDATE CASCADE ON DELETE CASCADE, line int,
    product text NOT NULL, amount numeric(12,2) NOT NULL, PRIMARY KEY (order_id, line)
);
CREATE TABLE visits (
    id int PRIMARY KEY, person int, kind text, at timestamptz, recorded_at timestamptz
);
CREATE TABLE silent (id int PRIMARY KEY, at timestamptz);
INSERT INTO silent VALUES (1, '2026-01-01');
INSERT INTO customers SELECT n, 'customer ' || n FROM generate_series(1, 30) n;
INSERT INTO orders SELECT n, n % 40, 'placed', 2 * n FROM generate_series(1, 200) n;
INSERT INTO items SELECT n, line, 'chair ' || n % 7, n
  FROM generate_series(1, 200) n, generate_series(1, 2) line
"""
VIEWS = """
from headwater import CacheOptions, Late, Pattern, Session, Step, Tumbling, source, view

TABLES = ["customers", "orders", "items", "visits", "silent"]
shop = source("{name}", tables=[f"public.{{table}}" for table in TABLES])
customers = view.mirror("customers", shop.customers, to=["table"])
orders = view.mirror("orders", shop.orders, to=["table"])
items = view.mirror("items", shop["public.items"], to=["table"])
visits = view.mirror("visits", shop.visits, to=["table"])
silent = view.mirror("silent", shop.silent, to=["table"])

view.document("{name}_document", "document.sql", keys=["id"])
view.aggregate(
    "{name}_by_status",
    orders,
    by=["status"],
    count="orders",
    sums={{"total": "total"}},
    distinct={{"customers": "customer_id"}},
    cache=CacheOptions(leaderboards={{"most": "total"}}),
)
view.aggregate(
    "{name}_per_minute",
    visits,
    by=["kind"],
    window=Tumbling("at", "1 minute"),
    late=Late("recorded_at", after="1 minute", count="late"),
    count="visits",
    distinct={{"people": "person"}},
)
view.aggregate(
    "{name}_sessions",
    visits,
    by=["person"],
    window=Session("at", "10 minutes"),
    count="visits",
    to=["table"],
)
view.pattern(
    "{name}_bought",
    visits,
    by=["person"],
    time="at",
    pattern=Pattern(
        [Step("looked", "kind = 'look'"), Step("bought", "kind = 'buy'")],
        within="15 minutes",
        skip="to next row",
    ),
    to=["table"],
)
# of a table in which nothing happens: nothing waits for it
view.aggregate(
    "{name}_silences", silent, window=Tumbling("at", "1 minute"), count="rows", to=["table"]
)


@view(keys=["status"], to=["search"])
def {name}_large({name}_by_status):
    return large({name}_by_status)


def large(by_status):
    return by_status.where("orders > 50").select("status", "orders")
"""
DOCUMENT = """
SELECT o.id, o.status, o.total, c.name AS customer, i.items
  FROM orders o
  LEFT JOIN customers c ON c.id = o.customer_id
  LEFT JOIN (SELECT order_id, sort_array(collect_list(struct(line, product, amount))) AS items
               FROM items GROUP BY order_id) i ON i.order_id = o.id
"""
DOCUMENTS_AT_THE_SOURCE = """
SELECT o.id, o.status, o.total, c.name AS customer,
       (SELECT array_agg((line || ' ' || product || ' ' || amount)::text ORDER BY line)
          FROM items i WHERE i.order_id = o.id) AS items
  FROM orders o LEFT JOIN customers c ON c.id = o.customer_id ORDER BY o.id
"""
BY_STATUS_AT_THE_SOURCE = """
SELECT status, count(*) AS orders, sum(total) AS total,
       count(DISTINCT customer_id) AS customers
  FROM orders GROUP BY status
"""
IN_TIME_AT_THE_SOURCE = {
    "per_minute": """
        SELECT kind, window_start, window_start + interval '1 minute' AS window_end,
               count(*) FILTER (WHERE NOT late) AS visits,
               count(DISTINCT person) FILTER (WHERE NOT late) AS people,
               count(*) FILTER (WHERE late) AS late
          FROM (SELECT *, recorded_at >= window_start + interval '2 minutes' AS late
                  FROM (SELECT *, date_trunc('minute', at) AS window_start FROM visits) w) v
         GROUP BY kind, window_start
    """,
    "sessions": """
        SELECT person, min(at) AS window_start, max(at) + interval '10 minutes' AS window_end,
               count(*) AS visits
          FROM (SELECT *, count(*) FILTER (WHERE begins) OVER w AS session
                  FROM (SELECT *, coalesce(at - lag(at) OVER w > interval '10 minutes', true)
                                  AS begins
                          FROM visits WINDOW w AS (PARTITION BY person ORDER BY at)) v
                WINDOW w AS (PARTITION BY person ORDER BY at)) s
         GROUP BY person, session
    """,
    "bought": """
        SELECT l.person, l.at AS match_start, min(b.at) AS match_end
          FROM visits l
          JOIN visits b ON b.person = l.person AND b.kind = 'buy'
           AND b.at BETWEEN l.at AND l.at + interval '15 minutes'
         WHERE l.kind = 'look'
         GROUP BY l.id
    """,
    "silences": """
        SELECT at AS window_start, at + interval '1 minute' AS window_end, 1 AS rows FROM silent
    """,
}
MONEY = """
SELECT (SELECT sum(total) FROM orders), (SELECT sum(amount) FROM items),
       (SELECT sum(total) FROM {name}_document), (SELECT sum(total) FROM {name}_by_status)
"""


@pytest.fixture
def job(
    capture: Callable[..., Captured],
    view_job: Callable[..., ViewJob],
    database: str,
    tmp_path: Path,
) -> ViewJob:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES)
    names = ("customers", "orders", "items", "visits", "silent")
    captured = capture(*(f"public.{name}" for name in names))
    module = tmp_path / "project" / "views.py"
    module.parent.mkdir()
    module.write_text(VIEWS.format(name=captured.spec.name))
    (module.parent / "document.sql").write_text(DOCUMENT)
    declared = load(module)
    views = list(declared.views.values())
    return view_job(captured, views=views, derived=tuple(declared.derived.values()), own_jvm=True)


def test_derived_views_equal_their_queries_at_the_source_whatever_happens(job: ViewJob) -> None:
    name = job.spec.config.source
    with writing(job.spec.config.source_dsn):
        job.start()
        await_published(job, 3)
        job.kill()
        assert job.orphans() == []
        job.start()
        await_published(job, 4)

    assert job.catch_up(600) == []  # in search and cache, too
    assert all(report.equal for report in verify_derived(job.bound()))
    with psycopg.connect(job.spec.config.source_dsn, row_factory=dict_row) as connection:
        documents = connection.execute(DOCUMENTS_AT_THE_SOURCE).fetchall()
        by_status = connection.execute(BY_STATUS_AT_THE_SOURCE).fetchall()
        in_time = {
            view: connection.execute(sql).fetchall() for view, sql in IN_TIME_AT_THE_SOURCE.items()
        }
    assert documents == [flat(row) for row in read(job, f"{name}_document", "id")]
    assert sorted(by_status, key=repr) == sorted(read(job, f"{name}_by_status"), key=repr)
    for view, rows in in_time.items():
        assert rows
        kept = [{name: row[name] for name in rows[0]} for row in read(job, f"{name}_{view}")]
        assert instants(rows) == instants(kept)
    large = [row["status"] for row in by_status if row["orders"] > 50]
    assert large
    assert sorted(large, key=repr) == sorted(
        (row["status"] for row in read(job, f"{name}_large")), key=repr
    )
    chairs = {document["id"] for document in documents if "chair 3" in str(document["items"])}
    with Searcher(job.spec.config.search_url) as searcher:
        asked = SearchQuery('"chair 3"', size=500, fields=("items.product",), syntax=True)
        found = searcher.search(f"{name}_document", asked)
    assert chairs == {int(hit.key) for hit in found.hits}
    cache = CacheReader(job.spec.config.cache_url, f"{name}:", f"{name}_by_status")
    totals = {row["status"] or r"\N": row["total"] for row in by_status}
    assert totals == {rank.key: rank.score for rank in cache.top("most")}
    assert not cache.building
    # each transaction changes an order and its items by the same amount
    tables = job.spec.config.addresses.tables
    read_here = {"orders", "items", f"{name}_document", f"{name}_by_status", f"{name}_silences"}
    # of the first boundaries some tables may be missing that are still being read
    published = [each for each in Published(tables, name).all() if read_here <= each.views.keys()]
    assert len(published) > 6
    for version in published:
        (money,) = reading_sql.run(
            MONEY.format(name=name), tables, as_of=str(version.applied_through)
        ).to_pylist()
        assert len(set(money.values())) == 1, (version.number, money)
    assert job.stop() == 0


def read(job: ViewJob, view: str, order: str = "1") -> list[dict[str, Any]]:
    sql = f"SELECT * FROM {view} ORDER BY {order}"  # noqa: S608
    rows = reading_sql.run(sql, job.spec.config.addresses.tables).to_pylist()
    return [{name: v for name, v in row.items() if name != "_version"} for row in rows]


def instants(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Rows in some order of their own, their times in one zone."""
    told = (
        tuple(v.astimezone(UTC) if isinstance(v, datetime) else v for v in row.values())
        for row in rows
    )
    return sorted(told)


def flat(row: dict[str, Any]) -> dict[str, Any]:
    items = row["items"] and [f"{i['line']} {i['product']} {i['amount']}" for i in row["items"]]
    return {**row, "items": items}


def newest(job: ViewJob) -> PublishedVersion | None:
    return Published(job.spec.config.addresses.tables, job.spec.config.source).latest()


def await_published(job: ViewJob, more: int) -> None:
    """Waits until so many further boundaries are published with all views."""
    names = {view.name for view in job.spec.derived}
    before = newest(job)
    wanted = more + (before.number if before is not None else 0)

    def reached(_: dict[str, Any]) -> bool:
        version = newest(job)
        return version is not None and version.number >= wanted and names <= version.views.keys()

    job.wait(reached, timeout_s=600)


@contextmanager
def writing(dsn: str) -> Iterator[None]:
    enough = threading.Event()
    thread = threading.Thread(target=write, args=(dsn, enough, Random(6)))  # noqa: S311
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def write(dsn: str, enough: threading.Event, chance: Random) -> None:
    """Changes orders with their items, and customers, until told to stop."""
    with psycopg.connect(dsn) as connection:
        while not enough.wait(0.03):
            order, amount = chance.randint(1, 220), chance.randint(1, 50)
            kind = chance.random()
            if kind < 0.2:
                connection.execute("DELETE FROM orders WHERE id = %s", (order,))
            elif kind < 0.3:  # under another key, and perhaps back some time
                move = "UPDATE orders SET id = 221 - id WHERE id = %s AND NOT EXISTS"
                connection.execute(
                    f"{move} (SELECT FROM orders WHERE id = 221 - %s)",
                    (order, order),
                )
            elif kind < 0.4:
                connection.execute(
                    "UPDATE customers SET name = name || %s WHERE id = %s", (amount, order % 30)
                )
            elif kind < 0.5:
                status = chance.choice(["paid", "placed", None])
                connection.execute(
                    "UPDATE orders SET status = %s, customer_id = customer_id + 1 WHERE id = %s",
                    (status, order),
                )
            else:
                connection.execute(
                    "INSERT INTO orders VALUES (%s, %s, 'paid', %s) ON CONFLICT (id)"
                    " DO UPDATE SET total = orders.total + excluded.total",
                    (order, order % 40, amount),
                )
                connection.execute(
                    "INSERT INTO items SELECT %s, coalesce(max(line), 0) + 1, 'table', %s"
                    "  FROM items WHERE order_id = %s",
                    (order, amount, order),
                )
            visit(connection, chance)
            connection.rollback() if chance.random() < 0.1 else connection.commit()


def visit(connection: psycopg.Connection[Any], chance: Random) -> None:
    """Inserts, moves or takes back a visit, whose time has little to do with when it comes."""
    number = chance.randint(1, 150)
    if chance.random() < 0.2:
        connection.execute("DELETE FROM visits WHERE id = %s", (number,))
        return
    person, kind = chance.randint(1, 8), chance.choice(["look", "look", "buy"])
    waited_s = chance.choice([0, 1, 59, 60, 119, 120, 600])
    connection.execute(
        "INSERT INTO visits SELECT %s, %s, %s, at, at + %s * interval '1 second'"
        " FROM (SELECT timestamptz '2026-01-01 12:00Z' + %s * interval '20 seconds' AS at) t"
        " ON CONFLICT (id) DO UPDATE SET person = excluded.person, kind = excluded.kind,"
        " at = excluded.at, recorded_at = excluded.recorded_at",
        (number, person, kind, waited_s, chance.randint(0, 500)),
    )
