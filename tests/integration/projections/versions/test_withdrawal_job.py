"""A view is withdrawn: all of it goes from every store, and it can be declared again."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import redis

from headwater.platform.job_status import JobReport
from headwater.reading import sql
from projections.definition.registry import load
from projections.errors import (
    CacheUnknownError,
    SinkUnavailableError,
    VersionError,
    VersionUnknownError,
)
from projections.publishing import positions
from projections.publishing.published_versions import Published, stable_path
from projections.stores.opensearch.client import SearchEngine
from projections.stores.opensearch.searcher import Searcher
from projections.stores.valkey.reader import CacheReader
from projections.versions import registry, retire
from projections.versions.version import VersionState
from tests.fix_capture import reading
from tests.support.version_steps import built, connected, switched
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from projections.planning.job_spec import JobSpec
    from tests.fix_capture import Captured
    from tests.fix_spark import ViewJob

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=3),
    pytest.mark.timeout(1200),
]

TABLE = """
CREATE TABLE orders (id int PRIMARY KEY, number int, status text);
INSERT INTO orders SELECT n, n, CASE n % 3 WHEN 0 THEN 'paid' ELSE 'placed' END
  FROM generate_series(1, 300) n
"""
HEAD = """
from headwater import source, view
shop = source("{name}", tables=["public.orders"])
view.mirror("{name}_kept", shop.orders)
"""
ORDERS = """
view.mirror("{name}_orders", shop.orders{said})
"""
STATES = """
view.sql("{name}_states", "SELECT status, count(*) AS orders FROM {name}_kept GROUP BY 1",
         ["status"])
"""
NOWHERE = "redis://127.0.0.1:1/0"


class Project:
    """A job, and the file of views that it is started with."""

    def __init__(self, job: ViewJob, captured: Captured, folder: Path) -> None:
        self.job = job
        self.captured = captured
        self.source = job.spec.config.source
        self._folder = folder

    @property
    def spec(self) -> JobSpec:
        return self.job.spec

    def name(self, view: str) -> str:
        return f"{self.source}_{view}"

    def declare(self, *texts: str, said: str = "") -> None:
        """Declares views; a job that is started by now works on these."""
        module = self._folder / "views.py"
        module.write_text("".join((HEAD, *texts)).format(name=self.source, said=said))
        found = load(module)
        views, derived = tuple(found.views.values()), tuple(found.derived.values())
        self.job.spec = replace(self.spec, views=views, derived=derived, declared_derived=derived)

    def start(self) -> None:
        with connected(self.spec.config) as connection:
            declared = (*self.spec.views, *self.spec.declared_derived)
            registry.register(connection, self.source, declared)
        self.job.start()

    def withdraw(self, view: str) -> list[int]:
        with (
            connected(self.spec.config) as connection,
            registry.version_lock(connection, self.source, self.name(view)),
        ):
            gone = retire.withdraw(connection, self.spec, self.name(view))
        return [each.number for each in gone]

    def states(self, view: str) -> dict[int, str]:
        with connected(self.spec.config) as connection:
            versions = registry.read(connection, self.source)
        return {v.number: str(v.state) for v in versions if v.view == self.name(view)}

    def read(self, view: str, *key: Any, column: str) -> list[object]:
        """What readers of each store see of a row by the view's own name."""
        name, spec = self.name(view), self.spec
        cached = CacheReader(spec.config.cache_url, f"{self.source}:", name).get(*key)
        found = Searcher(spec.config.search_url).get(name, str(key[0]))
        table = sql.run(f"SELECT * FROM {name}", spec.config.addresses.tables).to_pylist()  # noqa: S608
        rows = [cached, found, next((row for row in table if row[next(iter(row))] == key[0]), None)]
        return [None if row is None else row[column] for row in rows]

    def left(self, view: str) -> list[str]:
        """What there is of a view in any store, and what is known of it."""
        name, spec = self.name(view), self.spec
        tables = [each.name for each in spec.config.addresses.tables.glob(f"{name}*")]
        if stable_path(spec.config.addresses.tables, name).exists():
            tables.append("its stable path")
        engine = SearchEngine(spec.config.search_url)
        found = engine.request("GET", f"/_cat/indices/{name}*?format=json")
        aliases = engine.request("GET", f"/_cat/aliases/{name}*?format=json")
        engine.close()
        with closing(redis.Redis.from_url(spec.config.cache_url)) as cache:
            keys = [key.decode() for key in cache.scan_iter(f"*{name}*", count=1000)]
            current = [b.decode() for b in cache.hkeys(f"{self.source}:_current")]
        with connected(spec.config) as connection:
            places = [p.view for p in positions.read(connection)]
        known = [each for each in (*current, *places) if each.startswith(name)]
        return [*tables, *map(str, (*found, *aliases)), *keys, *known]


