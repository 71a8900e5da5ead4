"""Views that are declared later, and views that go, in a home where a job has run before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from cdc.broker.client.admin import admin
from cdc.broker.topics.offsets import end_offsets
from cdc.table import TableName
from projections.common.spark_checkpoint import positions
from projections.definition.views import MirrorView, Store
from tests.fix_capture import reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fix_capture import Captured
    from tests.fix_spark import ViewJob

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=2),
    pytest.mark.timeout(1200),
]

TABLES = """
CREATE TABLE notes (id int PRIMARY KEY, body text);
CREATE TABLE lines (body text);
CREATE TABLE late (id int PRIMARY KEY, body text);
CREATE TABLE gone (id int PRIMARY KEY, body text);
INSERT INTO notes SELECT n, 'note' FROM generate_series(1, 50) n;
INSERT INTO lines SELECT 'line ' || n % 3 FROM generate_series(1, 20) n;
INSERT INTO late SELECT n, 'late' FROM generate_series(1, 30) n;
INSERT INTO gone SELECT n, 'gone' FROM generate_series(1, 10) n
"""
CHANGES = (
    "UPDATE notes SET body = 'changed' WHERE id < 5",
    "DELETE FROM notes WHERE id = 9",
    "INSERT INTO lines VALUES ('line 0'), (NULL)",
    "DELETE FROM late WHERE id = 3",
    "UPDATE late SET body = 'changed' WHERE id = 4",
)


def test_views_come_later_and_go_and_none_lacks_a_row(
    database: str, capture: Callable[..., Captured], view_job: Callable[..., ViewJob]
) -> None:
    """Of a topic that the queries are past, of one whose records are gone, and in another store."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES)
    captured = capture("notes", "lines", "late", "gone")
    source = captured.spec.name

    def view(name: str, table: str, *to: str) -> MirrorView:
        place = TableName("public", table)
        return MirrorView(f"{source}_{name}", source, place, (), frozenset(map(Store, to)))

    first = [
        view("notes", "notes", "cache", "table"),
        view("lines", "lines", "cache", "table"),
        view("gone", "gone", "cache", "table"),
    ]
    job = view_job(captured, views=first)
    job.start()
    assert [] == job.catch_up()
    job.wait(lambda said: said["queries"]["archive"]["batches"] > 0)  # it wants nothing of these
    assert 0 == job.stop()
    _forget(captured, "late")
    captured.execute(*CHANGES)

    more = [
        view("notes", "notes", "cache", "table", "search"),
        view("lines", "lines", "cache", "table"),
        view("notes_again", "notes", "cache", "table"),
        view("lines_again", "lines", "cache"),
        view("late", "late", "cache", "table"),
    ]
    again = view_job(captured, views=more)
    with reading(captured):
        again.start()
        assert [] == again.catch_up()
    assert 0 == again.stop()

    asked = "SELECT table_name FROM headwater.snapshots GROUP BY 1 HAVING count(*) = 2 ORDER BY 1"
    with psycopg.connect(database) as connection:
        assert [("late",), ("lines",), ("notes",)] == connection.execute(asked).fetchall()
    stands = positions(again.spec.config.home, source)
    gone = TableName("public", "gone").topic(source), 0
    assert {"query archive"} == {query for query, at in stands.items() if gone in at}


def _forget(captured: Captured, table: str) -> None:
    """Has Kafka drop the records of a table's topic, as retention does."""
    from kafka import TopicPartition

    bootstrap = captured.spec.kafka_bootstrap
    topic = TableName("public", table).topic(captured.spec.name)
    with admin(bootstrap) as client:
        end = end_offsets(bootstrap, [topic])[topic, 0]
        assert 30 == end
        client.delete_records({TopicPartition(topic, 0): end})
