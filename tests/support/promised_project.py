"""The project on which the README's promises are shown: its source, its views, and its traffic."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from deltalake import DeltaTable

from cdc.table import TableName
from headwater.demo.workload import Probe
from projections.archive.replay import replay
from projections.archive.task import ReplayTarget
from projections.definition.views import MirrorView, Store
from projections.planning import binding
from projections.stores.delta.table_sink import TableSink
from tests.support.running_project import RunningProject

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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


class Project(RunningProject):
    """The project of the promises."""

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
    def traffic(self, pause_s: float = 3.0) -> Iterator[Traffic]:
        """Has rows written while the block runs.

        Each write is a batch of the job in every store: more than are needed cost a processor.

        Args:
            pause_s: Time between two transactions.
        """
        writing = Traffic(self.database, pause_s)
        writing.start()
        try:
            yield writing
        finally:
            writing.end()


class Traffic(threading.Thread):
    """Writes rows until it is stopped, each transaction to two tables.

    Attributes:
        written: Transactions that were committed.
        pause_s: Time between two transactions.
    """

    def __init__(self, database: str, pause_s: float) -> None:
        super().__init__(name="traffic", daemon=True)
        self.written = 0
        self._database = database
        self.pause_s = pause_s
        self._stopped = threading.Event()
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            with psycopg.connect(self._database) as connection:
                while not self._stopped.wait(self.pause_s):
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
