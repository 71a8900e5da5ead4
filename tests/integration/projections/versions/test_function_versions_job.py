"""A view that is a function goes on by the one that it had, and gets another version beside it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from headwater.reading import sql as reading_sql
from projections.definition.derived.view_function import digest_in
from projections.definition.registry import load
from projections.errors import FunctionLostError, RebuildRefusedError, VersionBehindError
from projections.job.batch.verify_derived import verify_derived
from projections.versions import (
    cutover,
    dependents,
    derived_rebuild,
    function_store,
    rebuild,
    registry,
    retire,
)
from projections.versions import derived as versions_derived
from projections.versions.version import VersionState
from tests.support.order_writes import readers, writing
from tests.support.version_steps import Reader, connected, switched
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from projections.definition.views import DerivedView
    from projections.verification.report import Uncompared
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
from pyspark.sql import functions as F

from headwater import source, view

shop = source("{name}", tables=["public.orders"])
orders = view.mirror("orders", shop.orders, to=["table"])
MEASURES = {measures}


@view("{name}_by_status", keys=["status"])
def by_status(orders):
    return counted(orders).where("orders > 0")


def counted(orders):
    return orders.groupBy("status").agg(*[F.expr(each) for each in MEASURES])


view.sql("{name}_most", "SELECT max(latest) AS latest, 1 AS one FROM {name}_by_status", ["one"])
{more}
"""
FIRST = ["count(*) AS orders", "max(number) AS latest"]
SECOND = [*FIRST, "sum(total) AS total"]
RAISES = None


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
    found = declared(tmp_path, captured.spec.name, FIRST)
    views, derived = tuple(found.views.values()), tuple(found.derived.values())
    made = view_job(captured, views=views, derived=derived, declared_derived=derived, own_jvm=True)
    assert {} == started(made, found)
    assert [] == made.catch_up()
    yield made
    assert 0 == made.stop()


def test_a_changed_function_is_a_version_beside_the_one_that_was_there(
    job: ViewJob, database: str, tmp_path: Path
) -> None:
    view = f"{job.spec.config.source}_by_status"
    first = declared(tmp_path, job.spec.config.source, FIRST).derived[view]
    with writing(database):
        watching = readers(job.spec.config, view)
        for reader in watching.values():
            reader.start()
        job.stop()
        found = declared(tmp_path, job.spec.config.source, SECOND, "view_of_nobody = 1")
        assert {view: "its function"} == started(job, found)
        spec, second = job.spec, found.derived[view]
        goes_on(job, database)
        assert ["status", "orders", "latest"] == columns(job, view)
        assert {view: first.text} == kept_by(job)
        with connected(spec.config) as connection:
            held = built(connection, job, second)
            assert (2, VersionState.HELD, f"{view}.v2") == (
                held.number,
                held.state,
                held.physical_name,
            )
            assert ("its function",) == held.reasons
            assert {view: first.text, held.physical_name: second.text} == kept_by(job)
            then = dependents.of_plan(connection, spec, second)
            assert {view, f"{spec.config.source}_most"} == {each.name for each in then.views}
            one, _ = registry.of_view(connection, spec.config.source, view)
            difference = compared(connection, job, one, held)
            assert difference.same, difference
            assert {"column total": 1} == difference.explained
            with registry.version_lock(connection, spec.config.source, view):
                switched(connection, spec.config, held)
                assert [*columns(job, view)][-1] == "total"
                job.kill()
                assert [] == job.orphans()
                job.start()
                back(connection, job, view)
                assert ["status", "orders", "latest"] == columns(job, view)
                goes_on(job, database)
                switched(connection, spec.config, held)
        ended(watching)
    assert [] == job.catch_up()
    equal(job)
    with (
        connected(spec.config) as connection,
        registry.version_lock(connection, spec.config.source, view),
    ):
        retire.drop(connection, spec.config, rebuild.numbered(connection, spec.config, view, 1))
    assert {f"{digest_in(second.text)}.py"} == {
        file.name for file in spec.config.functions.iterdir()
    }
    assert {held.physical_name: second.text} == kept_by(job)
    goes_on(job, database)
    assert [] == job.catch_up()
    equal(job)


def test_a_function_that_is_lost_or_raises_is_that_versions_trouble_alone(
    job: ViewJob, database: str, tmp_path: Path
) -> None:
    source, view = job.spec.config.source, f"{job.spec.config.source}_by_status"
    lost = job.spec.config.functions / f"{digest_in(kept_by(job)[view])}.py"
    job.stop()
    aside = lost.rename(tmp_path / lost.name)
    found = declared(tmp_path, source, SECOND)
    assert {view: "its function"} == started(job, found)
    wait_until(lambda: code(job, view) == "HW-P151", timeout_s=LONG_S)
    written = raised(database)
    sql = "SELECT number FROM orders WHERE id = 3"  # which is made from nothing else
    wait_until(
        lambda: (
            written == reading_sql.run(sql, job.spec.config.addresses.tables)["number"][0].as_py()
        ),
        timeout_s=LONG_S,
    )
    with pytest.raises(FunctionLostError):
        equal(job)
    told: list[Uncompared] = []
    assert [] == [
        each.view for each in verify_derived(job.bound(), told.append) if each.view == view
    ]
    assert [(view, "HW-P151")] == [(each.view, each.fault.code) for each in told]

    # neither what is altered runs, nor does what its maker did not declare
    lost.write_text(aside.read_text().replace("orders > 0", "orders > 1"))
    with connected(job.spec.config) as connection:
        raising = declared(tmp_path, source, RAISES).derived[view]
        with pytest.raises(RebuildRefusedError, match="the function of view") as refused:
            built(connection, job, raising)
        assert "TypeError" in str(refused.value.detail)
        assert "HW-P151" == code(job, view)
        with registry.version_lock(connection, source, view):
            retire.drop(
                connection, job.spec.config, rebuild.numbered(connection, job.spec.config, view, 2)
            )

        # readers come to the new one without the old one
        held = built(connection, job, found.derived[view])
        assert f"{view}.v3" == held.physical_name
        with registry.version_lock(connection, source, view):
            switched(connection, job.spec.config, held)
    goes_on(job, database)
    aside.replace(lost)
    wait_until(lambda: code(job, view) is None, timeout_s=LONG_S)
    assert [] == job.catch_up()
    equal(job)


