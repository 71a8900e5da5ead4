"""Views made from others are made anew from the archive, by the command line, beside the job."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from deltalake import DeltaTable

from tests.fix_shell import Shell
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=10),
    pytest.mark.timeout(1800),
]

SCHEMA = """
CREATE TABLE orders (
    id int PRIMARY KEY, person int, status text, total numeric(12, 2),
    placed_at timestamptz, recorded_at timestamptz
);
CREATE TABLE people (id int PRIMARY KEY, city text);
CREATE TABLE visits (person int, page text);
INSERT INTO visits SELECT n % 20, 'page ' || n % 3 FROM generate_series(1, 100) n;
INSERT INTO people SELECT n, 'city ' || n % 3 FROM generate_series(1, 20) n;
INSERT INTO orders SELECT n, n % 20, 'placed', n, timestamptz '2026-11-20Z' + n * interval '1 min',
    timestamptz '2026-11-20Z' + n * interval '90 s' FROM generate_series(1, 500) n;
"""
TRAFFIC = """
UPDATE orders SET status = 'paid', placed_at = placed_at - interval '1 h' WHERE id % 5 = {0};
DELETE FROM orders WHERE id % 50 = {0};
INSERT INTO orders SELECT n, n % 25, 'placed', n, timestamptz '2026-11-20Z' + n * interval '30 s',
    timestamptz '2026-11-21Z' FROM generate_series(1000 + 20 * {0}, 1019 + 20 * {0}) n;
UPDATE people SET city = 'city {0}' WHERE id = {0};
UPDATE people SET city = 'moved' WHERE id = 7 AND {0} % 2 = 0;
DELETE FROM people WHERE id = 8 + {0};
INSERT INTO visits SELECT {0}, 'page ' || n % 3 FROM generate_series(1, 10) n;
"""
VIEWS = """
from headwater import Late, Pattern, Step, Tumbling, source, view

shop = source(
    "shop",
    tables=["public.orders", "public.people", "public.visits"],
    insert_only=["public.visits"],
)
orders = view.mirror("orders", shop.orders, to=["table"])
view.mirror("people", shop.people, to=["table"])
view.mirror("people_history", shop.people, scd=2)
visits = view.mirror("visits", shop.visits, to=["table"])
view.aggregate("visits_by_page", visits, by=["person", "page"], to=["table"], count="n")
view.sql(
    "moves",
    "SELECT id, valid_from, recorded_from, city, valid_to IS NULL AS here FROM people_history",
    keys=["id", "valid_from", "recorded_from"],
    to=["table"],
)
view.aggregate(
    "per_hour",
    orders,
    by=["status"],
    to=["table"],
    window=Tumbling("placed_at", "1 hour"),
    late=Late("recorded_at", after="2 hours", count="late"),
    count="n",
    sums={"total": "total"},
)
view.pattern(
    "unpaid",
    orders,
    by=["person"],
    to=["table"],
    time="placed_at",
    pattern=Pattern(
        [Step("placed", "status = 'placed'"), Step("paid", "status = 'paid'", absent=True)],
        within="30 minutes",
    ),
    keep=["id"],
)
view.sql(
    "order_cities",
    "SELECT o.id, o.total, p.city FROM orders o LEFT JOIN people p ON p.id = o.person",
    keys=["id"],
    to=["table"],
)


@view(keys=["city"], to=["table"])
def cities(order_cities):
    return order_cities.groupBy("city").count()
"""
NAMES = ("per_hour", "unpaid", "visits_by_page", "moves", "cities")


@pytest.fixture
def shell(database: str, tmp_path: Path) -> Iterator[Shell]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(SCHEMA)
    Shell(tmp_path)("init", "shop", "--dsn", database)
    inside = Shell(tmp_path / "shop")
    (inside.folder / "views.py").write_text(VIEWS)
    inside("up")
    yield inside
    inside("down")


def compared(shell: Shell, name: str, *words: str, rows: int = 0) -> Any:
    """What a replay comes to, once the archive has all of the first read, and so much is there."""

    def replayed() -> tuple[int, Any]:
        done = shell("view", "replay", name, "--compare", "--json", *words, code=None)
        # too early: it is nothing that differs
        assert done.returncode in {0, 2}, (done.stdout, done.stderr[-4000:])
        return done.returncode, json.loads(done.stdout)

    _, found = wait_until(
        replayed,
        f"a replay that has {rows} rows",
        accept=lambda answer: answer[0] == 0 and answer[1]["rows"] >= rows,
        timeout_s=LONG_S,
    )
    return found


def test_what_readers_see_is_what_the_archive_comes_to_in_one_batch(
    shell: Shell, database: str
) -> None:
    for number in range(4):
        with psycopg.connect(database) as connection:
            connection.execute(TRAFFIC.format(number))
    with psycopg.connect(database) as connection:
        answer = connection.execute("SELECT count(*) FROM orders").fetchone()
    assert answer is not None

    compared(shell, "order_cities", rows=answer[0])
    kept = shell.folder / "kept"
    found = compared(shell, "order_cities", "--to", "kept")
    assert answer[0] == found["rows"] == DeltaTable(kept).to_pyarrow_table().num_rows
    assert (["orders", "people"], "kept") == (found["made_from"], found["table"])
    assert (0, 0, 0) == tuple(found[what] for what in ("missing", "extra", "different"))
    for name in NAMES:
        found = compared(shell, name)
        assert (0, 0, 0) == tuple(found[what] for what in ("missing", "extra", "different"))
        assert found["rows"] > 0
    refused = shell.json("view", "replay", "cities", "--until", "0/1", code=2)["error"]
    assert "HW-Q005" == refused["code"]

    # neither job nor servers have to run, and a row that readers lack is told
    shell("down")
    then, number = found["applied_through"], found["version"]
    again = shell.json("view", "replay", "cities", "--until", then)
    assert (found["rows"], found["made_from"]) == (again["rows"], again["made_from"])
    take_out(shell.folder / ".headwater" / "tables", number)
    told = shell("view", "replay", "cities", "--compare", "--until", str(number), code=3)
    assert str(found["rows"]) in told.stdout
    assert "row city 3 (missing)" in told.stderr
    assert "HW-U002" in told.stderr


def take_out(tables: Path, number: int) -> None:
    """Has a published version name a table without one of its rows."""
    table = DeltaTable(tables / "cities")
    assert 1 == table.delete("city = 'city 3'")["num_deleted_rows"]
    file = tables / ".published" / "shop" / f"{number:012}.json"
    said = json.loads(file.read_bytes())
    said["views"]["cities"]["version"] = table.version()
    file.write_text(json.dumps(said))
