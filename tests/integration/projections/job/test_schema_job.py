"""The job follows its tables through every change of their schema, in the order of the log."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psycopg
import pytest

from cdc.capture import SCHEMA_TABLE
from cdc.schema_change import trigger
from cdc.snapshot.reader import keep_reading
from cdc.table import TableName
from projections.definition.views import MirrorView, SchemaPolicy, Store
from projections.planning.binding import noted_changes, resume

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fix_capture import Captured
    from tests.fix_spark import ViewJob

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=3),
    pytest.mark.timeout(1800),
]

MADE = """
CREATE TYPE mood_{0} AS ENUM ('sad', 'glad');
CREATE TYPE place_{0} AS (x int, mood mood_{0});
CREATE TABLE {0} (
    id int PRIMARY KEY, name text, qty int, note text, big text,
    mood mood_{0} DEFAULT 'sad', places place_{0}[] DEFAULT '{{"(1,sad)"}}'
);
ALTER TABLE {0} ALTER big SET STORAGE EXTERNAL;
INSERT INTO {0} SELECT n, 'name ' || n, n, 'note', repeat(n::text, 3000)
  FROM generate_series(1, 200) n
"""
PARTITIONED = """
CREATE TABLE days (id int, day int, v text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE days_1 PARTITION OF days FOR VALUES FROM (0) TO (10);
CREATE TABLE days_2 (LIKE days);
INSERT INTO days SELECT n, n % 10, 'x' FROM generate_series(1, 50) n;
INSERT INTO days_2 SELECT n, 10 + n % 10, 'never in the log' FROM generate_series(51, 90) n
"""
# Each is one transaction: changes of rows before, between and after the changes of the table.
STEPS = (
    "UPDATE {0} SET qty = qty + 1; ALTER TABLE {0} ADD c int; UPDATE {0} SET c = id WHERE id < 50",
    (
        "INSERT INTO {0} (id) VALUES (1001); ALTER TABLE {0} ADD d text DEFAULT 'dd';"
        "INSERT INTO {0} (id) VALUES (1002); ALTER TABLE {0} ADD e int NOT NULL DEFAULT 7;"
        "UPDATE {0} SET e = 8 WHERE id = 3; DELETE FROM {0} WHERE id = 4"
    ),
    (
        "UPDATE {0} SET name = 'before' WHERE id = 5; ALTER TABLE {0} RENAME name TO label;"
        "UPDATE {0} SET label = 'after' WHERE id = 6; UPDATE {0} SET id = 2000 WHERE id = 7"
    ),
    (
        "UPDATE {0} SET qty = 1 WHERE id = 8; ALTER TABLE {0} ALTER qty TYPE bigint;"
        "UPDATE {0} SET qty = 1::bigint << 40 WHERE id = 9"
    ),
    (
        "INSERT INTO {0} (id, note) VALUES (1003, 'gone'); ALTER TABLE {0} DROP note;"
        "INSERT INTO {0} (id, label) VALUES (1004, 'there')"
    ),
    "ALTER TABLE {0} ADD g uuid DEFAULT gen_random_uuid(); UPDATE {0} SET c = 0 WHERE id = 10",
    (
        "ALTER TABLE {0} RENAME c TO swap; ALTER TABLE {0} RENAME qty TO c;"
        "ALTER TABLE {0} RENAME swap TO qty; UPDATE {0} SET qty = -1, c = -2 WHERE id = 11"
    ),
    (
        "UPDATE {0} SET mood = 'sad' WHERE id = 15;"
        "ALTER TYPE mood_{0} RENAME VALUE 'sad' TO 'blue';"
        "UPDATE {0} SET mood = 'blue' WHERE id = 16"
    ),
    "ALTER TYPE place_{0} ADD ATTRIBUTE y int; UPDATE {0} SET places = NULL WHERE id = 17",
    "ALTER TYPE mood_{0} ADD VALUE 'calm'",
    "ALTER TABLE {0} DROP d; ALTER TABLE {0} ADD d text; UPDATE {0} SET d = 'new' WHERE id = 12",
)

WAITING = "SELECT DISTINCT view FROM headwater.quarantine WHERE state IN ('waiting', 'retry')"


@pytest.fixture
def reading() -> Iterator[Callable[[Captured], None]]:
    """Does the reads that a job asks for, as the supervisor of a capture does."""
    stop = threading.Event()
    threads = []

    def start(captured: Captured) -> None:
        threads.append(threading.Thread(target=keep_reading, args=(captured.spec, stop)))
        threads[-1].start()

    yield start
    stop.set()
    for thread in threads:
        thread.join()


def test_views_follow_every_change_of_their_tables(
    capture: Callable[..., Captured],
    view_job: Callable[..., ViewJob],
    reading: Callable[[Captured], None],
    database: str,
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        for made in (MADE.format("noted"), MADE.format("looked"), PARTITIONED):
            connection.execute(made.encode())
    captured = capture("public.noted", "public.looked", "public.days")
    source = captured.spec.name
    names = ("noted", "looked", "days")
    everywhere, cached = frozenset(Store), frozenset({Store.CACHE})
    noted = TableName("public", "noted")
    views = [
        MirrorView(f"{source}_{name}", source, TableName("public", name), (), everywhere)
        for name in names
    ]
    views += [
        MirrorView(f"{source}_{policy}", source, noted, (), cached, policy)
        for policy in SchemaPolicy
    ]
    waits, stops = f"{source}_quarantine", f"{source}_pause"
    job = view_job(captured, views=views)
    reading(captured)
    job.start()
    assert job.catch_up() == []

    captured.execute(*(f"BEGIN; {step.format('noted')}; COMMIT" for step in STEPS))
    captured.execute(
        "BEGIN; ALTER TABLE days ATTACH PARTITION days_2 FOR VALUES FROM (10) TO (20);"
        "INSERT INTO days VALUES (91, 11, 'in the log'); COMMIT",
        "ALTER TABLE days DETACH PARTITION days_1",
        "CREATE TABLE days_3 PARTITION OF days FOR VALUES FROM (20) TO (30)",
        "INSERT INTO days VALUES (92, 21, 'in the log')",
    )
    assert {report.view for report in job.catch_up()} == {waits}
    (paused,) = job.bound().paused
    assert (paused.name, paused.fault.hint) == (stops, f"headwater view resume {stops}")
    with psycopg.connect(database, autocommit=True) as connection:
        assert connection.execute(WAITING).fetchall() == [(waits,)]
        assert not trigger.drop(connection)  # a source is captured
        connection.execute("ALTER EVENT TRIGGER headwater_ddl DISABLE")
        connection.execute("ALTER EVENT TRIGGER headwater_drop DISABLE")
        plan = resume(connection, source, views[4])
        assert [column.name for column in plan.schema.columns][-1] == "d"
        captured.execute(*(f"BEGIN; {step.format('looked')}; COMMIT" for step in STEPS))
        captured.execute(
            "ALTER TABLE noted ALTER label TYPE int USING length(label)",
            "UPDATE noted SET label = 3 WHERE id = 13; DELETE FROM noted WHERE id = 14",
        )
        assert {report.view for report in job.catch_up()} == {waits}
        assert {view.name for view in job.bound().paused} == {
            f"{source}_{name}" for name in ("noted", "ignore", "pause")
        }
        for view in (views[0], views[5]):
            resume(connection, source, view)
        captured.execute("INSERT INTO noted (id, label) VALUES (3000, 1)")
        job.wait(lambda _: connection.execute(WAITING).fetchall() == [])
        assert job.catch_up() == []
        told = noted_changes(connection, [noted])
    assert [view.name for view in job.bound().paused] == [stops, f"{source}_ignore"]
    topic = captured.spec.table_topics[SCHEMA_TABLE]
    last = b'{"id":%d}' % told[-1].id
    streamed = {record.key for record in captured.read(topic, lambda record: record.key == last)}
    assert {b'{"id":%d}' % change.id for change in told[:-1]} <= streamed
    assert told[-1].outcomes[f"{source}_evolve"] == "followed"
    assert told[-1].seen_after is not None
    assert all(change.seen_after is None for change in told[:-1])
    assert job.stop() == 0
