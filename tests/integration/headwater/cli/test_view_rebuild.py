"""`headwater view rebuild` plans once, under the lock of the view's versions, beside no job."""

from __future__ import annotations

import json
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc.postgres import own_schema
from headwater.cli import main
from headwater.cli import rebuild as command
from headwater.operations.versions import Versions
from headwater.platform.platform import Platform
from headwater.project.project import open_project, settings_file
from projections.errors import VersionBusyError
from projections.versions import derived_rebuild, fill, rebuild, registry
from projections.versions.version import VersionState
from tests.support.project_text import cache_project

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import ModuleType

    Connection = psycopg.Connection[Any]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

VIEWS = """
from headwater import source, view

shop = source("shop", tables=["public.orders", "public.customers"])
view.mirror("orders", shop.orders, to=["cache"]{options})
view.mirror("customers", shop.customers, to=["table"])
view.sql("by_name", "SELECT name, count(*) AS n FROM customers GROUP BY name", ["name"])
"""
FEWER = ", apply_as_deletes=\"status = 'cancelled'\""
FROM_SOURCE = ("view", "rebuild", "orders", "--from-source")


@pytest.fixture
def source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: str, cache_url: str
) -> Iterator[Connection]:
    """The source of a project in this folder: version 1 of its views, and a changed definition."""
    (tmp_path / "headwater.toml").write_text(cache_project(database, cache_url))
    (tmp_path / "views.py").write_text(VIEWS.format(options=""))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "nice", lambda _: 0)  # this process runs the other tests, too
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, status text)")
        connection.execute("CREATE TABLE customers (id int PRIMARY KEY, name text)")
        own_schema.ensure(connection)
        project = open_project(None)
        declarations = project.declarations
        views = [*declarations.views.values(), *declarations.derived.values()]
        registry.register(connection, "shop", views)
        (tmp_path / "views.py").write_text(VIEWS.format(options=FEWER))
        yield connection


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The views whose rebuild was planned, in order."""
    planned: list[str] = []
    for module in (rebuild, derived_rebuild):
        _before(module, "plan_rebuild", lambda *given: planned.append(given[2].name), monkeypatch)
    return planned


def _before(
    owner: ModuleType, name: str, act: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Acts before each call of a function."""
    function = getattr(owner, name)

    def watched(*given: Any, **options: Any) -> Any:
        act(*given)
        return function(*given, **options)

    monkeypatch.setattr(owner, name, watched)


def states(connection: Connection, view: str = "orders") -> dict[int, VersionState]:
    return {each.number: each.state for each in registry.of_view(connection, "shop", view)}


def is_locked(connection: Connection) -> bool:
    try:
        with registry.version_lock(connection, "shop", "orders", wait_s=0):
            return False
    except VersionBusyError:
        return True


@contextmanager
def planned_rebuild() -> Iterator[rebuild.PlannedRebuild]:
    versions = Versions(Platform(open_project(None), settings_file(None)))
    with versions.planned_rebuild("orders", "source") as planned:
        yield planned


@pytest.mark.parametrize(
    ("words", "view"),
    [(FROM_SOURCE, "orders"), (("view", "rebuild", "by_name"), "by_name")],
    ids=["from the source", "derived"],
)
def test_a_rebuild_shows_its_plan_and_plans_once(
    source: Connection,
    plans: list[str],
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    view: str,
) -> None:
    assert 1 == main([*words])

    told = capsys.readouterr().err
    assert [view] == plans
    assert 1 == told.count("followed by ")
    assert told.index("followed by ") < told.index("HW-P137"), "no job runs that could adopt it"
    assert {1: VersionState.CURRENT, 2: VersionState.JOINING} == states(source, view)
    assert not is_locked(source)


def test_a_rebuild_with_json_prints_no_plan_and_plans_once(
    source: Connection, plans: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert 1 == main([*FROM_SOURCE, "--json"])

    told = capsys.readouterr()
    assert ["orders"] == plans
    assert "followed by" not in told.err + told.out
    assert "HW-P137" == json.loads(told.out or told.err)["error"]["code"]


def test_a_plan_alone_takes_no_lock_and_changes_nothing(
    source: Connection, plans: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with registry.version_lock(source, "shop", "orders"):
        assert 0 == main([*FROM_SOURCE, "--plan", "--json"])

    document = json.loads(capsys.readouterr().out)
    assert 1 == len(document["differs"])
    assert ["orders"] == plans
    assert {1: VersionState.CURRENT} == states(source)


def test_no_other_command_changes_the_versions_between_the_plan_and_the_rebuild(
    source: Connection, plans: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with planned_rebuild() as planned:
        assert is_locked(source)
        assert 1 == main([*FROM_SOURCE])
        told = capsys.readouterr().err
        assert 1 == main(["view", "cutover", "orders"])
        assert "HW-P131" in capsys.readouterr().err
        assert ["orders"] == plans, "the second one has planned nothing, and shows nothing"
        version = rebuild.begin(source, planned.spec.config, planned.view, planned.plan, 0)

    assert "HW-P131" in told
    assert "followed by" not in told
    assert (2, planned.plan.differs) == (version.number, version.reasons)
    assert not is_locked(source)


def test_a_plan_rests_on_the_versions_after_an_unfinished_cutover(
    source: Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    """The version that the cutover makes active has the present definition already."""
    with planned_rebuild() as planned:
        first = rebuild.begin(source, planned.spec.config, planned.view, planned.plan, 0)
        fill.prepare(source, planned.spec, first)
    before = [VersionState.BUILDING]
    registry.move(source, "shop", first.physical_name, VersionState.HELD, before)
    registry.note_switching(source, "shop", first.physical_name)

    with planned_rebuild() as planned:
        assert () == planned.plan.differs
    assert {1: VersionState.FORMER, 2: VersionState.CURRENT} == states(source)


@pytest.mark.parametrize(
    ("owner", "name"),
    [(rebuild, "plan_rebuild"), (command, "show_plan")],
    ids=["planning", "showing the plan"],
)
def test_ctrl_c_before_the_rebuild_begins_leaves_nothing(
    source: Connection, monkeypatch: pytest.MonkeyPatch, owner: ModuleType, name: str
) -> None:
    locked: list[bool] = []

    def interrupt(*_: object) -> None:
        locked.append(is_locked(source))
        os.kill(os.getpid(), signal.SIGINT)

    _before(owner, name, interrupt, monkeypatch)

    assert 130 == main([*FROM_SOURCE])
    assert [True] == locked
    assert {1: VersionState.CURRENT} == states(source)
    assert not is_locked(source)


def test_ctrl_c_while_the_source_is_asked_for_a_plan_leaves_nothing(
    source: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(connection: Connection, *_: object) -> None:
        """Interrupts a query of the plan."""
        pid = os.getpid()
        signal.signal(signal.SIGALRM, lambda *_: os.kill(pid, signal.SIGINT))
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        connection.execute("SELECT pg_sleep(60)")

    _before(rebuild, "plan_rebuild", interrupt, monkeypatch)

    assert 130 == main([*FROM_SOURCE])
    assert {1: VersionState.CURRENT} == states(source)
    assert not is_locked(source)


def test_ctrl_c_once_the_rebuild_has_begun_leaves_the_rest_to_the_job(
    source: Connection, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _before(registry, "move", lambda *_: os.kill(os.getpid(), signal.SIGINT), monkeypatch)

    assert 130 == main([*FROM_SOURCE])
    assert "HW-P137" in capsys.readouterr().err
    assert {1: VersionState.CURRENT, 2: VersionState.JOINING} == states(source)
