"""Nothing is forgotten by halves: what an erasure would pass over is named, and it is refused."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc.lsn import Lsn
from cdc.postgres import own_schema
from cdc.schema_change import history, trigger
from cdc.table import TableName
from headwater.errors import UnhealthyError
from headwater.operations.erase_rows import RowErasure
from headwater.platform.platform import Platform
from headwater.project.project import open_project
from projections.common.fault import Fault
from projections.definition.views import Store
from projections.erasure.unreached import unreached
from projections.errors import ForgettingRefusedError, IndexRefusedError
from projections.job.status import JobState, JobStatus
from projections.planning import binding
from projections.planning.job_spec import PausedView
from projections.publishing import positions
from projections.versions import registry
from projections.versions.version import VersionState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from projections.definition.views import DerivedView
    from projections.planning.view_plan import ViewPlan

pytestmark = pytest.mark.integration

SETTINGS = """
[project]
name = "shop"
[source.{name}]
dsn = "{dsn}"
[services.kafka]
address = "127.0.0.1:1"
[services.connect]
address = "http://127.0.0.1:1"
[services.search]
address = "http://127.0.0.1:1"
[services.cache]
address = "redis://127.0.0.1:1/0"
"""
HEAD = """
from headwater import source, view
shop = source("{name}", tables=["people", "orders"])
"""
PEOPLE = """
view.mirror("people", shop.people)
view.mirror("people_history", shop.people, keys=["id"], scd=2)
"""
OLD = """
view.mirror("old", shop.people, to=["table"])
"""
OTHERS = """
view.mirror("orders", shop.orders, to=["table", "cache"])
view.sql("totals", "totals.sql", keys=["id"], to=["table"])
"""
NAMES = """
view.sql("names", "names.sql", keys=["id"], to=["table"])
view.sql("initials", "initials.sql", keys=["id"], to=["table"])
"""
PEOPLES, ORDERS = TableName("public", "people"), TableName("public", "orders")


class Project:
    """A project whose job has begun once, with what it has noted in its source."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.folder = folder
        self.name = f"s_{secrets.token_hex(4)}"
        (folder / "headwater.toml").write_text(SETTINGS.format(name=self.name, dsn=dsn))
        for name, sql in (
            ("totals", "SELECT id, total FROM orders"),
            ("names", "SELECT id, name FROM people"),
            ("initials", "SELECT id, left(name, 1) AS initial FROM names"),
        ):
            (folder / f"{name}.sql").write_text(sql)
        self.source = psycopg.connect(dsn, autocommit=True)
        self.source.execute(
            "CREATE TABLE people (id int PRIMARY KEY, name text, age int);"
            "CREATE TABLE orders (id int PRIMARY KEY, total int)"
        )
        own_schema.ensure(self.source)
        trigger.ensure(self.source)
        history.observe(self.source, (PEOPLES, ORDERS))

    def declare(self, *texts: str) -> None:
        (self.folder / "views.py").write_text("".join((HEAD, *texts)).format(name=self.name))

    def platform(self) -> Platform:
        return Platform(open_project(), self.folder / "headwater.toml")

    def begin(self) -> None:
        """What a job does when it begins: it decides, and notes definitions and positions."""
        platform = self.platform()
        platform.views.register()
        kept = registry.maintained(
            self.source, self.name, platform.project.declarations.views.values()
        )
        binding.bind(self.source, self.name, [each.view for each in kept], decides=True)
        spec = platform.views.job_spec()
        views: tuple[ViewPlan | DerivedView, ...] = (*spec.plans, *spec.derived)
        there = [(each.name, store) for each in views for store in each.to]
        if there:
            positions.publish(self.source, self.name, there, Lsn(1))

    def passed_over(self, table: TableName = PEOPLES) -> list[tuple[str, str]]:
        platform = self.platform()
        found = unreached(
            self.source, platform.views.job_spec(), table, platform.job_report.halted()
        )
        return [(each.physical_name, each.why) for each in found]

    def refused(self) -> ForgettingRefusedError:
        with pytest.raises(ForgettingRefusedError) as told:
            RowErasure(self.platform(), PEOPLES).forget([1])
        return told.value


