"""A person is forgotten while others' rows are written; what is rebuilt afterwards is the same.

By the command line alone, in one home.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
import pytest

from projections.erasure.file_search import search_files
from tests.fix_services import fresh_database
from tests.fix_shell import Shell
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=10),
    pytest.mark.timeout(2400),
]

SCHEMA = """
CREATE TABLE customers (id int PRIMARY KEY, name text, email text, city text, about text,
    likes jsonb NOT NULL DEFAULT '{"theme": "dark and quiet"}',
    since timestamptz NOT NULL DEFAULT now());
ALTER TABLE customers ALTER about SET STORAGE EXTERNAL;
CREATE TABLE orders (id int PRIMARY KEY, customer_id int, total numeric(12, 2));
INSERT INTO customers (id, name, email, city, about)
SELECT n, 'customer ' || n, 'c' || n || '@example.org', 'Stockholm',
    repeat('about ' || n || ' ', 900) FROM generate_series(1, 200) n;
-- somebody's name is a part of another's
INSERT INTO customers (id, name) VALUES (201, 'Petronella Quillfeather-Windermere');
INSERT INTO orders SELECT n, 1 + n % 200, n FROM generate_series(1, 400) n;
"""
VIEWS = """
from headwater import source, view

shop = source("shop", tables=["public.customers", "public.orders"])
view.mirror("customers", shop.customers)
view.mirror("customers_history", shop.customers, keys=["id"], scd=2)
view.mirror("orders", shop.orders, to=["table"])
view.sql("spending", "spending.sql", keys=["id"], to=["table", "cache", "search"])
"""
SPENDING = (
    "SELECT c.id, c.name, sum(o.total) AS total"
    " FROM customers c JOIN orders o ON o.customer_id = c.id GROUP BY c.id, c.name"
)
GONE, MOVED, STAYS = 17, 18, 19
NAMES = {GONE: "Zephyrine Quillfeather", MOVED: "Balthasar Windermere", STAYS: "Ottilie Varnhagen"}
OF_GONE = "SELECT * FROM customers_history WHERE id IN (17, 18, 1018)"
OF_STAYING = "SELECT name, is_current FROM customers_history WHERE id = 19"


@pytest.fixture(scope="module")
def source(postgres_dsn: str) -> Iterator[str]:
    with fresh_database(postgres_dsn) as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(SCHEMA)
        yield dsn


@pytest.fixture(scope="module")
def shell(source: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    folder = tmp_path_factory.mktemp("forget")
    Shell(folder)("init", "shop", "--dsn", source)
    inside = Shell(folder / "shop")
    (inside.folder / "views.py").write_text(VIEWS)
    (inside.folder / "spending.sql").write_text(SPENDING)
    inside("up")
    yield inside
    inside("down")


@pytest.fixture
def traffic(source: str) -> Iterator[Traffic]:
    writing = Traffic(source)
    writing.start()
    yield writing
    writing.end()


class Traffic(threading.Thread):
    """Writes to other people's rows until it is stopped."""

    def __init__(self, database: str) -> None:
        super().__init__(daemon=True)
        self._database = database
        self.stopped = threading.Event()

    def run(self) -> None:
        with psycopg.connect(self._database, autocommit=True) as connection:
            number = 0
            while not self.stopped.wait(0.05):
                number += 1
                values = f"city {number}", 30 + number % 170
                connection.execute("UPDATE customers SET city = %s WHERE id = %s", values)

    def end(self) -> None:
        self.stopped.set()
        self.join(30)
        assert not self.is_alive()


class Forgotten(NamedTuple):
    """What was said when people were forgotten."""

    refused: str
    alive: str
    certificate: dict[str, Any]


