"""What the README promises, shown by the command line on one project that runs all the while.

The tests may come in any order: each leaves the project whole, with every view equal to its source.
"""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from headwater.demo.reader import ViewEndpoints
from headwater.demo.watcher import watchers
from headwater.reading.views import Views
from projections.erasure.file_search import search_files
from tests.fix_services import fresh_database
from tests.fix_shell import Shell
from tests.support.promised_project import PLAIN, PROBE, REACTOR, SCHEMA, SETTINGS, Project
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.integration,
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

CHAOS = ("kafka", "connect", "projections")
WITHOUT_CUSTOMER = ', except_column_list=["customer_id"]'


@pytest.fixture(scope="module")
def project(
    postgres_dsn: str, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession
) -> Iterator[Project]:
    """Two tables in three stores, with a history and a view made from a view, verified."""
    del spark  # the session that compares
    folder = tmp_path_factory.mktemp("promises")
    with fresh_database(postgres_dsn) as database:
        made = Project(Shell(folder / "shop"), database)
        made.execute(*SCHEMA.split(";\n"))
        Shell(folder)("init", "shop", "--dsn", database)
        made.declare()
        with (folder / "shop" / "headwater.toml").open("a") as settings:
            settings.write(SETTINGS)
        (folder / "shop" / "promised_letters.py").write_text(REACTOR)
        try:
            made.shell("up")
            assert {
                "customers",
                "customers_history",
                "orders",
                "ledger",
                "by_status",
            } == made.verified().keys()
            yield made
        finally:
            made.shell("down")


def test_nothing_is_lost_or_applied_twice_though_each_process_is_killed(project: Project) -> None:
    with project.traffic(pause_s=0.1) as traffic:
        for name in CHAOS:
            before = traffic.written
            os.kill(int(project.services()[name]["pid"]), signal.SIGKILL)
            wait_until(lambda before=before: traffic.written > before + 10)
        traffic.pause_s = 3.0
        wait_until(project.healthy, timeout_s=LONG_S)
        # compared amid the writes: sums of the view made from a view would tell a change twice
        project.verified()

    assert project.verified(*PLAIN)["orders"] == project.answer("SELECT count(*) FROM orders")


def test_a_changed_table_does_not_break_its_views(project: Project) -> None:
    with project.traffic():
        project.execute(
            "BEGIN; INSERT INTO orders (id, total) VALUES (5001, 1);"
            " CREATE TYPE mood AS ENUM ('calm', 'loud');"
            " ALTER TABLE orders ADD note text DEFAULT 'none', ADD weight int,"
            " ADD mood mood DEFAULT 'calm';"
            " UPDATE orders SET weight = id WHERE id < 50; COMMIT",
            "BEGIN; ALTER TABLE orders RENAME weight TO grams;"
            " UPDATE orders SET grams = -1 WHERE id = 8; COMMIT",
            "BEGIN; ALTER TABLE orders ALTER grams TYPE bigint;"
            " UPDATE orders SET grams = 1::bigint << 40 WHERE id = 9; COMMIT",
            "ALTER TYPE mood RENAME VALUE 'calm' TO 'quiet'",
            "BEGIN; UPDATE orders SET note = 'gone' WHERE id = 10; ALTER TABLE orders DROP note;"
            " DELETE FROM orders WHERE id = 11; COMMIT",
        )
    project.verified()
    wanted = "SELECT grams, mood FROM orders WHERE id IN (8, 9) ORDER BY id"
    rows = project.shell.here("query", wanted)
    assert [{"grams": -1, "mood": "quiet"}, {"grams": 1 << 40, "mood": "quiet"}] == rows
    assert "note" not in project.shell.here("query", "SELECT * FROM orders WHERE id = 8")[0]

    project.execute("ALTER TABLE orders DROP grams, DROP mood")
    project.verified(*PLAIN)


