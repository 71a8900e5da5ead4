"""What comes while a version is filled is replayed in laps, so that the job takes little over."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc.table import TableName
from projections.archive import coverage, replay
from projections.definition.views import HistoryColumns, MirrorView, Store
from projections.errors import ReplayStoppedError
from projections.planning.binding import bind
from projections.versions import fill as versions_fill
from projections.versions import fill_from_archive, rebuild, registry
from projections.versions.fill import FillOptions
from projections.versions.version import VersionState
from tests.support.version_steps import compared, connected
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from projections.archive.progress import ReplayProgress
    from projections.definition.views import View
    from projections.planning.job_config import JobConfig
    from projections.planning.job_spec import JobSpec
    from projections.versions.version import FillProgress, ViewVersion
    from tests.fix_capture import Captured
    from tests.fix_spark import ViewJob

    Connection = psycopg.Connection[Any]

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=3),
    pytest.mark.timeout(1200),
]

ROWS = 3_000
BURST = 24_000
PER_S = 100
TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, number int, note text, big text);
ALTER TABLE orders ALTER big SET STORAGE EXTERNAL;
INSERT INTO orders SELECT n, 0, 'note', repeat('x', 3000) FROM generate_series(1, 3000) n
"""


class Writer(threading.Thread):
    """Changes rows, some of which go and come again or under another key, until it is stopped."""

    def __init__(self, database: str) -> None:
        super().__init__(daemon=True)
        self.stopped = threading.Event()
        self._database = database

    def run(self) -> None:
        with psycopg.connect(self._database, autocommit=True) as connection:
            number = 0
            while not self.stopped.wait(10 / PER_S):
                number += 1
                first = 1 + number * 7 % (ROWS - 20)
                connection.execute(
                    "UPDATE orders SET number = %s WHERE id BETWEEN %s AND %s",
                    (number, first, first + 6),
                )
                connection.execute("DELETE FROM orders WHERE id = %s", (first,))
                if number % 2:
                    connection.execute(
                        "INSERT INTO orders VALUES (%s, %s, 'new', 'small')", (first, number)
                    )
                # its large value is in the log, as it goes to another key
                connection.execute(
                    "UPDATE orders SET id = id + %s, big = %s WHERE id = %s",
                    (ROWS * 2, f"moved {number}", first + 10),
                )


@pytest.fixture
def job(
    capture: Callable[..., Captured], view_job: Callable[..., ViewJob], database: str
) -> Iterator[ViewJob]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES)
    captured = capture("orders")
    name, table = captured.spec.name, TableName("public", "orders")
    mirror = MirrorView(f"{name}_orders", name, table, (), frozenset(Store))
    past = MirrorView(
        f"{name}_past", name, table, (), frozenset({Store.TABLE}), history=HistoryColumns()
    )
    made = view_job(captured, views=[mirror, past])
    with connected(made.spec.config) as connection:
        assert {} == registry.register(connection, made.spec.config.source, made.spec.views)
    made.start()
    assert [] == made.catch_up()
    yield made
    assert 0 == made.stop()


