"""What the README promises, shown by the command line on one project that runs all the while.

The tests may come in any order: each leaves the project whole, with every view equal to its source.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from deltalake import DeltaTable
from fix_services import fresh_database
from fix_shell import Shell

from cdc.table import TableName
from headwater.demo.reader import ViewEndpoints
from headwater.demo.watcher import watchers
from headwater.demo.workload import Probe
from headwater.reading.views import Views
from projections.archive.replay import replay
from projections.archive.task import ReplayTarget
from projections.definition.views import MirrorView, Store
from projections.erasure.file_search import search_files
from projections.planning import binding
from projections.stores.delta.table_sink import TableSink
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

SCHEMA = """
CREATE TABLE customers (id int PRIMARY KEY, name text, email text, city text, about text);
ALTER TABLE customers ALTER about SET STORAGE EXTERNAL;
CREATE TABLE orders (
    id int PRIMARY KEY, customer_id int, status text, total numeric(12, 2), writes int DEFAULT 0
);
INSERT INTO customers SELECT n, 'customer ' || n, 'c' || n || '@example.org', 'Stockholm',
    repeat('about ' || n || ' ', 900) FROM generate_series(1, 100) n;
INSERT INTO orders SELECT n, 1 + n % 100, CASE n % 4 WHEN 0 THEN 'cancelled' ELSE 'placed' END, n
    FROM generate_series(1, 400) n;
"""
VIEWS = """
from headwater import source, view

shop = source("shop", tables=["public.customers", "public.orders"])
view.mirror("customers", shop.customers)
view.mirror("customers_history", shop.customers, keys=["id"], scd=2)
orders = view.mirror("orders", shop.orders{orders})
view.mirror("ledger", shop.orders, to=["table"])
view.aggregate(
    "by_status",
    orders,
    by=["status"],
    to=["table", "cache"],
    count="orders",
    sums={{"total": "total"}},
)
"""
SETTINGS = """
[archive]
interval_s = 3

[spark]
rebuild_rows_min = 200

[spark.conf]
"spark.sql.codegen.wholeStage" = "false"
"spark.sql.codegen.factoryMode" = "NO_CODEGEN"

[eventstore]
modules = ["promised_letters"]
"""
REACTOR = """
from eventstore.reactor import Invoke, Reactor