@pytest.fixture
def project(tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.chdir(tmp_path)
    made = Project(tmp_path, database)
    made.declare(PEOPLE, OLD, OTHERS, NAMES)
    made.begin()
    with made.source:
        yield made


def test_where_every_view_is_kept_nothing_is_passed_over(project: Project) -> None:
    assert [] == project.passed_over()
    assert [] == project.passed_over(ORDERS)


def test_views_that_are_paused_keep_what_they_have(project: Project) -> None:
    project.source.execute("ALTER TABLE people ALTER age TYPE text")
    project.begin()

    told = project.refused()

    places = "old", "people", "people_history"
    assert "; ".join(f"{place}: paused: HW-P051" for place in places) == told.detail
    assert "headwater view resume people;" in (told.hint or "")
    assert [] == project.passed_over(ORDERS)


def test_a_view_that_pauses_amid_it_is_waited_for(project: Project) -> None:
    places = {("people", Store.CACHE), ("people", Store.TABLE)}
    project.declare(PEOPLE)
    platform = project.platform()
    platform.await_applied(Lsn(1), 1, places)
    project.source.execute("ALTER TABLE people ALTER age TYPE text")
    project.begin()

    platform.await_applied(Lsn(2), 1)
    with pytest.raises(UnhealthyError, match="have not reached") as told:
        platform.await_applied(Lsn(2), 0.5, places)

    assert "people in cache, people in table" == told.value.detail


def test_a_view_that_its_store_refuses_keeps_what_it_has_there(project: Project) -> None:
    fault = Fault.of(IndexRefusedError("search refuses an index"))
    halted = [
        PausedView(name, frozenset({Store.SEARCH}), (), fault) for name in ("people", "orders")
    ]
    JobStatus(JobState.READY, paused=halted).write(project.platform().project.home.run / "job.json")

    told = project.refused()

    assert f"people: stopped in search: {fault.code}" == told.detail


def test_what_is_declared_no_more_keeps_what_it_has(project: Project) -> None:
    project.declare(PEOPLE, OTHERS)

    told = project.refused()

    gone = "its view is declared no more"
    assert f"initials: {gone}; names: {gone}; old: {gone}" == told.detail
    assert "headwater view drop old --yes, or declare it again" in (told.hint or "")
    project.declare(PEOPLE, OLD, NAMES)
    assert [] == project.passed_over()
    assert [("orders", gone), ("totals", gone)] == project.passed_over(ORDERS)


def test_a_store_that_a_view_was_taken_out_of_keeps_what_it_has(project: Project) -> None:
    project.declare(PEOPLE.replace("shop.people)", 'shop.people, to=["table"])'), OLD, NAMES)
    project.begin()

    told = project.refused()

    assert told.detail == "; ".join(
        f"people: was kept in {store} before, and still lies there" for store in ("cache", "search")
    )


def test_what_a_drop_has_left_is_dropped_first(project: Project) -> None:
    for view in ("people", "names"):
        declared = project.platform().project.declarations
        number = registry.add(
            project.source, project.name, {**declared.views, **declared.derived}[view]
        )
        place = f"{view}.v{number}"
        positions.publish(project.source, project.name, [(place, Store.TABLE)], Lsn(1))
        dropped = [VersionState.BUILDING]
        registry.move(project.source, project.name, place, VersionState.DROPPED, dropped)

    told = project.refused()

    assert "names.v2: was dropped by halves; people.v2: was dropped by halves" == told.detail
    assert "headwater view drop people 2 --yes" in (told.hint or "")
    for view in ("people", "names"):
        registry.forget(project.source, project.name, f"{view}.v2")
    assert [] == project.passed_over()


def test_a_renamed_table_is_the_same_one(project: Project) -> None:
    project.declare(PEOPLE)
    project.begin()
    project.source.execute("ALTER TABLE people RENAME TO clients")
    project.begin()

    found: list[tuple[str, Any]] = project.passed_over(TableName("public", "clients"))

    assert {"people", "people_history"} <= {place for place, _ in found}