@pytest.fixture(scope="module")
def forgotten(shell: Shell, source: str) -> Forgotten:
    writing = Traffic(source)
    writing.start()
    with psycopg.connect(source, autocommit=True) as connection:
        for key, name in NAMES.items():
            connection.execute("UPDATE customers SET name = %s WHERE id = %s", (name, key))
        connection.execute("UPDATE customers SET city = 'Quillfeather' WHERE id = %s", (GONE,))
        # under another key, with a value that is not in the record
        connection.execute("UPDATE customers SET id = 1018 WHERE id = %s", (MOVED,))
        wait_until(
            lambda: all(everywhere(shell, name) for name in NAMES.values()), timeout_s=LONG_S
        )
        refused = shell("forget", "customers", str(GONE), code=2)
        alive = shell("forget", "customers", str(GONE), "--yes", code=1)
        connection.execute("DELETE FROM customers WHERE id = ANY (%s)", ([GONE, 1018],))
        connection.execute(
            "UPDATE customers SET name = 'erased', email = NULL, about = 'erased' WHERE id = %s",
            (STAYS,),
        )
    words = (str(GONE), "1018", str(STAYS), "--row-stays", "--yes")
    certificate = shell.json("forget", "customers", *words, code=None)
    writing.end()
    return Forgotten(refused.stderr, alive.stderr, certificate)


def found(shell: Shell, text: str) -> list[str]:
    return search_files(shell.folder / ".headwater", [text]).matching_files


def everywhere(shell: Shell, text: str) -> bool:
    parts = {"/".join(place.split("/")[:2]) for place in found(shell, text)}
    servers = {"data/kafka", "data/opensearch", "data/valkey"}
    return parts >= {"archive/shop", "tables/customers", "views/customers", *servers}


def test_a_person_is_forgotten_in_every_place(shell: Shell, forgotten: Forgotten) -> None:
    certificate = forgotten.certificate

    assert "--yes" in forgotten.refused
    assert "HW-P144" in forgotten.alive
    assert certificate.get("complete"), json.dumps(certificate, indent=2)
    assert {name: [] for name in NAMES.values()} == {
        name: found(shell, name) for name in NAMES.values()
    }
    assert 1 == certificate["former_keys"]
    assert certificate["values_searched"] >= 6
    assert [] == shell.json("query", OF_GONE)
    assert [{"name": "erased", "is_current": True}] == shell.json("query", OF_STAYING)
    shell("view", "verify")


@pytest.mark.usefixtures("forgotten")
def test_what_is_rebuilt_equals_the_live_view_whatever_is_killed(
    shell: Shell, traffic: Traffic
) -> None:
    """The job, which keeps the live view and takes the other over, and whoever fills that."""
    random = Random(11)  # noqa: S311
    for _ in range(2):
        rebuild = begun(shell, "view", "rebuild", "customers_history", "--share", "0.02")
        with contextlib.suppress(subprocess.TimeoutExpired):
            rebuild.wait(random.uniform(1, 8))
        os.kill(job_of(shell), signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            rebuild.wait(random.uniform(0, 3))
        rebuild.kill()
        rebuild.wait(30)
        wait_until(lambda: shell("status", code=None).returncode == 0, timeout_s=LONG_S)
    wait_until(lambda: state_of(shell) == "held" or went_on(shell), timeout_s=LONG_S)

    compared = shell.json("view", "compare", "customers_history")
    traffic.end()

    assert compared["same"], compared
    reports = shell.json("view", "verify", "customers_history")
    assert {"customers_history", "customers_history.v2"} == {each["view"] for each in reports}
    shell("view", "cutover", "customers_history")
    assert [] == shell.json("query", OF_GONE)
    assert [{"name": "erased", "is_current": True}] == shell.json("query", OF_STAYING)


def begun(shell: Shell, *words: str) -> subprocess.Popen[bytes]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADWATER_")}
    return subprocess.Popen(
        [sys.executable, "-m", "headwater", *words],
        cwd=shell.folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def job_of(shell: Shell) -> int:
    services = shell.json("status", code=None)["services"]
    return next(int(each["pid"]) for each in services if each["name"] == "projections")


def went_on(shell: Shell) -> bool:
    """Goes on with the rebuild; the job may be starting again, and is waited for then."""
    return shell("view", "rebuild", "customers_history", code=None).returncode == 0


def state_of(shell: Shell) -> str | None:
    rows = shell.json("view", "list", "--versions")
    states = [r["state"] for r in rows if (r["view"], r["version"]) == ("customers_history", 2)]
    return states[0] if states else None
