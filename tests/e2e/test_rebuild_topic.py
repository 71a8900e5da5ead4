"""A view is rebuilt from the compacted topic of its table, by the command line alone."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import psycopg
import pytest
from deltalake import DeltaTable
from fix_compaction import await_compacted, compacting
from fix_shell import Shell

from cdc.broker.topics import topics
from projections.archive.table import archive_lock
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=4),
    pytest.mark.timeout(1800),
]

SCHEMA = """
CREATE TABLE orders (id int PRIMARY KEY, status text, note text);
ALTER TABLE orders ALTER note SET STORAGE EXTERNAL;
INSERT INTO orders SELECT n, 'placed', 'note ' || n FROM generate_series(1, 2000) n;
UPDATE orders SET note = repeat('long ' || id, 600) WHERE id BETWEEN 100 AND 120;
"""
VIEWS = """
from headwater import source, view

shop = source("shop", tables=["public.orders"])
view.mirror("orders", shop.orders)
view.mirror("past", shop.orders, scd=2, to=["table"])
"""
KEPT = '\n[source.shop.retention]\n"public.orders" = "latest"\n'
TOPIC = "shop.public.orders"


@pytest.fixture
def shell(database: str, tmp_path: Path) -> Iterator[Shell]:
    with psycopg.connect(database, autocommit=True) as connection:
        for statement in SCHEMA.split(";\n"):
            connection.execute(statement.encode())
    Shell(tmp_path)("init", "shop", "--dsn", database)
    inside = Shell(tmp_path / "shop")
    with (inside.folder / "headwater.toml").open("a") as file:
        file.write(KEPT)
    (inside.folder / "views.py").write_text(VIEWS)
    inside("up")
    yield inside
    inside("down")


def test_a_view_is_rebuilt_from_its_topic_where_the_archive_does_not_reach_back(
    shell: Shell, database: str
) -> None:
    wait_until(
        lambda: shell("plan", code=None).returncode == 0, timeout_s=LONG_S
    )  # the views are there
    bootstrap = _bootstrap(shell)
    with psycopg.connect(database, autocommit=True) as connection:

        def write() -> None:
            connection.execute("UPDATE orders SET status = 'paid' WHERE id <= 500")
            connection.execute("DELETE FROM orders WHERE id BETWEEN 1900 AND 1910")

        with compacting(bootstrap, TOPIC):
            await_compacted(bootstrap, TOPIC, write)
        shell("view", "verify", "orders")
        archive = shell.folder / ".headwater" / "archive" / "shop"
        with archive_lock(archive):
            DeltaTable(str(archive)).delete(f"topic = '{TOPIC}' AND \"offset\" < 100")

        refused = shell("view", "rebuild", "past", "--plan").stderr
        assert "every change counts for it" in refused
        assert "HW-P107" in shell("view", "rebuild", "past", code=1).stderr
        told = shell("view", "rebuild", "orders", "--plan").stderr
        assert "filled from the compacted topic of its table" in told
        planned = shell.json("view", "rebuild", "orders", "--plan")
        assert ("topic", None) == (planned["filled_from"], planned["lacking"])
        before = connection.execute("SELECT count(*) FROM headwater.snapshots").fetchone()

        built = shell.json("view", "rebuild", "orders", "--share", "1")

        assert (2, "held") == (built["version"], built["state"])
        assert built["replayed"]["records"] < planned["changes"]
        connection.execute("UPDATE orders SET status = 'sent' WHERE id < 10")
        shell("view", "verify")
        compared = shell.json("view", "compare", "orders")
        assert (True, {}) == (compared["same"], compared["explained"])
        shown = shell.json("view", "cutover", "orders")
        assert 2 == shown["version"]
        rows = shell.json("query", "SELECT count(*) AS n, min(note) AS note FROM orders")
        assert 1989 == rows[0]["n"]
        after = connection.execute(
            "SELECT count(*), count(*) FILTER (WHERE keys IS NULL) FROM headwater.snapshots"
        ).fetchone()
        assert before is not None
        assert after is not None
        assert before[0] == after[1], "the table was not read as a whole again"
        copies = shell.folder / ".headwater" / "copies" / "shop"
        assert not any(copies.glob("*"))
        shutil.copytree(archive, copies / "orders.v9" / "records")  # whoever was killed
        connection.execute("DELETE FROM orders WHERE id = 110")
        certificate = shell.json("forget", "public.orders", "110", "--yes", code=None)
        assert not copies.joinpath("orders.v9").exists(), json.dumps(certificate)
    assert topics.find(bootstrap, [TOPIC])


def _bootstrap(shell: Shell) -> str:
    status = shell.json("status")
    (kafka,) = (each for each in status["services"] if each["name"] == "kafka")
    return str(kafka["address"])
