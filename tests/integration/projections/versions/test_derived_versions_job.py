"""Another version of a view made from others is built beside it, compared, shown and taken back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from headwater.reading import sql
from projections.definition.registry import load
from projections.errors import (
    RebuildRefusedError,
    VersionBehindError,
    VersionUnknownError,
)
from projections.job.batch.verify_derived import verify_derived
from projections.versions import cutover, derived_rebuild, rebuild, registry, retire
from projections.versions import derived as versions_derived
from projections.versions.version import VersionState
from tests.support.order_writes import readers, writing
from tests.support.version_steps import connected, switched
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from projections.definition.views import DerivedView
    from projections.planning.job_config import JobConfig
    from projections.planning.job_spec import JobSpec
    from projections.versions.compare import VersionDifference
    from projections.versions.version import ViewVersion
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
CREATE TABLE orders (id int PRIMARY KEY, number int, status text, total int);
INSERT INTO orders SELECT n, 0, CASE n % 3 WHEN 0 THEN 'paid' ELSE 'placed' END, n
  FROM generate_series(1, 300) n
"""
VIEWS = """
from headwater import source, view

shop = source("{name}", tables=["public.orders"])
orders = view.mirror("orders", shop.orders, to=["table"])
by_status = view.sql(
    "{name}_by_status", "SELECT status, {measures} FROM orders{where} GROUP BY status", ["status"]
)
view.sql("{name}_most", "SELECT max(latest) AS latest, 1 AS one FROM {name}_by_status", ["one"])
"""
FIRST = "count(*) AS orders, max(number) AS latest"
ROUNDS = 12


def declared(folder: Path, name: str, measures: str = FIRST, where: str = "") -> Any:
    module = folder / "project" / "views.py"
    module.parent.mkdir(exist_ok=True)
    module.write_text(VIEWS.format(name=name, measures=measures, where=where))
    return load(module)


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
    found = declared(tmp_path, captured.spec.name)
    views, derived = tuple(found.views.values()), tuple(found.derived.values())
    made = view_job(captured, views=views, derived=derived, declared_derived=derived, own_jvm=True)
    with connected(made.spec.config) as connection:
        assert {} == registry.register(connection, made.spec.config.source, (*views, *derived))
    made.start()
    assert [] == made.catch_up()
    yield made
    assert 0 == made.stop()


def test_a_version_is_built_shown_and_taken_back_and_readers_notice_nothing(
    job: ViewJob, database: str, tmp_path: Path
) -> None:
    spec, view = job.spec, f"{job.spec.config.source}_by_status"
    more = f"{FIRST}, sum(total) AS total"
    wanted = declared(tmp_path, spec.config.source, more).derived[view]
    begun = (spec.config.home / "job.log").read_text().count("query runs")
    with connected(spec.config) as connection, writing(database):
        held = built(connection, spec, wanted)
        assert begun == (spec.config.home / "job.log").read_text().count("query runs")
        assert (2, VersionState.HELD, f"{view}.v2") == (held.number, held.state, held.physical_name)
        assert ("its query",) == held.reasons
        first, _ = registry.of_view(connection, spec.config.source, view)
        found = compared(connection, spec.config, first, held)
        assert found.same, found
        assert {"column total": 1} == found.explained
        watching = readers(spec.config, view)
        for reader in watching.values():
            reader.start()
        with registry.version_lock(connection, spec.config.source, view):
            for number in range(ROUNDS):
                target = held if number % 2 == 0 else first
                if number == 5:
                    job.kill()
                    assert [] == job.orphans()
                    job.start()
                if number % 4 == 3:  # whoever moved readers has died: the next who comes goes on
                    registry.note_switching(connection, spec.config.source, target.physical_name)
                    cutover.finish(connection, spec.config, view)
                else:
                    switched(connection, spec.config, target)
                assert (
                    target.physical_name
                    == registry.active_names(connection, spec.config.source)[view]
                )
            switched(connection, spec.config, held)
        for reader in watching.values():
            reader.stopped.set()
            reader.join(30)
        assert {name: [] for name in watching} == {name: r.wrong for name, r in watching.items()}
        assert all(reader.seen > ROUNDS for reader in watching.values())
        with registry.version_lock(connection, spec.config.source, view):
            with pytest.raises(VersionUnknownError):
                retire.drop(
                    connection, spec.config, rebuild.numbered(connection, spec.config, view, 2)
                )
            retire.drop(connection, spec.config, rebuild.numbered(connection, spec.config, view, 1))
    assert not (spec.config.addresses.tables / view).exists()
    # the log is of the job that was started last: once each, in both
    assert begun == (spec.config.home / "job.log").read_text().count("query runs")
    assert [] == job.catch_up()
    equal(job, tmp_path, more)
    rows = sql.run(f"SELECT latest FROM {spec.config.source}_most", spec.config.addresses.tables)  # noqa: S608
    with psycopg.connect(database) as source:
        newest = source.execute("SELECT max(number) FROM orders").fetchone()
    assert newest == (rows["latest"][0].as_py(),)


