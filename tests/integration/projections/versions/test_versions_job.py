"""Another version of a view is built, compared, shown and taken back while writes go on."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc.table import TableName
from headwater.reading import sql
from projections.common import store_lock
from projections.definition.expectations.expectation import deletes
from projections.definition.views import MirrorView, Store
from projections.errors import (
    VersionBusyError,
    VersionUnknownError,
)
from projections.job import backfill
from projections.planning.binding import bind
from projections.stores.opensearch.searcher import Searcher
from projections.stores.valkey.reader import CacheReader
from projections.versions import cutover, handover, rebuild, registry, retire, routing
from projections.versions.version import VersionState
from tests.support.version_steps import Reader, built, compared, connected, filled, switched
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from projections.planning.job_config import JobConfig
    from projections.versions.version import ViewVersion
    from tests.fix_capture import Captured
    from tests.fix_seeds import Rotation
    from tests.fix_spark import ViewJob

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, number int, status text, note text, big text);
ALTER TABLE orders ALTER big SET STORAGE EXTERNAL;
INSERT INTO orders SELECT n, 0, CASE n % 5 WHEN 0 THEN 'cancelled' ELSE 'placed' END, 'note',
    repeat('x', 9000) FROM generate_series(1, 300) n
"""
WATCHED = 1
ROUNDS, ROUNDS_FULL = 8, 20
VIEW = "orders"


class Writer(threading.Thread):
    """Writes to one row again and again, and to others beside it, until it is stopped."""

    def __init__(self, database: str) -> None:
        super().__init__(daemon=True)
        self.stopped = threading.Event()
        self.number = 0
        self._database = database

    def run(self) -> None:
        with psycopg.connect(self._database, autocommit=True) as connection:
            # each write is a batch of the job in every store
            while not self.stopped.wait(0.5):
                self.number += 1
                other = 2 + self.number % 299
                connection.execute(
                    "UPDATE orders SET number = %s WHERE id = ANY (%s)",
                    (self.number, [WATCHED, other]),
                )
                if self.number % 7 == 0:
                    connection.execute("DELETE FROM orders WHERE id = %s", (other,))
                    connection.execute(
                        "INSERT INTO orders VALUES (%s, %s, %s, 'new', 'small')",
                        (other, self.number, "placed" if other % 5 else "cancelled"),
                    )


@pytest.fixture
def job(
    capture: Callable[..., Captured], view_job: Callable[..., ViewJob], database: str
) -> Iterator[ViewJob]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES)
    captured = capture("orders")
    made = view_job(captured, views=[declared(captured.spec.name)], own_jvm=True)
    with connected(made.spec.config) as connection:
        assert {} == registry.register(connection, made.spec.config.source, made.spec.views)
    made.start()
    assert [] == made.catch_up()
    yield made
    assert 0 == made.stop()


def declared(source: str, **said: Any) -> MirrorView:
    place = TableName("public", "orders")
    return MirrorView(f"{source}_{VIEW}", source, place, (), frozenset(Store), **said)


def started(config: JobConfig) -> int:
    """How often a query of the job was started."""
    return (config.home / "job.log").read_text().count("query runs")


def readers(config: JobConfig, view: str) -> dict[str, Reader]:
    cached = CacheReader(config.cache_url, f"{config.source}:", view)
    searcher = Searcher(config.search_url)
    tables = config.addresses.tables

    def in_cache() -> int | None:
        row = cached.get(WATCHED)
        return None if row is None else int(row["number"])  # type: ignore[call-overload]

    def in_search() -> int | None:
        row = searcher.get(view, str(WATCHED))
        return None if row is None else int(row["number"])

    def in_table() -> int | None:
        found = sql.run(f"SELECT number FROM {view} WHERE id = {WATCHED}", tables)  # noqa: S608
        return int(found["number"][0].as_py()) if found.num_rows else None

    return {"cache": Reader(in_cache), "search": Reader(in_search), "table": Reader(in_table)}


