"""Rows that are not as expected: out of every store, counted, or halting their own view alone."""

from __future__ import annotations

import threading
from random import Random
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc.postgres import catalog
from cdc.snapshot.reader import keep_reading
from cdc.table import TableName
from cdc.values import decoder
from headwater import expect
from projections.changes.quarantine import admin as quarantine_admin
from projections.changes.quarantine.admin import KeySelection
from projections.definition.expectations.checker import types_of
from projections.definition.expectations.evaluator import fitted
from projections.definition.expectations.parser import parse
from projections.definition.views import HistoryColumns, MirrorView, Store
from projections.planning.binding import resume
from projections.stores.factory import open_sink
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fix_capture import Captured
    from tests.fix_spark import ViewJob

pytestmark = pytest.mark.integration

VALUES = """
CREATE TABLE facts (
    id int PRIMARY KEY, a numeric, b bigint, f double precision, t text COLLATE "C",
    y boolean, d date, s timestamptz, c character(4) COLLATE "C", u uuid
);
INSERT INTO facts SELECT n, CASE n % 5 WHEN 0 THEN NULL WHEN 1 THEN 'NaN' ELSE (n % 7) / 2.0 END,
    nullif(n % 4, 3), CASE n % 6 WHEN 0 THEN NULL WHEN 1 THEN 'Infinity' ELSE n * 0.1 END,
    (ARRAY['', 'a', 'A%', 'ab', NULL])[1 + n % 5], (ARRAY[true, false, NULL])[1 + n % 3],
    CASE WHEN n % 4 > 0 THEN date '2026-01-01' + n END,
    CASE WHEN n % 5 > 0 THEN timestamptz '2026-01-01' + n * interval '7 hours' END,
    (ARRAY['', 'a', 'A%', 'ab', 'abcd', NULL])[1 + n % 6],
    CASE n % 3 WHEN 0 THEN NULL WHEN 1 THEN uuid 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'
      ELSE uuid '00000000-0000-0000-0000-0000000000ff' END
  FROM generate_series(1, 60) n
"""


class Conditions:
    """Conditions at random, all of which fit the table of facts."""

    def __init__(self, chance: Random) -> None:
        self._one = chance.choice

    def __call__(self, depth: int = 3) -> str:
        kind = self._one(["and", "or", "not", "is", "of"]) if depth else "of"
        if kind in ("and", "or"):
            return f"({self(depth - 1)} {kind} {self(depth - 1)})"
        if kind == "not":
            return f"NOT ({self(depth - 1)})"
        if kind == "is":
            word = self._one(["NULL", "NOT NULL", "TRUE", "NOT FALSE"])
            return f"({self(depth - 1)}) IS {word}"
        return self._one([self._of_numbers, self._of_texts, self._of_times])()

    def _of_numbers(self) -> str:
        sign = self._one(["=", "<>", "<", "<=", ">", ">="])
        if self._one([True, False]):
            return f"{self._number()} {sign} {self._number()}"
        if self._one([True, False]):
            return f"{self._number()} BETWEEN {self._number()} AND {self._number()}"
        return f"{self._number()} NOT IN (1, {self._number()}, NULL)"

    def _number(self) -> str:
        plain = ["a", "b", "0", "1.5", "-2", "length(t)", "coalesce(b, 7)"]
        exact = [*plain, "a * 2 - b", "abs(-b)"]
        return self._one([*exact, "f"])

    def _of_texts(self) -> str:
        return self._one(
            [
                "t = 'a'",
                "t LIKE 'A\\%'",
                "t NOT LIKE '_%b'",
                "upper(t) < 'AB'",
                "trim(t) IN ('', 'ab')",
                "t <= lower('AB')",
                "y",
                "coalesce(y, t IS NULL)",
                "c = 'ab'",
                "c <> 'a  '",
                "c = t",
                "c NOT IN ('abcd', 'A%')",
                "c BETWEEN 'A' AND 'ab '",
                "c LIKE 'ab%'",
                "c LIKE 'ab'",
                "length(c) > 1",
                "upper(c) = 'AB'",
                "coalesce(c, t) = 'a'",
                "u = 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'",
                "u > '{00000000-0000-0000-0000-0000000000FE}'",
            ]
        )

    def _of_times(self) -> str:
        return self._one(
            ["d > '2026-01-20'", "s <= '2026-01-09 12:00:00+01:00'", "d = d", "s <> '2026-01-03'"]
        )