def test_a_changed_query_is_told_apart_and_one_that_does_not_fit_is_refused(
    job: ViewJob, tmp_path: Path
) -> None:
    spec, view = job.spec, f"{job.spec.config.source}_by_status"
    fewer = declared(tmp_path, spec.config.source, where=" WHERE total > 100").derived[view]
    with connected(spec.config) as connection:
        planned = derived_rebuild.plan_rebuild(connection, spec, fewer)
        assert ("views", 300, ("its query",)) == (planned.source, planned.changes, planned.differs)
        assert (f"{spec.config.source}_most",) == planned.followers
        held = built(connection, spec, fewer)
        first, _ = registry.of_view(connection, spec.config.source, view)
        found = compared(connection, spec.config, first, held)
        assert not found.same
        assert {"orders": 2} == dict(found.unexplained.by_column)
        with registry.version_lock(connection, spec.config.source, view):
            retire.drop(connection, spec.config, held)
        assert not (spec.config.addresses.tables / held.physical_name).exists()

        unfit = declared(tmp_path, spec.config.source, "count(nothing) AS orders, 1 AS latest")
        with pytest.raises(RebuildRefusedError, match="no longer fits its inputs"):
            built(connection, spec, unfit.derived[view])
        broken = registry.of_view(connection, spec.config.source, view)[-1]
        assert (3, VersionState.BUILDING) == (broken.number, broken.state)
        with (
            pytest.raises(VersionBehindError),
            registry.version_lock(connection, spec.config.source, view),
        ):
            rebuild.chosen(connection, spec.config, view, None, (VersionState.HELD,))
        with registry.version_lock(connection, spec.config.source, view):
            retire.drop(connection, spec.config, broken)

        most = declared(tmp_path, spec.config.source).derived[f"{spec.config.source}_most"]
        circle = replace(fewer, inputs=(*fewer.inputs, most.name))
        with pytest.raises(RebuildRefusedError, match="made from the next"):
            derived_rebuild.plan_rebuild(connection, spec, circle)
    assert [] == job.catch_up()
    equal(job, tmp_path)


def built(connection: Any, spec: JobSpec, view: DerivedView) -> ViewVersion:
    with registry.version_lock(connection, spec.config.source, view.name):
        planned = derived_rebuild.plan_rebuild(connection, spec, view)
        version = rebuild.begin(connection, spec.config, view, planned, 0)
        rebuild.join(connection, spec.config, version)
        return rebuild.await_held(
            connection, spec.config, version, stopped=lambda: False, running=lambda: True
        )


def compared(
    connection: Any, config: JobConfig, first: ViewVersion, other: ViewVersion
) -> VersionDifference:
    found: list[VersionDifference] = []

    def done() -> bool:
        try:
            found.append(derived_rebuild.compare(connection, config, first, other))
        except VersionBehindError:
            return False
        return True

    wait_until(done, timeout_s=LONG_S)
    return found[0]


def equal(job: ViewJob, tmp_path: Path, measures: str = FIRST) -> None:
    """Each view equals its query at what it reads, in every version that the job keeps."""
    derived = tuple(declared(tmp_path, job.spec.config.source, measures).derived.values())
    with connected(job.spec.config) as connection:
        kept = versions_derived.maintained_views(
            connection, job.spec.config.source, derived, job.spec.config.functions
        )
    reports = verify_derived(replace(job.bound(), derived=kept))
    assert {view.name for view in kept} == {report.view for report in reports}
    assert all(report.equal for report in reports)
