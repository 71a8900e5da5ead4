"""Postgres' own pgbench fills, writes, and keeps its promise of equal sums."""

from __future__ import annotations

import psycopg
import pytest

from headwater.demo.errors import WorkloadError
from headwater.demo.pgbench import Pgbench

pytestmark = pytest.mark.integration


def test_pgbench_fills_its_tables_and_writes_at_the_rate_asked_for(database):
    workload = Pgbench()

    rows = workload.prepare(database, 1)
    traffic = workload.start_traffic(database, rate=400.0, seconds=3.0)
    while traffic.running():
        traffic.written()
    written = traffic.stop()

    with psycopg.connect(database) as connection:
        history = connection.execute("SELECT count(*) FROM pgbench_history").fetchone()
    assert rows == 100_011
    assert history == (written.transactions,)
    assert written.changes == 4 * written.transactions
    # 400 changes a second are 100 transactions; how many a slow machine comes to is not said
    assert 0 < written.transactions < 600
    (source,) = workload.invariants(database, {})
    assert source.holds


def test_the_probe_changes_no_sum(database):
    workload = Pgbench()
    workload.prepare(database, 1)

    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(workload.probe.update, [42])
        found = connection.execute("SELECT filler FROM pgbench_accounts WHERE aid = 1").fetchone()

    assert found[0].strip() == "42"
    assert workload.invariants(database, {})[0].holds


def test_pgbench_stops_when_told(database):
    workload = Pgbench()
    workload.prepare(database, 1)

    traffic = workload.start_traffic(database, rate=100.0, seconds=60.0)
    traffic.stop()

    assert not traffic.running()


def test_a_database_that_cannot_be_filled_is_named_without_its_password():
    with pytest.raises(WorkloadError) as caught:
        Pgbench().prepare("postgresql://nobody:hunter2@127.0.0.1:1/nothing", 1)

    assert "hunter2" not in f"{caught.value} {caught.value.detail}"