def test_a_lost_slot_is_refused_by_name_until_one_command_repairs_it(project: Project) -> None:
    project.shell("source", "pause")
    slot = project.shell.here("source", "slot")["slot"]["name"]
    project.execute(
        f"SELECT pg_drop_replication_slot('{slot}')",
        "UPDATE customers SET city = 'unseen' WHERE id BETWEEN 20 AND 29",
        "DELETE FROM orders WHERE id BETWEEN 20 AND 24",
        "INSERT INTO orders (id, total) VALUES (6001, 5), (6002, 6)",
        "DELETE FROM orders WHERE id = 6002",
    )

    loss = project.shell.here("source", "status", code=3)["loss"]
    refused = [project.shell(*words, code=3).stderr for words in (("source", "resume"), ("up",))]
    assert ("HW-C070", "headwater source repair --yes") == (loss["code"], loss["hint"])
    assert all("HW-C070" in text for text in refused)

    project.shell("source", "repair", "--yes")
    project.execute("UPDATE customers SET city = 'seen again' WHERE id = 21")

    assert project.verified()["orders"] == project.answer("SELECT count(*) FROM orders")
    assert project.shell.here("source", "slot")["loss"] is None


def test_readers_do_not_notice_a_rebuild_the_cutover_and_the_way_back(project: Project) -> None:
    first, _ = project.version()
    endpoints = project.services()
    places = ViewEndpoints(
        project.shell.folder / ".headwater" / "tables",
        endpoints["opensearch"]["address"],
        endpoints["valkey"]["address"],
        "shop:",
    )
    with project.traffic() as traffic:
        seen = watchers(places, PROBE)
        wait_until(lambda: traffic.written > 3)
        for watcher in seen.values():
            watcher.start()
        project.declare(WITHOUT_CUSTOMER)
        with project.begun("view", "rebuild", "orders", "--share", "0.0001"):
            wait_until(lambda: project.version() == (first + 1, "building"), timeout_s=LONG_S)
        built = project.shell.json("view", "rebuild", "orders", "--share", "1")
        compared = project.shell.here("view", "compare", "orders")
        for command in ("cutover", "rollback", "cutover", "rollback"):
            project.shell.here("view", command, "orders")
        found = {store: watcher.stop() for store, watcher in seen.items()}

    assert (first + 1, "held") == (built["version"], built["state"])
    assert compared["same"], compared
    assert {"cache", "search", "table"} == found.keys()
    assert all(watched.clean for watched in found.values()), found
    project.shell("view", "drop", "orders", str(first + 1), "--yes")
    project.declare()
    project.verified()


def differing(
    expected: list[dict[str, Any]], actual: list[dict[str, Any]]
) -> list[tuple[dict[str, Any] | None, dict[str, Any] | None]]:
    """Rows that are not the same, the expected one first."""
    ours, theirs = ({row["id"]: row for row in rows} for rows in (expected, actual))
    keys = sorted(ours.keys() | theirs.keys())
    return [(ours.get(k), theirs.get(k)) for k in keys if ours.get(k) != theirs.get(k)]


@pytest.mark.soak(minutes=4)
def test_the_jobs_spark_rebuilds_a_table_whoever_is_killed(
    project: Project, tmp_path: Path
) -> None:
    """It comes to what a replay comes to that goes record by record."""
    place = project.shell.folder / ".headwater" / "tables" / "ledger.v2"
    rebuild = "view", "rebuild", "ledger", "--share"
    wait_until(lambda: project.filler() == "job", timeout_s=LONG_S)
    with project.traffic() as traffic:
        with project.begun(*rebuild, "0.03"):
            wait_until(lambda: project.attempts(place.name) == 1, timeout_s=LONG_S)
        wait_until(lambda: project.attempts(place.name) == 0)  # no command asks for it any more
        assert (2, "building") == project.version("ledger")

        job = int(project.services()["projections"]["pid"])
        with project.begun(*rebuild, "0.03") as paused:
            wait_until(lambda: project.attempts(place.name) == 1, timeout_s=LONG_S)
            os.kill(job, signal.SIGKILL)
            wait_until(lambda: project.attempts(place.name) == 2, timeout_s=LONG_S)
            paused.send_signal(signal.SIGINT)
            assert 130 == paused.wait(60)
        wait_until(project.healthy, timeout_s=LONG_S)

        built = project.shell.json(*rebuild, "1")
        assert ("ledger", 2, "held") == (built["view"], built["version"], built["state"])
        log = sorted((place / "_delta_log").glob("*.json"))
        assert any("headwater.replay." in path.read_text() for path in log)
        assert project.shell.here("view", "compare", "ledger")["same"]
        assert traffic.written > 3

    project.verified(*PLAIN)
    wait_until(
        lambda: differing(project.replayed(tmp_path), project.rows(place)),
        accept=lambda found: not found,
    )
    project.shell("view", "drop", "ledger", "2", "--yes")
    assert [".ledger.v2.lock"] == [path.name for path in place.parent.glob("*ledger.v2*")]


