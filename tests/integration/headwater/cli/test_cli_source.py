"""The commands that look after a source, as a person runs them, on servers that run already."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

import pytest

from cdc import source
from cdc.broker.topics import topics
from cdc.postgres import session
from headwater.cli import main
from headwater.platform.platform import Platform
from headwater.platform.specs import capture_spec
from headwater.project.project import open_project
from projections.planning.binding import bind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration

SETTINGS = """
[project]
name = "shop"
[source.{name}]
dsn = "{dsn}"
heartbeat_interval_ms = 200
salt = "a salt of sixteen or more"
[source.{name}.retention]
"public.orders" = "3 days, 1 GB"
[services.kafka]
address = "{kafka}"
[services.connect]
address = "{connect}"
[services.search]
address = "http://127.0.0.1:1"
[services.cache]
address = "redis://127.0.0.1:1/0"
"""
VIEWS = """
from headwater import ColumnRules, source, view
shop = source("{name}", tables=["orders"], columns={{"orders": ColumnRules(hash=["email"])}})
view.mirror("orders", shop.orders, to=["cache"])
"""
TABLE = "CREATE TABLE orders (id int PRIMARY KEY, email text)"


@pytest.fixture
def project(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    database: str,
    kafka_bootstrap: str,
    connect_url: str,
) -> Iterator[str]:
    """A project in this folder; returns its source's name."""
    name = f"s_{secrets.token_hex(4)}"
    places = {"dsn": database, "kafka": kafka_bootstrap, "connect": connect_url}
    (tmp_path / "headwater.toml").write_text(SETTINGS.format(name=name, **places))
    (tmp_path / "views.py").write_text(VIEWS.format(name=name))
    monkeypatch.chdir(tmp_path)
    with session.connect(database) as connection:
        connection.execute(TABLE)
    yield name
    opened = open_project()
    platform = Platform(opened, tmp_path / "headwater.toml")
    spec = capture_spec(opened, database, platform.endpoints)
    source.remove(spec, with_topics=True)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any]]:
    def words(*line: str) -> tuple[int, Any]:
        code = main([*line, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return words


def test_a_plan_is_applied_and_drift_shows_until_it_is_applied_again(
    project: str, run: Callable[..., tuple[int, Any]], kafka_bootstrap: str
) -> None:
    planned, before = run("plan")
    applied, done = run("apply")
    topics.alter(kafka_bootstrap, f"{project}.public.orders", {"retention.ms": "60000"})
    drifted, after = run("plan")
    status, told = run("source", "status")
    again, repaired = run("apply")

    assert (3, 3, 3, 3, 3) == (planned, applied, drifted, status, again)
    assert {"schema", "publication", "slot", "topic", "connector", "table", "view"} == {
        found["part"] for found in before["differences"]
    }
    assert f"registered connector headwater-{project}" in done["changes"]
    views = [{"part": "view", "name": "orders in cache"}]
    assert views == [{key: left[key] for key in ("part", "name")} for left in done["left"]]
    moved = {"aspect": "retention.ms", "have": "60000", "want": str(3 * 24 * 3_600_000)}
    assert moved.items() <= after["differences"][0].items()
    assert moved.items() <= told["drift"][0].items()
    assert "RUNNING" == told["flow"]["state"]
    assert 1 == len(repaired["changes"])
    assert "a salt of sixteen" not in f"{before}{done}{after}{told}{repaired}"


def test_the_log_is_told_by_topic_and_by_arithmetic(
    project: str, run: Callable[..., tuple[int, Any]]
) -> None:
    run("apply")

    code, measured = run("source", "retention", "--window-s", "0.2")
    numbers = ("--bytes-per-second", "150e6", "--disk-bytes", "6e12")
    computed_code, computed = run("source", "retention", *numbers)

    orders = [kept for kept in measured["topics"] if kept["topic"] == f"{project}.public.orders"]
    assert (0, 0) == (code, computed_code)
    assert [3 * 24 * 3600] == [kept["keeps_s"] for kept in orders]
    assert 11.1 == computed["lasts_hours"]
    assert [] == computed["topics"]


def test_the_role_is_printed_as_sql_that_runs(
    project: str, run: Callable[..., tuple[int, Any]], database: str
) -> None:
    name = f"r_{project}"
    code, statements = run("source", "role", "--name", name)

    with session.connect(database) as connection:
        for statement in statements:
            connection.execute(statement["sql"].encode())
        row = connection.execute(
            "SELECT rolreplication, rolsuper, has_table_privilege(oid, 'orders', 'SELECT')"
            " FROM pg_roles WHERE rolname = %s",
            (name,),
        ).fetchone()
        connection.execute(f"DROP OWNED BY {name}".encode())
        connection.execute(f"DROP ROLE {name}".encode())

    assert code == 0
    assert all(statement["why"] for statement in statements)
    assert (True, False, True) == row


def test_a_lost_slot_is_shown_refused_and_repaired_by_the_command_that_is_named(
    project: str, run: Callable[..., tuple[int, Any]], database: str
) -> None:
    run("apply")
    whole, held = run("source", "slot")
    main(["source", "pause"])
    with session.connect(database) as connection:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (f"headwater_{project}",))
    lost, gone = run("source", "slot")
    status, told = run("source", "status")
    applied, refused = run("apply")
    shown, will = run("source", "repair")
    repaired, done = run("source", "repair", "--yes")
    again, after = run("source", "slot", "--disk-bytes", str(10**15))

    assert (0, 3, 3, 3, 3, 0, 0) == (whole, lost, status, applied, shown, repaired, again)
    assert ("ok", True, True) == (held["level"], held["moves"], held["slot"]["active"])
    assert held["wal_bytes_per_s"] > 0
    assert held["disk_free_bytes"] > held["slot"]["retained_bytes"]
    assert held["slot"]["restart_lsn"] <= held["slot"]["confirmed_flush_lsn"]
    assert ["HW-C070"] * 3 == [
        found["code"] for found in (gone["loss"], told["loss"], refused["error"])
    ]
    assert "headwater source repair --yes" == refused["error"]["hint"]
    assert (1, 2, "HW-C070") == (will["epoch"], will["becomes"], will["loss"]["code"])
    assert "public.orders is to be read" in done["done"]
    assert (None, None) == (held["loss"], after["loss"])
    assert 10**14 < after["disk_free_bytes"] < 10**15


def test_changes_of_tables_are_listed_and_a_paused_view_is_named_until_it_is_resumed(
    project: str,
    run: Callable[..., tuple[int, Any]],
    database: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run("apply")
    views = list(open_project().declarations.views.values())
    with session.connect(database) as connection:
        bind(connection, project, views, decides=True)
        connection.execute("ALTER TABLE orders ADD n int")
        connection.execute("ALTER TABLE orders ALTER n TYPE text")
        bind(connection, project, views, decides=True)

    listed, changes = run("source", "changes")
    main(["view", "status"])
    told = capsys.readouterr().err
    resumed = main(["view", "resume", "orders"])
    capsys.readouterr()
    again = main(["view", "resume", "orders"])

    assert listed == resumed == 0
    assert [(row["change"], row["command"], row["views"]) for row in changes] == [
        ("column added: n (integer)", "ALTER TABLE", "orders: paused"),
        ("column retyped: n (integer to text)", "ALTER TABLE", "orders: paused"),
    ]
    assert "headwater view resume orders" in told
    assert again == 1
    assert "not paused" in capsys.readouterr().err
    assert run("source", "changes")[1][-1]["views"] == "orders: resumed"