letters = Reactor(name="promised_letters", react=lambda change: Invoke(print))
"""
PROBE = Probe("orders", {"id": 7}, "writes", "UPDATE orders SET writes = %s WHERE id = 7")
PLAIN = ("customers", "customers_history", "orders", "ledger")
"""Views that are made from no other."""

CHAOS = ("kafka", "connect", "projections")
WITHOUT_CUSTOMER = ', except_column_list=["customer_id"]'


@dataclass(frozen=True, slots=True)
class Project:
    """A project that runs.

    Attributes:
        shell: Its command line.
        database: DSN of its source.
    """

    shell: Shell
    database: str

    def execute(self, *statements: str) -> None:
        """Runs statements, each a transaction of its own."""
        with psycopg.connect(self.database, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def answer(self, query: str) -> Any:
        """The only value of a query at the source."""
        with psycopg.connect(self.database, autocommit=True) as connection:
            row = connection.execute(query.encode()).fetchone()
        assert row is not None
        return row[0]

    def declare(self, orders: str = "") -> None:
        """Declares the views; `orders` is added to the declaration of that view."""
        (self.shell.folder / "views.py").write_text(VIEWS.format(orders=orders))

    def services(self) -> dict[str, Any]:
        """What runs, by name."""
        status = self.shell.here("status", code=None)
        return {each["name"]: each for each in status["services"]}

    def healthy(self) -> bool:
        healthy: bool = self.shell.here("status", code=None)["ready"]
        return healthy

    def verified(self, *views: str) -> dict[str, int]:
        """Asserts that views, or all of them, equal their source in every store.

        A view that is made from others is compared by the Spark session of the tests.

        Returns:
            The rows of each.
        """
        reports = self.shell.here("view", "verify", *views)
        assert [] == [r for r in reports if r["missing"] or r["extra"] or r["different"]]
        return {report["view"]: report["rows"] for report in reports}

    def forget(self, *keys: str) -> dict[str, Any]:
        """The certificate; asked once more where the answer says that a retry can help.

        On a busy machine a place may not be done within the time of one command.
        """
        words = ("forget", "customers", *keys, "--yes")
        said: dict[str, Any] = self.shell.json(*words, code=None)
        late = [each["place"] for each in said.get("erased", ()) if not each["complete"]]
        if late or said.get("error", {}).get("retriable"):
            said = self.shell.json(*words, code=None)
        return said

    def version(self, view: str = "orders") -> tuple[int, str]:
        """Number and state of the newest version of a view."""
        rows = self.shell.here("view", "list", "--versions")
        return max((r["version"], r["state"]) for r in rows if r["view"] == view)

    def filler(self) -> str:
        """Who would replay the archive into a version of the view that lives in tables alone."""
        planned = self.shell.here("view", "rebuild", "ledger", "--plan")
        found: str = planned["filled_by"]["by"]
        return found

    def attempts(self, place: str) -> int:
        """How often the job has begun what a rebuild asks of it at this moment."""
        folder = self.shell.folder / ".headwater" / "checkpoints" / "shop" / ".rebuilds"
        try:
            found: int = json.loads((folder / place / "progress").read_bytes())["attempts"]
        except FileNotFoundError:
            return 0
        return found

    def rows(self, table: Path) -> list[dict[str, Any]]:
        """The rows of a table with their versions, by key."""
        rows: list[dict[str, Any]] = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
        return sorted(rows, key=lambda row: row["id"])

    def replayed(self, folder: Path) -> list[dict[str, Any]]:
        """The rows that a replay of the archive makes of the orders, record by record."""
        shutil.rmtree(folder)
        orders = TableName("public", "orders")
        view = MirrorView("ledger", "shop", orders, (), frozenset({Store.TABLE}))
        with psycopg.connect(self.database, autocommit=True) as connection:
            (plan,) = binding.bind(connection, "shop", [view]).plans
        target = ReplayTarget((plan,), lambda: TableSink(folder))
        replay(self.shell.folder / ".headwater" / "archive" / "shop", [target])
        # no record tells of rows that were deleted while the slot was lost: a sweep removes them
        with psycopg.connect(self.database) as connection:
            there = {key for (key,) in connection.execute("SELECT id FROM orders")}
        return [row for row in self.rows(folder / "ledger") if row["id"] in there]

    @contextmanager
    def begun(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """Runs a command while the block runs, and kills it then if it has not ended."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADWATER_")}
        process = subprocess.Popen(
            [sys.executable, "-m", "headwater", *words],
            cwd=self.shell.folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait(30)

    @contextmanager
    def traffic(self) -> Iterator[Traffic]:
        """Has rows written while the block runs."""
        writing = Traffic(self.database)
        writing.start()
        try:
            yield writing
        finally:
            writing.end()


class Traffic(threading.Thread):
    """Writes rows until it is told to stop, each transaction to two tables.

    Attributes:
        written: Transactions that were committed.
    """

    def __init__(self, database: str) -> None:
        super().__init__(name="traffic", daemon=True)
        self.written = 0
        self._database = database
        self._stopped = threading.Event()
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            with psycopg.connect(self._database) as connection:
                while not self._stopped.wait(0.1):
                    self._write(connection, self.written + 1)
                    connection.commit()
                    self.written += 1
        except Exception as error:  # noqa: BLE001  # the test's thread raises it
            self._error = error

    def _write(self, connection: psycopg.Connection[Any], number: int) -> None:
        key = 1_000_000 + number
        connection.execute(PROBE.update.encode(), (number,))
        connection.execute("INSERT INTO orders VALUES (%s, 2, 'placed', 1, 0)", (key,))
        connection.execute("UPDATE orders SET status = 'paid' WHERE id = %s", (key - 3,))
        connection.execute("DELETE FROM orders WHERE id = %s", (key - 6,))
        connection.execute(
            "UPDATE customers SET city = %s WHERE id = %s", (f"city {number}", 30 + number % 70)
        )

    def end(self) -> None:
        """Stops it, takes away what it has put in, and raises what it ended by."""
        self._stopped.set()
        self.join(30)
        assert not self.is_alive()
        if self._error is not None:
            raise self._error
        with psycopg.connect(self._database, autocommit=True) as connection:
            connection.execute("DELETE FROM orders WHERE id > 1000000")
            connection.execute("UPDATE orders SET writes = 0 WHERE id = 7")


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
    with project.traffic() as traffic:
        for name in CHAOS:
            before = traffic.written
            os.kill(int(project.services()[name]["pid"]), signal.SIGKILL)
            wait_until(lambda before=before: traffic.written > before + 10)
        wait_until(project.healthy, timeout_s=LONG_S)
        # compared amid the writes: sums of the view made from a view would tell a change twice
        project.verified()

    assert project.verified(*PLAIN)["orders"] == project.answer("SELECT count(*) FROM orders")


def test_a_changed_table_does_not_break_its_views(project: Project) -> None:
    with project.traffic():
        project.execute(
            "BEGIN; INSERT INTO orders (id, total) VALUES (5001, 1);"
            " ALTER TABLE orders ADD note text DEFAULT 'none', ADD weight int;"
            " UPDATE orders SET weight = id WHERE id < 50; COMMIT",
            "BEGIN; ALTER TABLE orders RENAME weight TO grams;"
            " UPDATE orders SET grams = -1 WHERE id = 8; COMMIT",
            "BEGIN; ALTER TABLE orders ALTER grams TYPE bigint;"
            " UPDATE orders SET grams = 1::bigint << 40 WHERE id = 9; COMMIT",
            "BEGIN; UPDATE orders SET note = 'gone' WHERE id = 10; ALTER TABLE orders DROP note;"
            " DELETE FROM orders WHERE id = 11; COMMIT",
        )
    project.verified()
    rows = project.shell.here("query", "SELECT grams FROM orders WHERE id IN (8, 9) ORDER BY id")
    assert [{"grams": -1}, {"grams": 1 << 40}] == rows
    assert "note" not in project.shell.here("query", "SELECT * FROM orders WHERE id = 8")[0]

    project.execute("ALTER TABLE orders DROP grams")
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
        wait_until(lambda: traffic.written > 20)
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
        assert traffic.written > 20

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
    wait_until(lambda: all(search_files(home / "archive", [name]).found for name in names))
    project.verified(*PLAIN)
    assert "HW-P144" in project.shell("forget", "customers", "901", "--yes", code=1).stderr

    with project.traffic():
        project.execute("DELETE FROM customers WHERE id IN (901, 1902)")
        certificate = project.forget("901", "1902")

    assert certificate.get("complete"), json.dumps(certificate, indent=2)
    assert {name: [] for name in names} == {
        name: search_files(home, [name]).found for name in names
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
