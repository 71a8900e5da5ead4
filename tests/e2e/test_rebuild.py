"""A view is rebuilt beside the one that readers see, by the command line alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
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
    pytest.mark.timeout(2400),
]

SCHEMA = """
CREATE TABLE orders (id int PRIMARY KEY, customer text, status text, total numeric(12, 2));
CREATE TABLE customers (id int PRIMARY KEY, name text);
INSERT INTO orders SELECT n, 'customer ' || n % 7, CASE n % 4 WHEN 0 THEN 'cancelled' ELSE 'placed'
    END, n FROM generate_series(1, 6000) n;
INSERT INTO customers VALUES (1, 'one');
"""
VIEWS = """
from headwater import source, view

shop = source("shop", tables=["public.orders", "public.customers"])
view.mirror("orders", shop.orders{said})
view.mirror("customers", shop.customers, to=["cache"])
view.sql("by_status", "by_status.sql", keys=["status"], to=["table", "cache"])
"""
PLACED = ", apply_as_deletes=\"status = 'cancelled'\""
NARROW = ', except_column_list=["customer"]'
BY_STATUS = "SELECT status, count(*) AS orders, sum(total) AS total FROM orders GROUP BY status"
COUNT = "SELECT count(*) AS n FROM orders"


@pytest.fixture
def shell(database: str, tmp_path: Path) -> Iterator[Shell]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(SCHEMA)
    Shell(tmp_path)("init", "shop", "--dsn", database)
    inside = Shell(tmp_path / "shop")
    declare(inside, "")
    inside("up")
    yield inside
    inside("down")


def declare(shell: Shell, said: str) -> None:
    (shell.folder / "views.py").write_text(VIEWS.format(said=said))
    (shell.folder / "by_status.sql").write_text(BY_STATUS)


def begun(shell: Shell, *words: str, stderr: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADWATER_")}
    return subprocess.Popen(
        [sys.executable, "-m", "headwater", *words],
        cwd=shell.folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
    )


def versions(shell: Shell) -> list[tuple[int, str]]:
    rows = shell.json("view", "list", "--versions")
    return [(row["version"], row["state"]) for row in rows if row["view"] == "orders"]


def begun_with(database: str) -> list[int]:
    """Versions of the view that are being built; who asks by a command takes seconds for that."""
    query = (
        "SELECT version FROM headwater.view_versions WHERE view = 'orders' AND state = 'building'"
    )
    with psycopg.connect(database) as connection:
        return [number for (number,) in connection.execute(query)]


def stable(shell: Shell) -> Any:
    return DeltaTable(str(shell.folder / ".headwater" / "views" / "orders")).to_pyarrow_table()


def test_a_changed_definition_is_planned_built_compared_shown_and_taken_back(
    shell: Shell, database: str
) -> None:
    wait_until(lambda: not shell.json("plan")["building"], timeout_s=LONG_S)  # the views are there
    declare(shell, PLACED)
    planned = {(each["name"], each["aspect"]) for each in shell.json("plan", code=3)["differences"]}
    assert {("orders", "definition")} == planned
    said = shell.json("view", "rebuild", "orders", "--plan")
    assert 6000 <= said["changes"]
    assert ["by_status"] == said["followed_by"]
    assert [(1, "current")] == versions(shell)

    # one is killed, another paused; a third meets one that is at it; the last goes on with it
    killed = begun(shell, "view", "rebuild", "orders", "--share", "0.0001")
    wait_until(lambda: begun_with(database) == [2], timeout_s=LONG_S)
    assert "HW-P131" in shell("view", "rebuild", "orders", code=1).stderr
    killed.send_signal(signal.SIGKILL)
    killed.wait(30)
    assert [(1, "current"), (2, "building")] == versions(shell)
    assert "HW-P133" in shell("view", "cutover", "orders", code=1).stderr
    words = ("view", "rebuild", "orders", "--share", "0.0001")
    paused = begun(shell, *words, stderr=subprocess.PIPE)
    assert paused.stderr is not None
    assert any(line.startswith(b"followed by") for line in paused.stderr), "it has planned"
    paused.send_signal(signal.SIGINT)
    paused.communicate(timeout=60)
    assert 130 == paused.returncode
    built = shell.json("view", "rebuild", "orders", "--share", "1")
    assert (2, "held") == (built["version"], built["state"])
    assert "HW-P136" in shell("view", "rebuild", "orders", code=1).stderr

    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("UPDATE orders SET total = total + 1, status = 'placed' WHERE id = 4")
    found = shell.json("view", "compare", "orders")
    assert found["same"]
    assert ["rows that orders.v2 excludes: apply_as_deletes"] == [*found["explained"]]
    assert [{"n": 6000}] == shell.json("query", COUNT)

    assert 2 == shell.json("view", "cutover", "orders")["version"]
    assert [{"n": 4501}] == shell.json("query", COUNT)
    assert 4501 == stable(shell).num_rows
    assert "no row" in shell("cache", "get", "orders", "8", code=1).stderr
    wait_until(
        lambda: shell.json("query", "SELECT sum(orders) AS n FROM by_status") == [{"n": 4501}],
        timeout_s=LONG_S,
    )
    reports = shell.json("view", "verify")
    assert all(r["missing"] == r["extra"] == r["different"] == 0 for r in reports)
    assert {"orders", "orders.v2"} <= {report["view"] for report in reports}

    assert 1 == shell.json("view", "rollback", "orders")["version"]
    assert [{"n": 6000}] == shell.json("query", COUNT)
    assert 6000 == stable(shell).num_rows
    wait_until(
        lambda: shell.json("query", "SELECT sum(orders) AS n FROM by_status") == [{"n": 6000}],
        timeout_s=LONG_S,
    )

    _bad_input(shell)
    _differing(shell)
    _switched_by_rule(shell, database)
    _begun_and_dropped(shell, database)
    _made_from_others(shell)


def _bad_input(shell: Shell) -> None:
    assert 2 == shell("view", "drop", "orders", "2", code=2).returncode
    assert "HW-P132" in shell("view", "drop", "orders", "1", "--yes", code=1).stderr
    shell("view", "drop", "orders", "2", "--yes")
    assert [(1, "current")] == versions(shell)
    assert "HW-P132" in shell("view", "rollback", "orders", code=1).stderr
    assert "HW-P132" in shell("view", "cutover", "orders", "9", code=1).stderr
    assert "did you mean orders?" in shell("view", "rebuild", "ordres", code=2).stderr
    derived = shell("view", "rebuild", "by_status", "--from-source", code=2)
    assert "has no table to be read" in derived.stderr


def _differing(shell: Shell) -> None:
    """A version that somebody has damaged is not shown, unless that is wanted."""
    declare(shell, NARROW)
    built = shell.json("view", "rebuild", "orders")
    assert (3, "held") == (built["version"], built["state"])
    place = DeltaTable(str(shell.folder / ".headwater" / "tables" / "orders.v3"))
    place.update({"total": "total + 1"}, predicate="id = 17")
    wait_until(
        lambda: not shell.json("view", "compare", "orders", code=None)["same"], timeout_s=LONG_S
    )
    refused = shell.json("view", "cutover", "orders", code=1)["error"]
    assert "HW-P134" == refused["code"]
    assert "total: 1 rows" in refused["detail"]
    shown = shell.json("view", "cutover", "orders", "--accept-differences")
    assert (3, 1) == (shown["version"], shown["difference"]["changed"])


def _switched_by_rule(shell: Shell, database: str) -> None:
    """A version is shown by itself only if it differs in nothing that is not explained."""
    declare(shell, "")
    rule = "view", "rebuild", "orders", "--share", "1", "--cutover", "when-explained"
    held = shell.json(*rule, code=3)
    assert (4, "held") == (held["version"], held["state"])
    assert {"total": 1} == held["difference"]["by_column"], "what readers see was damaged"
    assert (4, "held") in versions(shell)

    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("UPDATE orders SET total = 17 WHERE id = 17")
    wait_until(lambda: shell.json("view", "compare", "orders", code=None)["same"], timeout_s=LONG_S)
    shown = shell.json(*rule)  # goes on with what is held
    assert (4, "current", True) == (shown["version"], shown["state"], shown["difference"]["same"])
    assert (4, "current") in versions(shell)


def _begun_and_dropped(shell: Shell, database: str) -> None:
    """What a killed rebuild has left is gone with a command."""
    killed = begun(shell, "view", "rebuild", "orders", "--share", "0.0001")
    wait_until(lambda: begun_with(database) == [5], timeout_s=LONG_S)
    killed.send_signal(signal.SIGKILL)
    killed.wait(30)
    place = shell.folder / ".headwater" / "tables" / "orders.v5"
    shell("view", "drop", "orders", "5", "--yes")
    assert not place.exists()
    assert (5, "building") not in versions(shell)


def _made_from_others(shell: Shell) -> None:
    """A view that is made from others gets another measure beside itself, and loses it again."""
    query, rule = "SELECT * FROM by_status", ("--cutover", "when-explained")
    measured = BY_STATUS.replace("AS total", "AS total, max(total) AS most", 1)
    (shell.folder / "by_status.sql").write_text(measured)
    planned = {(d["name"], d["aspect"]) for d in shell.json("plan", code=3)["differences"]}
    assert ("by_status", "definition") in planned
    assert "most" not in shell.json("query", query)[0]
    shown = shell.json("view", "rebuild", "by_status", *rule)
    assert (2, "current") == (shown["version"], shown["state"])
    assert ["column most"] == [*shown["difference"]["explained"]]
    assert shell.json("query", query)[0]["most"] is not None
    assert all(
        report["missing"] == report["extra"] == report["different"] == 0
        for report in shell.json("view", "verify", "by_status")
    )
    assert 1 == shell.json("view", "rollback", "by_status")["version"]
    assert "most" not in shell.json("query", query)[0]
    shell("view", "drop", "by_status", "2", "--yes")