def test_what_came_meanwhile_also_while_it_was_paused_is_replayed_and_little_is_left(
    job: ViewJob, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "PART_RECORDS", 400)
    spec = job.spec
    writer = Writer(database)
    with connected(spec.config) as connection:
        wait_until(lambda: sum(archived(spec.config).values()) >= ROWS, timeout_s=LONG_S)
        versions = [begun(connection, spec, view) for view in spec.views]
        writer.start()
        for version in versions:
            assert paused(connection, spec, version, _of_the_archive).progress
        for _ in range(BURST // ROWS):
            connection.execute("UPDATE orders SET note = note || '.'")
        before = sum(archived(spec.config).values())
        wait_until(
            lambda: sum(archived(spec.config).values()) >= before + BURST * 3 // 4, timeout_s=LONG_S
        )
        for version in versions:
            noted = paused(connection, spec, version, _of_a_lap)
            assert 0 == noted.rounds
            told: list[str] = []
            goes_on(connection, spec, version, noted, told)
            assert all("catch-up round" in each or "left to the job" in each for each in told)
            rebuild.join(connection, spec.config, version)
        for version in versions:
            wait_until(
                lambda version=version: (
                    state(connection, spec.config, version) is VersionState.HELD
                ),
                timeout_s=LONG_S,
            )
        writer.stopped.set()
        writer.join(30)
        assert [] == job.catch_up()
        for version in versions:
            check(connection, spec.config, version)
        took = taken(spec.config, {version.physical_name for version in versions})
    assert {(v.physical_name, str(s)) for v in versions for s in v.declared().to} == took.keys()
    assert max(took.values()) < BURST / 3, took


def archived(config: JobConfig) -> dict[tuple[str, int], int]:
    return coverage.archived(config, frozenset({f"{config.source}.public.orders"}))


def begun(connection: Connection, spec: JobSpec, view: View) -> ViewVersion:
    planned = rebuild.plan_rebuild(connection, spec, view, "archive")
    return rebuild.begin(connection, spec.config, view, planned, 0)


def paused(
    connection: Connection,
    spec: JobSpec,
    version: ViewVersion,
    when: Callable[[FillProgress], bool],
) -> FillProgress:
    """Fills a version until it notes that it is somewhere."""
    filling, note = FillOptions(), registry.note_replayed

    def noted(*given: Any) -> None:
        note(*given)
        replayed: FillProgress = given[-1]
        if when(replayed):
            filling.stopped.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "note_replayed", noted)
        with pytest.raises(ReplayStoppedError):
            fill(connection, spec, version, filling)
    found = now(connection, spec.config, version).replayed
    assert found is not None
    return found


def _of_the_archive(noted: FillProgress) -> bool:
    return "part" in (noted.progress or {}) and noted.archive is None


def _of_a_lap(noted: FillProgress) -> bool:
    return (noted.progress or {}).get("part") == 2 and noted.archive is not None


def goes_on(
    connection: Connection,
    spec: JobSpec,
    version: ViewVersion,
    noted: FillProgress,
    told: list[str],
) -> None:
    """Fills it to the end; it begins within the lap in which it was paused."""
    seen: list[ReplayProgress] = []
    assert noted.progress is not None
    fill(connection, spec, version, FillOptions(progress=seen.append, waits=told.append))
    found = now(connection, spec.config, version).replayed
    assert found is not None
    assert found.progress is None
    assert found.rounds >= 1
    assert seen[0].lap == 1
    # the rate is that of the replay of the archive
    for figure in ("records", "seconds", "share"):
        assert getattr(noted, figure) == getattr(found, figure)
    assert all(found.ends[place] > end for place, end in noted.ends.items())
    plan = versions_fill.prepare(connection, spec, version)
    assert fill_from_archive.records_left(spec.config, plan, found) < BURST / 3


def fill(connection: Connection, spec: JobSpec, version: ViewVersion, filling: FillOptions) -> None:
    plan = versions_fill.prepare(connection, spec, version)
    fill_from_archive.fill(connection, spec, now(connection, spec.config, version), plan, filling)


def now(connection: Connection, config: JobConfig, version: ViewVersion) -> ViewVersion:
    return rebuild.numbered(connection, config, version.view, version.number)


def state(connection: Connection, config: JobConfig, version: ViewVersion) -> VersionState:
    return now(connection, config, version).state


def check(connection: Connection, config: JobConfig, version: ViewVersion) -> None:
    """What was filled in laps equals what readers see."""
    first, _ = registry.of_view(connection, config.source, version.view)
    declared = first.declared(), version.declared()
    old, new = (bind(connection, config.source, [each]).plans[0] for each in declared)
    change = registry.changed(connection, first, registry.defined(version))
    found = compared(connection, config, old, new, change)
    assert found.same, found.unexplained


def taken(config: JobConfig, places: set[str]) -> dict[tuple[str, str], int]:
    """How many records the job took for versions alone, by place and store."""
    said = (config.home / "job.log").read_text()
    found = {}
    for line in re.findall(r"a version is where a store is.*", said):
        words = dict(re.findall(r"(\w+)=(\S+)", re.sub(r"\x1b\[[0-9;]*m", "", line)))
        if words["version"] in places:
            found[words["version"], words["store"]] = int(words["records"])
    return found
