"""What the commands say of views that are in no store yet: before `up`, and right after it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc.lsn import Lsn
from cdc.postgres import captures, own_schema, server
from cdc.postgres.captures import Capture
from headwater.cli import main
from headwater.platform.platform import Platform
from headwater.project.project import open_project, settings_file
from headwater.runtime import RuntimeStatus
from headwater.runtime.process import ProcessRecord
from projections.definition.views import Store
from projections.publishing import positions
from tests.support.project_text import cache_project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration

VIEWS = """
from headwater import source, view

shop = source("shop", tables=["public.orders", "public.notes"])
orders = view.mirror("orders", shop.orders, to=["cache", "table"])
view.mirror("notes", shop.notes, to=["table"])
"""
IN_CACHE, IN_TABLE = ("orders", Store.CACHE), ("orders", Store.TABLE)
NOTES = ("notes", Store.TABLE)


@pytest.fixture
def source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: str, cache_url: str
) -> Iterator[psycopg.Connection[Any]]:
    """The source of a project in this folder, never captured."""
    (tmp_path / "headwater.toml").write_text(cache_project(database, cache_url))
    (tmp_path / "views.py").write_text(VIEWS)
    monkeypatch.chdir(tmp_path)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, status text)")
        connection.execute("CREATE TABLE notes (id int PRIMARY KEY, text text)")
        yield connection


@pytest.fixture
def platform(source: psycopg.Connection[Any]) -> Platform:
    """Captured, and nothing built."""
    own_schema.ensure(source)
    return Platform(open_project(None), settings_file(None))


def declare(folder: Path, dsn: str, more: str = "") -> None:
    """Writes the settings of a project whose Kafka and Connect are its own."""
    settings = f'[project]\nname = "shop"\n[source.shop]\ndsn = "{dsn}"\n{more}'
    (folder / "headwater.toml").write_text(settings)


def hints(platform: Platform, *, job_runs: bool) -> dict[str, str | None]:
    return {each.name: each.hint for each in platform.views.to_build(job_runs=job_runs)}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("view", "status"), 0, "no view has applied anything yet"),
        (("view", "list", "--versions"), 0, "the job has kept no view yet"),
        (("view", "versions"), 0, "nothing is published yet"),
        (("view", "resume", "orders"), 3, "was never captured"),
        (("view", "explain", "orders"), 0, "mirror"),
        (("alert", "list"), 0, "no alert is declared"),
        (("quarantine", "list"), 0, "nothing waits"),
        (("source", "changes"), 0, "no captured table has changed yet"),
        (("query", "SELECT 1"), 2, "no view has a table yet"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, tuple) else None,
)
@pytest.mark.usefixtures("source")
def test_a_command_before_the_first_up_answers_without_a_traceback(
    words: tuple[str, ...], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = main([*words])
    told = capsys.readouterr()

    assert said in told.out + told.err
    assert code == ended


def test_plan_before_the_first_up_shows_what_will_be_made_and_makes_nothing(
    source: psycopg.Connection[Any],
    database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    declare(tmp_path, database)

    assert 3 == main(["plan", "--json"])
    planned = json.loads(capsys.readouterr().out)

    named = {(each["part"], each["name"]) for each in planned["differences"]}
    assert {
        ("schema", "headwater"),
        ("publication", "headwater_shop"),
        ("slot", "headwater_shop"),
        ("topic", "shop.public.orders"),
        ("connector", "headwater-shop"),
        ("table", "public.orders"),
        ("view", "orders in cache"),
    } <= named
    assert [] == planned["building"] == planned["unseen"]
    assert not own_schema.exists(source)
    found = source.execute("SELECT count(*) FROM pg_publication").fetchone()
    assert found == (0,)


def test_plan_with_servers_down_shows_the_source_and_names_what_it_cannot_see(
    source: psycopg.Connection[Any],
    database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    declare(tmp_path, database)
    started_and_stopped(tmp_path)

    assert 3 == main(["plan", "--json"])
    planned = json.loads(capsys.readouterr().out)
    assert 3 == main(["plan"])
    shown = capsys.readouterr()

    parts = {each["part"] for each in planned["differences"]}
    assert {"schema", "publication", "slot", "table", "view"} == parts
    assert [("topics and connector", "headwater up")] == [
        (each["name"], each["hint"]) for each in planned["unseen"]
    ]
    assert "not seen topics and connector cannot be seen" in shown.err
    assert "as declared" not in shown.out + shown.err
    assert not own_schema.exists(source)


def test_plan_with_servers_down_names_a_lost_slot_and_a_raised_epoch(
    source: psycopg.Connection[Any],
    database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    declare(tmp_path, database)
    started_and_stopped(tmp_path)
    own_schema.ensure(source)
    here = server.identify(source)
    known = Capture("shop", 1, "headwater_shop", Lsn(1), here.system_id, here.timeline)
    captures.record(source, known)

    def planned() -> list[tuple[str, str, str, bool]]:
        assert 3 == main(["plan", "--json"])
        found = json.loads(capsys.readouterr().out)["differences"]
        return [tuple(e[f] for f in ("part", "name", "aspect", "repaired")) for e in found]

    lost = planned()
    declare(tmp_path, database, "epoch = 2\n")
    raised = planned()

    assert ("source", "shop", "HW-C070", False) in lost
    assert not any(part == "slot" for part, *_ in lost)
    assert ("source", "shop", "epoch", True) in raised
    assert ("slot", "headwater_shop", "", True) in raised


@pytest.mark.parametrize("started", [False, True])
def test_plan_without_the_folders_own_postgres_says_that_the_source_cannot_be_seen(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    started: bool,  # pytest passes it by name
) -> None:
    (tmp_path / "headwater.toml").write_text('[project]\nname = "shop"\n')
    (tmp_path / "views.py").write_text(VIEWS)
    monkeypatch.chdir(tmp_path)
    if started:
        started_and_stopped(tmp_path)

    assert 3 == main(["plan", "--json"])
    planned = json.loads(capsys.readouterr().out)

    assert [] == planned["differences"] == planned["warnings"] == planned["building"]
    assert ["source shop"] == [each["name"] for each in planned["unseen"]]


def started_and_stopped(folder: Path) -> None:
    """Leaves what a start and a stop of the servers leave: their ports and the last status."""
    run = folder / ".headwater" / "run"
    run.mkdir(parents=True)
    names = ("postgres", "kafka", "connect", "opensearch", "valkey")
    (run / "ports.json").write_text(json.dumps(dict.fromkeys(names, 9)))
    ended = ProcessRecord(2**22 + 1, 1, "", "supervisor")
    (run / "status.json").write_text(json.dumps(RuntimeStatus(False, ended).to_json()))


@pytest.mark.usefixtures("source")
def test_a_source_that_refuses_the_role_is_reported_before_a_server_is_started(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    user, rest = database.split("@")
    wrong = user.rpartition(":")[0] + ":wrong@" + rest
    declare(tmp_path, wrong)

    assert 1 == main(["up"])

    assert "HW-C013" in capsys.readouterr().err
    assert not (tmp_path / ".headwater" / "run").exists()


def test_before_the_job_runs_every_view_is_to_be_built_by_up(platform: Platform) -> None:
    assert {"orders in cache", "orders in table", "notes in table"} == set(
        hints(platform, job_runs=False)
    )
    assert {"the job builds it: run headwater up"} == set(hints(platform, job_runs=False).values())
    assert [] == platform.building()  # no job runs


def test_a_view_that_the_running_job_fills_is_no_difference(
    platform: Platform, source: psycopg.Connection[Any]
) -> None:
    platform.views.register()  # as the job does when it starts

    assert {} == hints(platform, job_runs=True)
    assert {IN_CACHE, IN_TABLE, NOTES} == set(platform.views.building())

    positions.publish(source, "shop", {IN_CACHE, NOTES}, Lsn(2**60))
    assert {IN_TABLE} == set(platform.views.building())


def test_a_view_declared_after_the_job_began_needs_another_start(
    platform: Platform, tmp_path: Path
) -> None:
    platform.views.register()
    (tmp_path / "views.py").write_text(
        VIEWS + 'view.mirror("orders_too", shop.orders, to=["table"])\n'
    )
    again = Platform(open_project(None), settings_file(None))

    assert {
        "orders_too in table": "the job builds it when it starts: "
        "run headwater down, then headwater up"
    } == hints(again, job_runs=True)
    assert "orders_too" not in {view for view, _ in again.views.building()}


def test_a_store_that_refuses_a_view_is_named_as_a_difference(platform: Platform) -> None:
    platform.views.register()
    error = {"code": "HW-P062", "message": "full", "detail": None, "hint": None, "retriable": True}
    path = platform.project.settings.home / "run" / "job.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"queries": {"cache": {"error": error}}}))

    assert {"orders in cache": "headwater view status shows what keeps the job from it"} == hints(
        platform, job_runs=True
    )
    assert {IN_TABLE, NOTES} == set(platform.views.building())