def declared(folder: Path, name: str, measures: object, more: str = "") -> Any:
    module = folder / "project" / "views.py"
    module.parent.mkdir(exist_ok=True)
    module.write_text(VIEWS.format(name=name, measures=measures, more=more))
    return load(module)


def started(job: ViewJob, found: Any) -> dict[str, str]:
    """Starts the job by what is declared; returns what goes on by something else."""
    derived = tuple(found.derived.values())
    spec = job.spec = replace(job.spec, derived=derived, declared_derived=derived)
    views = (*spec.views, *derived)
    with (
        connected(spec.config) as connection,
        function_store.noting(connection, spec.config.source, spec.config.functions, views),
    ):
        differing = registry.register(connection, spec.config.source, views)
    job.start()
    return differing


def built(connection: Any, job: ViewJob, view: DerivedView) -> ViewVersion:
    spec = job.spec
    with registry.version_lock(connection, spec.config.source, view.name):
        planned = derived_rebuild.plan_rebuild(connection, spec, view)
        version = rebuild.begin(connection, spec.config, view, planned, 0)
        rebuild.join(connection, spec.config, version)
        return rebuild.await_held(
            connection, spec.config, version, stopped=lambda: False, running=lambda: True
        )


def compared(
    connection: Any, job: ViewJob, first: ViewVersion, other: ViewVersion
) -> VersionDifference:
    found: list[VersionDifference] = []

    def done() -> bool:
        try:
            found.append(derived_rebuild.compare(connection, job.spec.config, first, other))
        except VersionBehindError:
            return False
        return True

    wait_until(done, timeout_s=LONG_S)
    return found[0]


def back(connection: Any, job: ViewJob, view: str) -> None:
    def done() -> bool:
        try:
            cutover.roll_back(connection, job.spec.config, view)
        except VersionBehindError:
            return False
        return True

    wait_until(done, timeout_s=LONG_S)


def kept_by(job: ViewJob) -> dict[str, str]:
    """What tells the function of each version of the view."""
    spec = job.spec
    with connected(spec.config) as connection:
        kept = versions_derived.maintained_views(
            connection, spec.config.source, spec.declared_derived, spec.config.functions
        )
    return {each.name: each.text for each in kept if each.function is not None}


def equal(job: ViewJob) -> None:
    """Each version equals what its own function makes of what it reads."""
    spec = job.bound()
    reports = verify_derived(spec)
    assert {view.name for view in spec.derived} == {report.view for report in reports}
    assert all(report.equal for report in reports)


def columns(job: ViewJob, view: str) -> list[str]:
    """What readers of the table see."""
    found = reading_sql.run(f"SELECT * FROM {view}", job.spec.config.addresses.tables)  # noqa: S608
    return [name for name in found.column_names if name != "_version"]


def code(job: ViewJob, place: str) -> str | None:
    """Of what the job says is wrong with a version."""
    if not job.spec.config.derived_file.exists():
        return None
    error = json.loads(job.spec.config.derived_file.read_bytes()).get(place, {}).get("error")
    return None if error is None else str(error["code"])


def goes_on(job: ViewJob, database: str) -> None:
    """What is written from now on comes to readers of the view and of what is made from it."""
    written = raised(database)
    sql = f"SELECT latest FROM {job.spec.config.source}_most"  # noqa: S608

    def there() -> bool:
        found = reading_sql.run(sql, job.spec.config.addresses.tables)
        return bool(found["latest"][0].as_py() >= written)

    wait_until(there, timeout_s=LONG_S)


def raised(database: str) -> int:
    """Gives the watched row a number above all; returns it."""
    with psycopg.connect(database, autocommit=True) as connection:
        row = connection.execute(
            "UPDATE orders SET number = 1 + (SELECT max(number) FROM orders) WHERE id = 3"
            " RETURNING number"
        ).fetchone()
    assert row is not None
    return int(row[0])


def ended(watching: dict[str, Reader]) -> None:
    for reader in watching.values():
        reader.stopped.set()
    for reader in watching.values():
        reader.join(30)
    assert {name: [] for name in watching} == {name: r.wrong for name, r in watching.items()}
    assert all(reader.seen > 0 for reader in watching.values())
