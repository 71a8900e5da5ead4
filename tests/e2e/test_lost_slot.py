"""A user's own project loses its slot, is repaired, reads tables again, and gets more views."""

from __future__ import annotations

import json
import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import opensearchpy
import psycopg
import pytest
import redis
from deltalake import DeltaTable

from headwater.cli import main
from projections.stores.delta.table_format import LOADED
from tests.fix_services import fresh_database
from tests.fix_shell import Shell
from tests.support.running_project import RunningProject
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=6),
    pytest.mark.timeout(1800),
]

READINGS = 20_000
SETTINGS = """
[spark]
load_rows_min = 10_000
"""
SCHEMA = """
CREATE TABLE notes (id int PRIMARY KEY, body text NOT NULL, big text);
ALTER TABLE notes ALTER big SET STORAGE EXTERNAL;
CREATE TABLE "Order Lines" (order_id bigint, line int, price numeric(12, 2) NOT NULL,
                            PRIMARY KEY (order_id, line));
CREATE TABLE visits (page text NOT NULL);
CREATE TABLE readings (id bigint PRIMARY KEY, value int NOT NULL);
INSERT INTO notes SELECT i, 'note ' || i, repeat(i::text, 2000) FROM generate_series(1, 400) i;
INSERT INTO "Order Lines" SELECT i, 1, i / 7.0 FROM generate_series(1, 300) i;
INSERT INTO visits SELECT 'page ' || i % 7 FROM generate_series(1, 60) i;
INSERT INTO readings SELECT i, i % 1000 FROM generate_series(1, %READINGS%) i;
ANALYZE readings;
""".replace("%READINGS%", str(READINGS))
VIEWS = """
from headwater import source, view

shop = source(
    "shop", tables=["notes", "Order Lines", "visits", "readings"], insert_only=["visits"]
)
view.mirror("notes", shop.notes)
view.mirror("order_lines", shop["public.Order Lines"])
view.mirror("visits", shop.visits)
"""
MORE_VIEWS = """
view.mirror("readings", shop.readings, to=["table"])
view.mirror("notes_again", shop.notes)
"""
UNSEEN = (
    "UPDATE notes SET body = 'unseen' WHERE id BETWEEN 1 AND 20",
    "DELETE FROM notes WHERE id BETWEEN 15 AND 30",
    "DELETE FROM notes WHERE id = 31; INSERT INTO notes VALUES (31, 'back again', 'small')",
    "UPDATE notes SET id = 1000 WHERE id = 32",
    "INSERT INTO notes VALUES (2000, 'new and unseen', NULL), (2001, 'never seen', NULL)",
    "DELETE FROM notes WHERE id = 2001",
    'DELETE FROM "Order Lines" WHERE order_id <= 10',
    'UPDATE "Order Lines" SET line = 2, price = price + 1 WHERE order_id BETWEEN 11 AND 20',
    "INSERT INTO visits VALUES ('unseen'), ('unseen')",
)


class Shop(RunningProject):
    """The project that loses its slot."""

    def verified(self) -> dict[str, int]:
        """Asserts that every view equals its source in every store; returns the rows of each."""
        reports = self.shell.json("view", "verify")
        assert [] == [r for r in reports if r["missing"] or r["extra"] or r["different"]]
        return {report["view"]: report["rows"] for report in reports}

    def cache(self) -> redis.Redis:
        """A client of its Valkey."""
        return redis.Redis.from_url(self._address("valkey"), decode_responses=True)

    def search(self) -> opensearchpy.OpenSearch:
        """A client of its OpenSearch."""
        return opensearchpy.OpenSearch(hosts=[self._address("opensearch")])

    def table(self, view: str) -> DeltaTable:
        """A view's Delta table."""
        return DeltaTable(str(self.shell.folder / ".headwater" / "tables" / view))

    def _address(self, service: str) -> str:
        services = self.shell.json("status")["services"]
        (found,) = [each["address"] for each in services if each["name"] == service]
        return str(found)