def test_a_person_is_forgotten_in_every_place(project: Project) -> None:
    names = ("Zephyrine Quillfeather", "Ottilie Varnhagen")
    project.execute(
        "INSERT INTO customers (id, name, city) VALUES (901, 'to be named', 'Uppsala')",
        f"UPDATE customers SET name = '{names[0]}', city = 'Quillfeather' WHERE id = 901",  # noqa: S608
        "INSERT INTO customers (id, name) VALUES (902, 'to be named')",
        f"UPDATE customers SET name = '{names[1]}' WHERE id = 902",  # noqa: S608
        "UPDATE customers SET id = 1902 WHERE id = 902",
    )
    home = project.shell.folder / ".headwater"
    wait_until(lambda: all(search_files(home / "archive", [name]).matching_files for name in names))
    project.verified(*PLAIN)
    assert "HW-P144" in project.shell("forget", "customers", "901", "--yes", code=1).stderr

    with project.traffic():
        project.execute("DELETE FROM customers WHERE id IN (901, 1902)")
        certificate = project.forget("901", "1902")

    assert certificate.get("complete"), json.dumps(certificate, indent=2)
    assert {name: [] for name in names} == {
        name: search_files(home, [name]).matching_files for name in names
    }
    gone = "SELECT * FROM customers_history WHERE id IN (901, 902, 1902)"
    assert [] == project.shell.here("query", gone)
    project.verified()


def test_a_dry_run_of_a_reactor_lists_the_same_effects_from_kafka_and_from_the_archive(
    project: Project,
) -> None:
    dry_run = ("reactor", "changes", "dry-run", "promised_letters")

    def effects(*words: str) -> set[str]:
        listed = project.shell.here(
            *dry_run, "--table", "public.customers", "--limit", "100000", *words
        )
        assert {"public.customers"} >= {each["table"] for each in listed}
        return {each["key"] for each in listed}

    project.execute("UPDATE customers SET city = 'Lund' WHERE id <= 3")
    project.verified(*PLAIN)
    there = effects()

    assert len(there) >= 3
    wait_until(lambda: effects("--archive") >= there, timeout_s=LONG_S)
    assert set() == effects("--archive", "--since", "9999-12-31")
    assert "--archive" in project.shell(*dry_run, "--since", "2026-01-01", code=2).stderr


def test_a_writer_reads_what_it_has_written_in_every_store(project: Project) -> None:
    with (
        project.traffic(),
        Views.open(project.shell.folder / "headwater.toml") as views,
        psycopg.connect(project.database) as connection,
    ):
        orders = views["orders"]
        for number in range(1, 4):
            connection.execute(
                "UPDATE orders SET total = %s, status = %s WHERE id = 17",
                (number, f"step{number}"),
            )
            connection.commit()
            token = views.token(connection)
            read = orders.read(17, at_least=token, timeout_s=60)
            hits = orders.search(f"step{number}", at_least=token, timeout_s=60).hits
            sql = "SELECT status FROM orders WHERE id = 17"
            (row,) = views.query(sql, at_least=token, timeout_s=60).to_pylist()
            assert isinstance(read, dict)
            assert (f"step{number}", ["17"], f"step{number}") == (
                read["status"],
                [str(hit.key) for hit in hits],
                row["status"],
            )
    project.verified(*PLAIN)
