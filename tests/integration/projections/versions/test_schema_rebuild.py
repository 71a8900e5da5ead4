"""A table changes so that its views cannot follow: they are made anew beside what readers see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc.schema_change.trial import try_migration
from cdc.table import TableName
from headwater.reading import sql
from projections.definition.views import HistoryColumns, MirrorView, Store
from projections.errors import VersionBehindError
from projections.planning import binding
from projections.planning.impact import predict
from projections.planning.schema_policy import SchemaOutcome
from projections.stores.valkey.reader import CacheReader
from projections.versions import compare, cutover, rebuild, registry
from tests.fix_capture import reading
from tests.support.version_steps import built, compared, connected, switched
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from projections.planning.job_config import JobConfig
    from projections.planning.job_spec import JobSpec
    from projections.versions.version import ViewVersion
    from tests.fix_capture import Captured
    from tests.fix_spark import ViewJob

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=2),
    pytest.mark.timeout(1800),
]

MADE = """
CREATE TABLE people (id int PRIMARY KEY, name text, score text, old text);
CREATE TABLE others (id int PRIMARY KEY, v int);
INSERT INTO people SELECT n, 'first-' || n || ' last-' || n, n::text, 'o'
  FROM generate_series(1, 60) n;
INSERT INTO others SELECT n, 0 FROM generate_series(1, 20) n;
"""
# retyped, split, renamed, and one that comes with a default: all in one transaction
MIGRATION = """
ALTER TABLE people ALTER score TYPE int USING score::int;
ALTER TABLE people ADD first text, ADD last text, ADD level int DEFAULT 3;
UPDATE people SET first = split_part(name, ' ', 1), last = split_part(name, ' ', 2);
ALTER TABLE people DROP name;
ALTER TABLE people RENAME old TO former;
"""
PEOPLE, OTHERS = (TableName("public", name) for name in ("people", "others"))
Connection = psycopg.Connection[Any]


@pytest.fixture
def captured(capture: Callable[..., Captured], database: str) -> Captured:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(MADE.encode())
    return capture("people", "others")


def declared(source: str) -> tuple[MirrorView, MirrorView, MirrorView]:
    past = HistoryColumns(tracked=("score",))
    return (
        MirrorView(f"{source}_people", source, PEOPLE, (), frozenset(Store)),
        MirrorView(f"{source}_past", source, PEOPLE, (), frozenset({Store.TABLE}), history=past),
        MirrorView(f"{source}_others", source, OTHERS, (), frozenset(Store)),
    )


def test_views_are_rebuilt_beside_the_old_ones_from_the_log_once_their_table_has_changed(
    captured: Captured,
    view_job: Callable[..., ViewJob],
    database: str,
) -> None:
    views = people, past, _ = declared(captured.spec.name)
    job = view_job(captured, views=views)
    spec = job.spec
    with connected(spec.config) as connection, reading(captured):
        registry.register(connection, spec.config.source, views)
        job.start()
        assert [] == job.catch_up()
        captured.execute(
            "UPDATE people SET score = '1000' WHERE id = 1",
            "UPDATE people SET score = 'none' WHERE id = 2",
            "UPDATE people SET score = '2000' WHERE id = 2",
            "DELETE FROM people WHERE id = 60",
        )
        assert [] == job.catch_up()

        # what will become of the views is known before
        migrated = try_migration(database, [PEOPLE, OTHERS], MIGRATION)
        predicted = predict(connection, spec.config.source, views, migrated)
        stands = {each.view: each.outcome for each in predicted.views}
        assert {people.name: SchemaOutcome.PAUSED, past.name: SchemaOutcome.PAUSED} == stands

        connection.execute(f"BEGIN; {MIGRATION} COMMIT".encode())
        captured.execute("UPDATE people SET score = 7, first = 'new' WHERE id = 3")
        captured.execute("UPDATE others SET v = 1")
        assert [] == job.catch_up()  # of the one that goes on
        assert {people.name, past.name} == {each.name for each in job.bound().paused}
        reader = CacheReader(spec.config.cache_url, f"{spec.config.source}:", people.name)
        assert {"name": "first-3 last-3", "score": "3"}.items() <= _row(reader, 3).items()

        held = built(connection, spec, people)
        assert {"name": "first-3 last-3", "score": "3"}.items() <= _row(reader, 3).items()
        _compared(connection, spec.config, people, held)
        switched(connection, spec.config, held)
        assert {
            "first": "new",
            "last": "last-3",
            "score": 7,
            "level": 3,
            "former": "o",
        }.items() <= (_row(reader, 3).items())
        with pytest.raises(VersionBehindError, match="behind") as still:
            cutover.refuse_behind(
                connection, spec.config, held, _first(connection, spec.config, people)
            )
        assert f"headwater view resume {people.name}" in (still.value.hint or "")

        _past(connection, spec, past)
        captured.execute("DELETE FROM people WHERE id = 4")
        assert [] == job.catch_up()
        assert (
            []
            == connection.execute(
                "SELECT view FROM headwater.quarantine WHERE state IN ('waiting', 'retry')"
            ).fetchall()
        )

        # the old one follows where it is if somebody says so, and readers can go back to it
        _resumed(connection, spec.config, job, people)
        first = _first(connection, spec.config, people)
        with registry.version_lock(connection, spec.config.source, people.name):
            switched(connection, spec.config, first)
        assert {"first": "new", "score": 7}.items() <= _row(reader, 3).items()
    assert 0 == job.stop()


def _compared(
    connection: Connection, config: JobConfig, view: MirrorView, held: ViewVersion
) -> None:
    """What the change of the table explains is set apart; what was written since is told."""
    source = config.source
    old = binding.standing(connection, source, view)
    (new,) = binding.bind(connection, source, [held.declared()]).plans
    change = registry.changed(connection, _first(connection, config, view), view)
    found = compared(connection, config, old, new, change, still=True)
    explained = ("score: text to integer", "first", "last", "level", "former", "name", "old")
    assert {f"column {each}" for each in explained} == found.explained.keys()
    assert found.same
    assert found.stands_since is not None
    with pytest.raises(VersionBehindError):
        compare.compare_versions(connection, config, old, new, change)


def _past(connection: Connection, spec: JobSpec, past: MirrorView) -> None:
    """The history has what the log has from before the change, in the columns of now."""
    held = built(connection, spec, past)
    with registry.version_lock(connection, spec.config.source, past.name):
        switched(connection, spec.config, held)
    found = sql.run(
        f"SELECT id, score, level, first, is_current FROM {past.name}"  # noqa: S608  # of ours
        " WHERE id IN (1, 2, 3, 60) ORDER BY id, valid_from",
        spec.config.addresses.tables,
    ).to_pylist()
    states: dict[int, list[tuple[Any, ...]]] = {}
    for row in found:
        states.setdefault(row["id"], []).append(tuple(row.values())[1:])
    assert [(1, None, None), (1000, 3, "first-1")] == [each[:3] for each in states[1]]
    # nobody can say 'none' as a number
    assert [2, None, 2000] == [each[0] for each in states[2]]
    assert [3, 7] == [each[0] for each in states[3]]
    assert [(60, False)] == [(each[0], each[3]) for each in states[60]]
    assert [True] * 3 == [states[number][-1][3] for number in (1, 2, 3)]


def _resumed(connection: Connection, config: JobConfig, job: ViewJob, view: MirrorView) -> None:
    binding.resume(connection, config.source, _first(connection, config, view).declared())
    assert [] == job.catch_up()


def _row(reader: CacheReader, number: int) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def there() -> bool:
        found.clear()
        found.update(reader.get(number) or {})
        return bool(found)

    wait_until(there, timeout_s=LONG_S)
    return found


def _first(connection: Connection, config: JobConfig, view: MirrorView) -> ViewVersion:
    return rebuild.numbered(connection, config, view.name, 1)