@pytest.fixture(scope="module")
def shop(postgres_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """Four captured tables, three of them mirrored in all stores and verified."""
    folder = tmp_path_factory.mktemp("shop")
    with fresh_database(postgres_dsn) as database:
        shop = Shop(Shell(folder), database)
        shop.execute(*SCHEMA.split(";\n"))
        shop.shell("init", ".", "--dsn", database, "--name", "shop")
        (folder / "views.py").write_text(VIEWS)
        with (folder / "headwater.toml").open("a") as settings:
            settings.write(SETTINGS)
        try:
            shop.shell("up")
            assert {"notes": 400, "order_lines": 300, "visits": 60} == shop.verified()
            yield shop
        finally:
            shop.shell("down")


def test_a_lost_slot_has_a_name_and_nothing_streams_until_a_repair_makes_all_views_equal(
    shop: Shop,
) -> None:
    shop.shell("source", "pause")
    slot = shop.shell.json("source", "slot")["slot"]["name"]
    shop.execute(f"SELECT pg_drop_replication_slot('{slot}')", *UNSEEN)

    status = shop.shell.json("source", "status", code=3)
    losses = status["loss"], shop.shell.json("source", "slot", code=3)["loss"]
    said = shop.shell("source", "slot", code=3).stderr
    refused = [
        shop.shell(*words, code=3).stderr for words in (("source", "resume"), ("apply",), ("up",))
    ]
    plan = shop.shell.json("source", "repair", code=3)
    still = shop.shell.json("source", "status", code=3)

    assert [("HW-C070", REPAIR)] * 2 == [(loss["code"], loss["hint"]) for loss in losses]
    assert all("HW-C070" in text and REPAIR in text for text in (said, *refused))
    assert _streamed(status) == _streamed(still)
    assert "STOPPED" == still["connector_state"]
    assert ("HW-C070", plan["epoch"] + 1) == (plan["loss"]["code"], plan["becomes"])

    shop.shell("source", "repair", "--yes")
    shop.execute("UPDATE notes SET body = 'seen again' WHERE id IN (31, 40, 2000)")

    rows = shop.verified()
    assert shop.answer("SELECT count(*) FROM notes") == rows["notes"]
    assert shop.shell.json("source", "slot")["loss"] is None


def test_rows_that_a_store_has_wrong_are_repaired_by_keys_by_a_condition_or_by_all(
    shop: Shop,
) -> None:
    _damage(shop)
    assert {
        ("notes", "cache"): (2, 1, 1),
        ("notes", "search"): (1, 1, 1),
        ("notes", "table"): (1, 0, 1),
        ("order_lines", "table"): (1, 0, 0),
    } == _wrong(shop)

    keys = shop.shell.json("source", "resnapshot", "notes", *KEYS, "--wait")
    some = shop.shell.json("source", "resnapshot", "notes", "--where", "id IN (103, 104)", "--wait")
    line = '{"line": 1, "order_id": 100}'
    shop.shell("source", "resnapshot", "public.Order Lines", "--key", line, "--wait")

    assert ("keys", "done", 3, 100.0) == tuple(keys[name] for name in SHOWN)
    assert ("where", "done", 2, 100.0) == tuple(some[name] for name in SHOWN)
    # what is too much, only a whole read can tell
    assert {("notes", "cache"): (0, 1, 0), ("notes", "search"): (0, 1, 0)} == _wrong(shop)
    told = shop.shell("source", "resnapshot", "notes", "--wait").stdout
    rows = shop.answer("SELECT count(*) FROM notes")
    assert f"{rows:,} rows of public.notes" in told
    shop.verified()


def test_a_read_shows_how_far_it_is_until_it_is_cancelled(shop: Shop) -> None:
    asked = shop.shell.json("source", "resnapshot", "readings", "--where", SLOWLY)
    some = f"SELECT rows_read > 0 FROM headwater.snapshots WHERE id = {asked['id']}"  # noqa: S608
    wait_until(lambda: bool(shop.answer(some)), timeout_s=LONG_S)
    status = shop.shell.json("source", "status")
    shown = shop.shell("source", "status").stdout
    cancelled = shop.shell.json("source", "resnapshot", "--cancel", str(asked["id"]))

    (found,) = [line for line in status["tables"] if line["id"] == asked["id"]]
    read, expected = found["rows_read"], found["rows_expected"]
    assert ("waiting", 0) == (asked["state"], asked["rows_read"])
    assert ("where", "reading") == (found["what"], found["state"])
    assert 0 < read < expected
    assert found["percent"] == pytest.approx(100 * read / expected, abs=0.1)
    assert f" of {expected:,}" in shown
    assert " %" in shown
    assert "cancelled" == cancelled["state"]


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("nowhere",), "table public.nowhere is not captured", "declare it in the source"),
        (("notes", "--where", "nothing = 1"), "the condition cannot be read", "SQL"),
        (("notes", "--where", "id = 1; DELETE FROM notes"), "the condition cannot be read", "SQL"),
        (("notes", "--key", "seven"), "a key does not fit table public.notes", "id integer"),
        (("notes", "--key", '{"no": 1}'), "a key has other columns", "one value"),
        (("visits", "--where", "page = 'x'"), "table public.visits has no key", "whole"),
        (("notes", "--key", "1", "--where", "id = 1"), "keys or a condition", "--where"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_would_help(
    shop: Shop,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    message: str,
    hint: str,
) -> None:
    place = ("--config", str(shop.shell.folder / "headwater.toml"), "--json")
    code = main(["source", "resnapshot", *words, *place])
    error = json.loads(capsys.readouterr().out)["error"]

    assert 2 == code
    assert ("HW-C062", False) == (error["code"], error["retriable"])
    assert message in error["message"]
    assert hint in error["hint"]
    assert "seven" not in str(error)


def test_views_that_are_added_while_writes_go_on_are_filled_and_equal(shop: Shop) -> None:
    views = shop.shell.folder / "views.py"
    with _writing(shop.database):
        views.write_text(VIEWS + MORE_VIEWS)
        wanted = {each["name"] for each in shop.shell.json("plan", code=3)["differences"]}
        shop.shell("down")
        shop.shell("up")

    rows = shop.verified()
    assert wanted == {
        "readings in table",
        *(f"notes_again in {store}" for store in ("cache", "search", "table")),
    }
    assert rows["notes"] == rows["notes_again"]
    assert rows["readings"] >= READINGS
    assert LOADED in shop.table("readings").metadata().configuration
    assert [] == shop.shell.json("plan")["differences"]


SLOWLY = "pg_sleep(0.004) IS NOT NULL"  # for as long as three commands take on a busy machine
REPAIR = "headwater source repair --yes"
KEYS = ("--key", "100", "--key", "101", "--key", "102")
SHOWN = ("what", "state", "rows_read", "percent")


def _streamed(status: dict[str, Any]) -> dict[str, int]:
    """How many records each topic has, but for the one that a read may still be writing to."""
    ends = {topic["topic"]: topic["records"] for topic in status["end_offsets"]}
    return {topic: end for topic, end in ends.items() if not topic.endswith(".readings")}


def _damage(shop: Shop) -> None:
    """Rows that are gone, altered, or too many, in one store or another."""
    with closing(shop.cache()) as cache:
        row = str(cache.get("shop:notes:102"))
        assert 2 == cache.delete("shop:notes:100", "shop:notes:103")
        cache.set("shop:notes:102", row.replace("note 102", "damaged"))
        cache.set("shop:notes:9999", row.replace('"id":102', '"id":9999'))
    with closing(shop.search()) as search:
        found = search.get(index="notes-v1", id="104")
        version = {"version": found["_version"], "version_type": "external_gte"}
        damaged = found["_source"] | {"body": "damaged"}
        search.index(index="notes-v1", id="104", body=damaged, params=version)
        search.index(index="notes-v1", id="9999", body=damaged | {"id": 9999}, params=version)
        search.delete(index="notes-v1", id="101", params={"refresh": "true"})
    notes = shop.table("notes")
    notes.delete("id = 101")
    notes.update({"body": "'damaged'"}, predicate="id = 102")
    shop.table("order_lines").delete("order_id = 100")


def _wrong(shop: Shop) -> dict[tuple[str, str], tuple[int, int, int]]:
    reports = shop.shell.json("view", "verify", code=3)
    found = {(r["view"], r["store"]): (r["missing"], r["extra"], r["different"]) for r in reports}
    return {place: counts for place, counts in found.items() if any(counts)}


@contextmanager
def _writing(database: str) -> Iterator[None]:
    """Changes rows of two tables all the while, some of them several times."""
    ended = threading.Event()

    def write() -> None:
        with psycopg.connect(database) as connection:
            for number in range(1, 1_000_000):
                if ended.wait(0.01):
                    return
                key = 10_000 + number
                connection.execute("INSERT INTO notes VALUES (%s, 'new', 'new')", (key,))
                connection.execute("UPDATE notes SET body = 'again' WHERE id = %s", (key - 2,))
                connection.execute("DELETE FROM notes WHERE id = %s", (key - 5,))
                connection.execute("UPDATE notes SET body = body || '.' WHERE id = 200")
                connection.execute(
                    "UPDATE readings SET value = -%s WHERE id = %s", (number, 7 * number)
                )
                connection.execute("DELETE FROM readings WHERE id = %s", (7 * number - 3,))
                connection.execute("INSERT INTO readings VALUES (%s, 0)", (READINGS + number,))
                connection.commit()

    writer = threading.Thread(target=write, name="writer")
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()
