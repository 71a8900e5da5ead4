"""Views made from one are asked whether they fit another version of it before readers see that."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from headwater.operations.versions import Versions
from headwater.platform.platform import Platform
from headwater.project.project import open_project
from projections.definition.registry import load
from projections.errors import VersionDiffersError
from projections.versions import dependents, registry
from projections.versions.version import VersionState
from tests.support.version_steps import built, connected
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from projections.definition.views import MirrorView
    from tests.fix_capture import Captured
    from tests.fix_spark import ViewJob

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=3),
    pytest.mark.timeout(1800),
]

TABLE = """
CREATE TABLE orders (id int PRIMARY KEY, region text, total int, note text);
INSERT INTO orders SELECT n, 'region ' || n % 5, n, 'note' FROM generate_series(1, 200) n
"""
SETTINGS = """
[project]
name = "shop"
views = "views.py"
[source.{name}]
dsn = "{dsn}"
[services.kafka]
address = "{kafka}"
[services.connect]
address = "{connect}"
[services.search]
address = "{search}"
[services.cache]
address = "{cache}"
"""
VIEWS = """
from headwater import source, view

shop = source("{name}", tables=["public.orders"])
view.mirror("orders", shop.orders, to=["table"]{said})
view.sql(
    "by_region",
    "SELECT region, sum({measured}) AS {measure} FROM orders GROUP BY region",
    ["region"],
    to=["table"],
)
view.sql("most", "SELECT max(total) AS total, 1 AS one FROM by_region", ["one"], to=["table"])
view.sql("totals", "SELECT id, total FROM orders", ["id"], to=["table"])
"""
WITHOUT_REGION = ', except_column_list=["region"]'
WITHOUT_NOTE = ', except_column_list=["note"]'
FEWER_ROWS = f'{WITHOUT_NOTE}, apply_as_deletes="total > 190"'


class Project:
    """The project of a job that runs already, as commands open it."""

    def __init__(self, folder: Path, job: ViewJob, places: dict[str, str]) -> None:
        self._folder, self._job = folder, job
        self._config = folder / "headwater.toml"
        settings = SETTINGS.format(
            name=job.spec.config.source, dsn=job.spec.config.source_dsn, **places
        )
        self._config.write_text(settings)

    def versions(self, said: str = "", **measure: str) -> Versions:
        declared(self._folder, self._job.spec.config.source, said, **measure)
        project = open_project(self._config, home=self._job.spec.config.home)
        return Versions(Platform(project, self._config))

    def orders(self, said: str = "") -> MirrorView:
        found: MirrorView = declared(self._folder, self._job.spec.config.source, said).views[
            "orders"
        ]
        return found


def declared(folder: Path, name: str, said: str = "", **measure: str) -> Any:
    folder.mkdir(exist_ok=True)
    measure = {"measured": "total", "measure": "total", **measure}
    (folder / "views.py").write_text(VIEWS.format(name=name, said=said, **measure))
    return load(folder / "views.py")


@pytest.fixture
def job(
    capture: Callable[..., Captured],
    view_job: Callable[..., ViewJob],
    database: str,
    tmp_path: Path,
) -> Iterator[ViewJob]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLE)
    captured = capture("orders")
    found = declared(tmp_path / "project", captured.spec.name)
    views, derived = tuple(found.views.values()), tuple(found.derived.values())
    made = view_job(captured, views=views, derived=derived, declared_derived=derived)
    with connected(made.spec.config) as connection:
        assert {} == registry.register(connection, made.spec.config.source, (*views, *derived))
    made.start()
    assert [] == made.catch_up()
    yield made
    assert 0 == made.stop()


@pytest.fixture
def project(job: ViewJob, tmp_path: Path, kafka_bootstrap: str, connect_url: str) -> Project:
    places = {
        "kafka": kafka_bootstrap,
        "connect": connect_url,
        "search": job.spec.config.search_url,
        "cache": job.spec.config.cache_url,
    }
    return Project(tmp_path / "project", job, places)


def failing(job: ViewJob) -> set[str]:
    """Views made from others that the job cannot keep."""
    said = json.loads(job.spec.config.derived_file.read_bytes())
    return {name for name, told in said.items() if told["error"]}


def current(job: ViewJob) -> str:
    with connected(job.spec.config) as connection:
        return registry.active_names(connection, job.spec.config.source)["orders"]


def test_readers_are_not_moved_to_a_version_that_a_view_made_from_it_does_not_fit(
    job: ViewJob, project: Project
) -> None:
    narrow = project.versions(WITHOUT_REGION)
    planned = narrow.plan("orders")
    assert ("by_region", "totals") == planned.followers
    assert ["by_region", "most"] == [*planned.stand_still]
    assert "`region`" in planned.stand_still["by_region"]
    assert "stands still with by_region" == planned.stand_still["most"]
    with connected(job.spec.config) as connection:
        held = built(connection, job.spec, project.orders(WITHOUT_REGION))
    assert (2, VersionState.HELD) == (held.number, held.state)

    switched = narrow.cutover_when_explained("orders", 2)
    assert switched.difference is not None
    assert (True, False) == (switched.difference.same, switched.moved)
    assert planned.stand_still == switched.stand_still
    with pytest.raises(VersionDiffersError, match="do not fit version 2") as refused:
        narrow.cutover("orders")
    assert "by_region: the query of view by_region no longer fits" in (refused.value.detail or "")
    assert "orders" == current(job)

    accepted = narrow.cutover("orders", accept_differences=True)
    assert (True, planned.stand_still) == (accepted.moved, switched.stand_still)
    assert "orders.v2" == current(job)
    wait_until(lambda: failing(job) == {"by_region"}, timeout_s=LONG_S)

    # a version that repairs it is not in its way, and the way back is always open
    whole = project.versions()
    assert {} == whole.plan("orders").stand_still
    with connected(job.spec.config) as connection:
        built(connection, job.spec, project.orders())
    assert (True, {}) == moved(whole, 3)
    wait_until(lambda: failing(job) == set(), timeout_s=LONG_S)
    back = whole.rollback("orders")
    assert (2, planned.stand_still) == (back.number, back.stand_still)
    assert "orders.v2" == current(job)
    assert (True, {}) == moved(whole, 3)
    assert [] == job.catch_up()


def test_a_version_that_all_views_fit_is_shown_by_itself(job: ViewJob, project: Project) -> None:
    fewer = project.versions(WITHOUT_NOTE)
    assert {} == fewer.plan("orders").stand_still
    with connected(job.spec.config) as connection:
        held = built(connection, job.spec, project.orders(WITHOUT_NOTE))
        assert not dependents.of_version(connection, job.spec, held).alike
    assert (True, {}) == moved(fewer, 2)

    with connected(
        job.spec.config
    ) as connection:  # where no column differs, nobody has to be asked
        assert dependents.of_plan(connection, job.spec, project.orders(FEWER_ROWS)).alike
    assert [] == job.catch_up()


def test_what_is_made_from_a_view_made_from_others_is_asked_too(project: Project) -> None:
    renamed = project.versions(measure="amount").plan("by_region").stand_still
    assert ["most"] == [*renamed]
    assert "`total`" in renamed["most"]
    assert {} == project.versions(measured="total + 1").plan("by_region").stand_still
    # a version by a query that fits nothing is refused itself, and shown to nobody
    assert {} == project.versions(measured="nothing").plan("by_region").stand_still
    assert {} == project.versions().plan("by_region").stand_still


def moved(versions: Versions, number: int) -> tuple[bool, Any]:
    switched = versions.cutover_when_explained("orders", number)
    return switched.moved, switched.stand_still