@pytest.mark.rotating("seed", range(8))
def test_conditions_mean_what_postgres_means(database: str, seed: int) -> None:
    conditions = Conditions(Random(seed))  # noqa: S311
    said = [conditions() for _ in range(300)]
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(VALUES)
        table = TableName("public", "facts")
        schema = catalog.describe(connection, [table])[table]
        answers = ", ".join(f"({each})" for each in said)
        theirs = connection.execute(f"SELECT id, {answers} FROM facts ORDER BY id")  # noqa: S608
        wanted = {row[0]: row[1:] for row in theirs.fetchall()}
    fit = [fitted(parse(each), types_of(schema)).evaluate for each in said]
    decode = decoder(schema)
    with psycopg.connect(database) as connection:
        connection.execute("SET timezone = 'UTC'")
        texts = connection.execute(
            "SELECT id, a::text, b, f::text, t, y, d::text, to_json(s)#>>'{}', c, u::text"
            " FROM facts"
        ).fetchall()

    names = [column.name for column in schema.columns]
    for values in texts:
        row = decode(dict(zip(names, values, strict=True)))
        found = tuple(evaluate(row) for evaluate in fit)
        different = [
            each for each, a, b in zip(said, found, wanted[values[0]], strict=True) if a is not b
        ]
        assert different == [], values[0]


TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, total numeric(12,2), note text, big text);
ALTER TABLE orders ALTER big SET STORAGE EXTERNAL;
CREATE TABLE visits (id int, page text);
INSERT INTO orders SELECT n, nullif(n % 7 - 2, 4), 'note ' || n % 4, repeat('big ' || n, 1000)
  FROM generate_series(1, 60) n;