def test_a_version_is_built_shown_and_taken_back_and_readers_notice_nothing(
    job: ViewJob, database: str, rotation: Rotation
) -> None:
    rounds = ROUNDS_FULL if rotation.full else ROUNDS
    spec = job.spec
    source, name = spec.config.source, f"{spec.config.source}_{VIEW}"
    wanted = declared(source, left_out=("note",), expectations=(deletes("status = 'cancelled'"),))
    writer = Writer(database)
    writer.start()
    with connected(spec.config) as connection:
        begun = started(spec.config)
        held = built(connection, spec, wanted)
        assert begun == started(spec.config), "a query was started anew for it"
        assert (2, VersionState.HELD, f"{name}.v2") == (held.number, held.state, held.physical_name)
        first, _ = registry.of_view(connection, source, name)

        old, new = (bind(connection, source, [each.declared()]).plans[0] for each in (first, held))
        change = registry.changed(connection, first, registry.defined(held))
        found = compared(connection, spec.config, old, new, change)
        assert found.same
        assert {
            "column note": 1,
            f"rows that {held.physical_name} excludes: apply_as_deletes": 60,
        } == (found.explained)

        watching = readers(spec.config, name)
        for reader in watching.values():
            reader.start()
        with registry.version_lock(connection, source, name), connected(spec.config) as other:
            with pytest.raises(VersionBusyError), registry.version_lock(other, source, name):
                pass
            for number in range(rounds):
                target = held if number % 2 == 0 else first
                if number % 5 == 4:
                    _begun(connection, spec.config, target)
                else:
                    switched(connection, spec.config, target)
                assert target.physical_name == registry.active_names(connection, source)[name]
        for reader in watching.values():
            reader.stopped.set()
            reader.join(30)
        assert {store: [] for store in watching} == {s: r.wrong for s, r in watching.items()}
        assert all(reader.seen > rounds for reader in watching.values())

        # whoever moved readers has died: the job does the rest
        registry.note_switching(connection, source, held.physical_name)
        wait_until(
            lambda: registry.active_names(connection, source)[name] == held.physical_name,
            timeout_s=LONG_S,
        )
        writer.stopped.set()
        writer.join(30)
        assert [] == job.catch_up()

        with registry.version_lock(connection, source, name):
            current = rebuild.numbered(connection, spec.config, name, 2)
            with pytest.raises(VersionUnknownError):
                retire.drop(connection, spec.config, current)
            retire.drop(connection, spec.config, rebuild.numbered(connection, spec.config, name, 1))
            with pytest.raises(VersionUnknownError):
                rebuild.chosen(connection, spec.config, name, None, (VersionState.FORMER,))
        assert not (spec.config.addresses.tables / name).exists()
        assert {f"{name}.v2"} == {plan.name for plan in job.bound().plans}
        connection.execute("UPDATE orders SET number = -1 WHERE id = 2")
        assert [] == job.catch_up()


def test_a_job_that_is_killed_while_it_takes_a_version_over_begins_with_that_again(
    job: ViewJob, database: str
) -> None:
    spec = job.spec
    name = f"{spec.config.source}_{VIEW}"
    file = spec.config.checkpoint(Store.SEARCH).with_suffix(".json")
    with connected(spec.config) as connection:
        version = filled(connection, spec, declared(spec.config.source, left_out=("note",)))
        # nothing is written meanwhile, so no batch tells where the next one begins
        wait_until(lambda: version.physical_name in (backfill.read(file) or {}), timeout_s=LONG_S)
        # a command that waits sees the progress
        assert handover.read(spec.config, version.physical_name)
        job.kill()
        assert job.orphans() == []
        state = rebuild.numbered(connection, spec.config, name, 2).state
        connection.execute("UPDATE orders SET number = 7 WHERE id < 100")
        connection.execute("DELETE FROM orders WHERE id = 5")
        job.start()
        wait_until(
            lambda: rebuild.numbered(connection, spec.config, name, 2).state is VersionState.HELD,
            timeout_s=LONG_S,
        )
        assert VersionState.JOINING is state
        assert [] == job.catch_up()
        assert {name, version.physical_name} == {plan.name for plan in job.bound().plans}


def _begun(connection: Any, config: JobConfig, target: ViewVersion) -> None:
    """A switch whose process dies after the first store; the next command does the rest."""
    registry.note_switching(connection, config.source, target.physical_name)
    with (
        store_lock.exclusive(connection, config.source, [Store.SEARCH]),
        closing(routing.version_pointer(Store.SEARCH, config)) as sink,
    ):
        sink.activate(routing.plan_of_name(target.physical_name, target.declared().to))
    finished = cutover.finish(connection, config, target.view)
    assert finished is not None
    assert target.physical_name == finished.physical_name