@pytest.fixture
def project(
    capture: Callable[..., Captured],
    view_job: Callable[..., ViewJob],
    database: str,
    tmp_path: Path,
) -> Iterator[Project]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLE)
    captured = capture("orders")
    folder = tmp_path / "project"
    folder.mkdir()
    made = Project(view_job(captured, views=()), captured, folder)
    made.declare(ORDERS, STATES)
    made.start()
    assert [] == made.job.catch_up()
    yield made
    assert 0 == made.job.stop()


def test_a_view_goes_from_every_store_and_can_be_declared_again(
    project: Project, database: str
) -> None:
    names = ("orders", "states")
    assert all(project.left(view) for view in names)
    # what readers see by now is another version, and the first one lies beside it
    spec = project.spec
    project.declare(ORDERS, STATES, said=', apply_as_deletes="id = 7"')
    wanted = next(v for v in project.spec.views if v.name == project.name("orders"))
    with connected(spec.config) as connection:
        held = built(connection, spec, wanted)
        with registry.version_lock(connection, spec.config.source, wanted.name):
            switched(connection, spec.config, held)

    with pytest.raises(VersionError, match="made from view") as refused:
        project.withdraw("kept")
    assert project.name("states") == refused.value.detail
    assert {1: "current"} == project.states("kept")
    for view in names:  # the job that runs was started with them
        project.withdraw(view)

    assert {1: "dropped", 2: "dropped"} == project.states("orders")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("UPDATE orders SET number = -1 WHERE id = 5")
    project.declare()
    assert [] == project.job.catch_up()
    assert [-1, -1, -1] == project.read("kept", 5, column="number")
    assert [[], []] == [project.left(view) for view in names]
    with pytest.raises(CacheUnknownError):
        project.read("orders", 5, column="number")
    with pytest.raises(sql.QueryError):
        sql.run(f"SELECT * FROM {project.name('orders')}", spec.config.addresses.tables)  # noqa: S608

    assert 0 == project.job.stop()
    project.declare(ORDERS, STATES)
    with reading(project.captured):  # the table of the new view
        project.start()
        wait_until(lambda: {"current"} == {*_shown(project)}, timeout_s=LONG_S)
        assert [] == project.job.catch_up()

    assert {1: "dropped", 2: "dropped", 3: "current"} == project.states("orders")
    assert [-1, -1, -1] == project.read("orders", 5, column="number")
    assert [100, 100, 100] == project.read("states", "paid", column="orders")


def _shown(project: Project) -> list[str]:
    """What the newest versions of both views are, or that readers are not there yet."""
    with connected(project.spec.config) as connection:
        versions = registry.read(connection, project.source)
    newest = {each.view: each for each in versions if each.view != project.name("kept")}
    places = Published(project.spec.config.addresses.tables, project.source).current()
    return [
        "switching"
        if each.switching or places.get(each.view) != each.physical_name
        else str(each.state)
        for each in newest.values()
    ]


def test_what_a_store_that_is_away_has_goes_when_it_is_asked_again(project: Project) -> None:
    assert 0 == project.job.stop()
    spec = project.spec
    project.job.spec = replace(spec, config=replace(spec.config, cache_url=NOWHERE))

    with pytest.raises(SinkUnavailableError):
        project.withdraw("orders")

    project.job.spec = spec
    kept = spec.config.functions / f"{'0' * 64}.py"  # of a function that no version names
    kept.parent.mkdir(exist_ok=True)
    kept.touch()
    assert any(":" in each for each in project.left("orders"))
    assert [1] == project.withdraw("orders")
    assert not kept.exists()
    assert [] == project.left("orders")
    assert [1] == project.withdraw("orders")
    with pytest.raises(VersionUnknownError):
        project.withdraw("ordres")
    assert VersionState.DROPPED == project.states("orders")[1]
    assert project.name("states") in JobReport(spec.config.home / "run").views()
    project.declare()
    project.start()
    assert [] == project.job.catch_up()
    # what the job before said of views that it kept is no word of this one
    assert project.name("states") not in JobReport(spec.config.home / "run").views()
