"""The job sees what changes of its views, and tells versions that join from everything else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc.postgres import own_schema
from cdc.schema_change import history, trigger
from cdc.table import TableName
from projections.definition.views import DerivedView, MirrorView, Store
from projections.job.schema_watch import TableWatch
from projections.planning.binding import bind
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.versions import registry
from projections.versions.version import FillProgress, VersionState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdc.lsn import Lsn

pytestmark = pytest.mark.integration

TABLE = TableName("public", "t")
VIEW = MirrorView("v", "shop", TABLE, (), frozenset({Store.CACHE}))
ENDS = {(TABLE.topic("shop"), 0): 7}


@pytest.fixture
def source(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b int)")
        own_schema.ensure(connection)
        trigger.ensure(connection)
        history.observe(connection, [TABLE])
        registry.register(connection, "shop", [VIEW])
        yield connection


def job(database: str, **said: Any) -> JobSpec:
    return JobSpec(
        JobConfig("shop", "", database, "", Path("nowhere"), "", "", ()), views=(VIEW,), **said
    )


@pytest.fixture
def watch(source: psycopg.Connection[Any], database: str) -> Iterator[TableWatch]:
    made = TableWatch(job(database))
    assert ["v"] == [plan.name for plan in made.bind().plans]
    yield made
    made.close()


def joined(source: psycopg.Connection[Any]) -> str:
    """Makes a version that was filled, as a rebuild does."""
    number = registry.add(source, "shop", replace(VIEW, left_out=("b",)))
    version = registry.of_view(source, "shop", "v")[number - 1]
    bind(source, "shop", [version.declared()], decides=True)
    registry.note_replayed(source, "shop", version.physical_name, FillProgress(ENDS))
    moved(source, version.physical_name, VersionState.JOINING)
    return version.physical_name


def moved(source: psycopg.Connection[Any], place: str, state: VersionState) -> None:
    assert registry.move(source, "shop", place, state, VersionState)


def test_a_version_that_joins_changes_nothing_for_the_views_that_are_there(
    source: psycopg.Connection[Any], watch: TableWatch
) -> None:
    assert (False, False) == (watch.look(), watch.coming)
    place = joined(source)
    assert (False, True) == (watch.look(), watch.coming)

    met = watch.met()

    assert met is not None
    assert {place: ENDS} == met.joining
    assert [(place, False), ("v", True)] == [(plan.name, plan.active) for plan in met.plans]
    assert (False, False) == (watch.look(), watch.coming)
    moved(source, place, VersionState.HELD)
    assert not watch.look()
    moved(source, place, VersionState.DROPPED)
    assert watch.look()


def test_a_version_of_a_table_that_has_changed_meanwhile_has_all_views_bound_anew(
    source: psycopg.Connection[Any], watch: TableWatch
) -> None:
    joined(source)
    source.execute("ALTER TABLE t ADD c int")

    assert watch.met() is None
    assert watch.look()
    assert ["v.v2", "v"] == [plan.name for plan in watch.bind().plans]
    assert not watch.look()


def test_a_version_of_a_view_that_is_not_declared_is_nobody_s_matter(
    source: psycopg.Connection[Any], watch: TableWatch
) -> None:
    other = replace(VIEW, name="other")
    registry.register(source, "shop", [other])
    assert (False, False) == (watch.look(), watch.coming)
    registry.add(source, "shop", other)
    moved(source, "other.v2", VersionState.JOINING)
    assert (False, False) == (watch.look(), watch.coming)

    assert ["v"] == [plan.name for plan in watch.bind().plans]


def test_views_are_bound_anew_once_one_made_from_others_reads_what_none_has_read(
    source: psycopg.Connection[Any], database: str
) -> None:
    made = DerivedView("made", ("a",), frozenset({Store.TABLE}), ("v",), "SELECT a FROM v")
    watch = TableWatch(job(database, declared_derived=(made,)))
    assert ("v",) == watch.bind().derived[0].inputs
    assert not watch.look()
    registry.register(source, "shop", [made])
    for inputs, other in ((("v",), False), (("v", "other"), True)):
        version = replace(made, inputs=inputs)
        number = registry.add(source, "shop", version)
        moved(source, f"made.v{number}", VersionState.JOINING)
        assert (other, False) == (watch.look(), watch.coming)

    assert ["made.v2", "made.v3", "made"] == [view.name for view in watch.bind().derived]
    assert not watch.look()
    watch.close()


def test_what_is_given_up_has_all_views_bound_anew(watch: TableWatch) -> None:
    watch.give_up()

    assert watch.look()
    watch.bind()
    assert not watch.look()


def test_what_somebody_sees_while_another_begins_to_look_is_not_taken_back(
    source: psycopg.Connection[Any], watch: TableWatch
) -> None:
    """A version that is met binds all views anew: what it was bound to then looks like now."""
    place = joined(source)
    assert (False, True) == (watch.look(), watch.coming)
    source.execute("ALTER TABLE t ADD c int")
    watch._lock = _MetMeanwhile(watch)  # type: ignore[assignment]

    assert watch.look()
    assert place in {plan.name for plan in watch.bind().plans}
    assert not watch.look()


class _MetMeanwhile:
    """A lock that another thread has first, which meets what has come."""

    def __init__(self, watch: TableWatch) -> None:
        self._watch, self._lock = watch, watch._lock

    def __enter__(self) -> None:
        self._watch._lock = self._lock
        assert self._watch.met() is None
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.fixture
def untold(database: str) -> Iterator[tuple[psycopg.Connection[Any], TableWatch]]:
    """A source that notes no change by itself, and a watch that looks at it."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b int)")
        own_schema.ensure(connection)
        registry.register(connection, "shop", [VIEW])
        watch = TableWatch(job(database))
        watch.bind()
        yield connection, watch
        watch.close()


def seen_between(source: psycopg.Connection[Any]) -> tuple[Lsn, Lsn]:
    last = history.of_tables(source, [TABLE])[TABLE].versions[-1]
    assert last.command == history.LOOKED
    assert last.seen_after is not None
    return last.seen_after, last.lsn


def test_without_triggers_a_change_is_seen_by_the_next_look_and_placed_after_the_one_before(
    untold: tuple[psycopg.Connection[Any], TableWatch],
) -> None:
    source, watch = untold
    for _ in range(3):
        assert not watch.look()
    before = history.position(source)
    assert not watch.look()  # nothing has changed: from here on it would be after `before`
    source.execute("ALTER TABLE t ADD c int")

    assert watch.look()
    after, until = seen_between(source)
    assert before <= after < until


def test_without_triggers_ddl_that_is_open_during_a_look_is_placed_before_it(
    untold: tuple[psycopg.Connection[Any], TableWatch], database: str
) -> None:
    source, watch = untold
    assert not watch.look()
    with psycopg.connect(database) as writer:
        before = history.position(source)
        writer.execute("ALTER TABLE t ADD c int")
        for _ in range(2):
            assert not watch.look()
        writer.commit()

    assert watch.look()
    assert seen_between(source)[0] <= before


def test_without_triggers_a_table_that_takes_the_name_of_a_view_s_table_is_seen(
    untold: tuple[psycopg.Connection[Any], TableWatch],
) -> None:
    source, watch = untold
    source.execute("CREATE TABLE other (id int PRIMARY KEY, z int)")
    assert not watch.look()
    source.execute("BEGIN; ALTER TABLE t RENAME TO t_old; ALTER TABLE other RENAME TO t; COMMIT")

    assert watch.look()