INSERT INTO visits SELECT n, nullif('page ' || n % 3, 'page 1') FROM generate_series(1, 9) n
"""
POSITIVE = "total > 0"
NOTED = "note LIKE 'note%' AND note <> 'note 3'"
SHORT = "length(big) < 9000"
WANTED = "SELECT id FROM orders WHERE {} ORDER BY id"


@pytest.fixture
def reading() -> Iterator[Callable[[Captured], None]]:
    """Does the reads that a job asks for, as the supervisor of a capture does."""
    stop = threading.Event()
    threads = []

    def start(captured: Captured) -> None:
        threads.append(threading.Thread(target=keep_reading, args=(captured.spec, stop)))
        threads[-1].start()

    yield start
    stop.set()
    for thread in threads:
        thread.join()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.soak(minutes=2)
@pytest.mark.timeout(600)
def test_rows_that_are_not_as_expected_are_in_no_store(
    capture: Callable[..., Captured],
    view_job: Callable[..., ViewJob],
    reading: Callable[[Captured], None],
    database: str,
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES)
    captured = capture("public.orders", "public.visits")
    views = _views(captured.spec.name)
    dropping, kept, history, visits, halting = views
    job = view_job(captured, views=views)
    reading(captured)
    job.start()
    assert job.catch_up() == []

    # rows go, come back, change their key, and come back without their large value in the log
    captured.execute(
        "UPDATE orders SET total = -total",
        "UPDATE orders SET total = 5 WHERE id % 3 = 0",
        "UPDATE orders SET id = id + 100 WHERE id % 5 = 0",
        "UPDATE orders SET note = 'note 3' WHERE id % 4 = 0",
        "DELETE FROM orders WHERE id % 11 = 0",
        "UPDATE orders SET big = repeat('x', 9500) WHERE id % 13 = 0",
        "UPDATE orders SET total = 1 WHERE id % 13 = 0",
        "INSERT INTO visits VALUES (10, NULL), (11, 'page 1')",
    )
    _settle(job)
    stays = f"coalesce({POSITIVE}, false) AND coalesce({SHORT}, false)"
    for store in Store:
        assert _ids(job, dropping, store) == _source(database, WANTED.format(stays))
    assert _ids(job, kept, Store.CACHE) == _source(database, WANTED.format(NOTED))
    assert _ids(job, history, Store.TABLE) == _source(database, WANTED.format(POSITIVE))
    with psycopg.connect(database, autocommit=True) as connection:
        waiting = quarantine_admin.keys(connection, captured.spec.name, KeySelection(kept.name))
    unwanted = _source(database, WANTED.format(f"({NOTED}) IS NOT TRUE"))
    assert sorted(int(each.key[6:-1]) for each in waiting) == unwanted
    assert {each.code for each in waiting} == {"HW-P092"}
    counted = job.status()["queries"]
    assert counted["cache"]["failed"][dropping.name].keys() == {"positive", "short", "two"}
    assert counted["table"]["failed"][visits.name]["page"] >= 2
    assert all(counted[store]["failed"][dropping.name]["positive"] > 0 for store in Store)

    # a row that is not to be halts its own view, by its place, and no other
    captured.execute("INSERT INTO orders VALUES (900, 1000000, 'note 1', 'b')")
    job.wait(lambda _: bool(job.bound().paused))
    (paused,) = job.bound().paused
    assert (paused.name, paused.fault.code) == (halting.name, "HW-P093")
    assert paused.fault.detail is not None
    assert f"expectation low; topic {captured.spec.name}.public.orders" in paused.fault.detail
    assert "1000000" not in repr(paused.fault)
    captured.execute("INSERT INTO orders VALUES (901, 3, 'note 1', 'b')")
    _settle(job)
    assert 901 in _ids(job, dropping, Store.CACHE)
    assert not {900, 901} & {*_ids(job, halting, Store.CACHE)}
    captured.execute("UPDATE orders SET total = 10 WHERE id = 900")
    with psycopg.connect(database, autocommit=True) as connection:
        resume(connection, captured.spec.name, halting)
    _settle(job)
    assert {900, 901} <= {*_ids(job, halting, Store.CACHE)}
    assert not job.bound().paused

    # a view that lacks a column of its expectation stands still alone, too
    captured.execute("ALTER TABLE orders DROP note", "INSERT INTO orders VALUES (902, 3, 'b')")
    job.wait(lambda _: bool(job.bound().paused))
    (paused,) = job.bound().paused
    assert (paused.name, paused.fault.code) == (kept.name, "HW-P091")
    assert "names note" in paused.fault.message
    _settle(job)
    assert 902 in _ids(job, dropping, Store.SEARCH)


def _views(source: str) -> list[MirrorView]:
    orders, visits = TableName("public", "orders"), TableName("public", "visits")
    everywhere, cached, table = frozenset(Store), frozenset({Store.CACHE}), frozenset({Store.TABLE})

    def mirror(
        name: str, of: TableName, to: frozenset[Store], *said: Any, **more: Any
    ) -> MirrorView:
        return MirrorView(f"{source}_{name}", source, of, (), to, expectations=said, **more)

    positive, short = expect("positive", POSITIVE, "drop"), expect("short", SHORT, "drop")
    return [
        mirror("dropping", orders, everywhere, positive, short, expect("two", "id <> 2")),
        mirror("kept", orders, cached, expect("noted", NOTED, "quarantine")),
        mirror("history", orders, table, positive, history=HistoryColumns()),
        mirror("visits", visits, table, expect("page", "page IS NOT NULL", "drop")),
        mirror("halting", orders, cached, expect("low", "coalesce(total, 0) < 1000", "fail")),
    ]


def _settle(job: ViewJob, timeout_s: float = 240) -> None:
    """Waits until every view equals its source; rows that lack a large value are read meanwhile."""
    wait_until(job.catch_up, accept=lambda differing: not differing, timeout_s=timeout_s)


def _ids(job: ViewJob, view: MirrorView, store: Store) -> list[int]:
    spec = job.bound()
    plans = {plan.name: plan for plan in (*job.spec.plans, *spec.plans)}
    sink = open_sink(store, spec.config.addresses)
    try:
        return sorted(int(str(row["id"])) for row in sink.documents(plans[view.name]))
    finally:
        sink.close()


def _source(database: str, query: str) -> list[int]:
    with psycopg.connect(database) as connection:
        return [row[0] for row in connection.execute(query).fetchall()]
