"""A purge of a table without a key: its view pauses at most, and one command goes on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psycopg
import pytest

from cdc.snapshot import request
from cdc.snapshot.reader import keep_reading
from cdc.table import TableName
from projections.definition.views import MirrorView, Store
from projections.planning.binding import resume

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fix_capture import Captured
    from tests.fix_spark import ViewJob

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=3),
    pytest.mark.timeout(900),
]

MADE = """
CREATE TABLE orders (id int PRIMARY KEY, note text);
CREATE TABLE visits (day int, page text);
ALTER TABLE visits REPLICA IDENTITY FULL;
INSERT INTO orders SELECT n, 'first' FROM generate_series(1, 100) n;
INSERT INTO visits SELECT n / 1000, 'page ' || n FROM generate_series(0, 60999) n;
"""
WAITING = """
SELECT count(*) FROM headwater.quarantine WHERE state IN ('waiting', 'retry')
"""


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


def test_a_nightly_purge_pauses_one_view_and_one_command_goes_on(
    capture: Callable[..., Captured],
    view_job: Callable[..., ViewJob],
    reading: Callable[[Captured], None],
    database: str,
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(MADE)
    captured = capture("public.orders", "public.visits")
    source = captured.spec.name
    to = frozenset({Store.TABLE, Store.CACHE})
    orders, visits = (
        MirrorView(f"{source}_{name}", source, TableName("public", name), (), to)
        for name in ("orders", "visits")
    )
    job = view_job(captured, views=[orders, visits])
    reading(captured)
    job.start()
    assert [] == job.catch_up()

    with psycopg.connect(database, autocommit=True) as connection:

        def waiting() -> int:
            row = connection.execute(WAITING).fetchone()
            assert row is not None
            return int(row[0])

        connection.execute("DELETE FROM visits WHERE day < 60")
        connection.execute("INSERT INTO visits VALUES (61, 'today'), (61, 'today')")
        job.wait(lambda _: bool(job.bound().paused))
        (paused,) = job.bound().paused
        assert (visits.name, "HW-P157") == (paused.name, paused.fault.code)
        assert f"headwater view resume {visits.name}" in str(paused.fault.hint)
        assert waiting() <= 2 * 1_000  # the source is spared copies of what cannot be applied
        connection.execute("UPDATE orders SET note = 'flows'; INSERT INTO orders VALUES (101, '')")
        assert [] == job.catch_up()
        assert [visits.name] == [each.name for each in job.bound().paused]

        resume(connection, source, visits)
        connection.execute("INSERT INTO visits VALUES (62, 'tomorrow')")
        assert [] == job.catch_up()
        assert () == job.bound().paused
        job.wait(lambda _: waiting() == 0)

        # a few are set apart, and a read of the table settles them
        connection.execute("DELETE FROM visits WHERE day = 62; INSERT INTO visits VALUES (63, 'x')")
        job.wait(lambda _: waiting() == 2)
        request.ask(captured.spec, visits.table)
        job.wait(lambda _: waiting() == 0)
        assert [] == job.catch_up()
    assert 0 == job.stop()
