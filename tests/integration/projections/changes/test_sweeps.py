"""What a whole read has not found is removed only once all that it has found is there."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import psycopg
import pytest
from deltalake import DeltaTable

from cdc.lsn import Lsn
from cdc.postgres import own_schema
from cdc.snapshot import reads
from cdc.snapshot.progress import SnapshotProgress
from projections.changes import sweeps
from projections.changes.applier import TaskApplier
from projections.changes.quarantine.write_guard import StoreGuard
from projections.changes.task_outcome import BlockedKeys
from projections.definition.views import Store
from projections.job.tasks.maintenance import MaintenanceTask
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.planning.view_plan import HistoryPlan
from projections.publishing.boundary import UnpublishedProgress
from projections.publishing.published_versions import Published
from projections.stores.delta.sink import WarehouseSink
from tests.fix_log import PLAN, TOPIC, Source, numbered
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from projections.changes.record import Record
    from projections.common.offsets import Offsets

pytestmark = pytest.mark.integration

HISTORY = replace(
    PLAN,
    name="things_history",
    to=frozenset([Store.TABLE]),
    history=HistoryPlan(("note", "big")),
)

_END_OTHERS = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


def test_a_history_is_not_swept_while_rows_of_the_read_wait_for_a_boundary(
    database: str, tmp_path: Path
) -> None:
    source = Source(whole_rows=True)
    source.together([[("insert", 1), ("insert", 2)]], Random(1))  # noqa: S311  # an order of its own
    written = numbered(source.topic)
    read = numbered([*written, *source.read(-1, -1)])[len(written) :]
    spec = JobSpec(JobConfig("shop", "", database, "", tmp_path, "", "", ()), (HISTORY,))
    published = Published(spec.config.addresses.tables, spec.config.source)
    sink = WarehouseSink(spec.config.addresses.tables)
    sink.prepare(HISTORY)
    _deliver(sink, written)
    states = _states(spec.config)
    # a batch has ended whose boundary lies before the read: what it sent waits for the next one
    published.keep_beyond(UnpublishedProgress(), [(TOPIC, read)])
    ends = {(TOPIC, 0): len(written) + len(read)}
    with psycopg.connect(database, autocommit=True) as connection:
        own_schema.ensure(connection)
        _done(connection, Lsn(source.states[-1][0] - 1), ends)
        with _tended(spec, lambda: ends) as looked:
            for _ in range(3):
                assert looked.acquire(timeout=60)
            assert {} == sweeps.swept_versions(connection)
            _deliver(sink, read)
            published.keep_beyond(UnpublishedProgress())
            wait_until(
                lambda: (HISTORY.name, Store.TABLE) in sweeps.swept_versions(connection),
                timeout_s=60,
            )

    assert [(1, True), (2, True)] == [(each["id"], each["is_current"]) for each in states]
    assert [(each["id"], each["valid_from"], None) for each in states] == [
        (each["id"], each["valid_from"], each["valid_to"]) for each in _states(spec.config)
    ]


def test_a_source_that_ends_the_connection_amid_a_round_delays_a_sweep_only(
    database: str, tmp_path: Path
) -> None:
    source = Source(whole_rows=True)
    source.together([[("insert", 1)]], Random(1))  # noqa: S311  # an order of its own
    written = numbered(source.topic)
    spec = JobSpec(JobConfig("shop", "", database, "", tmp_path, "", "", ()), (HISTORY,))
    sink = WarehouseSink(spec.config.addresses.tables)
    sink.prepare(HISTORY)
    _deliver(sink, written)
    ends, ended = {(TOPIC, 0): len(written)}, []
    with psycopg.connect(database, autocommit=True) as connection:
        own_schema.ensure(connection)
        _done(connection, Lsn(source.states[-1][0] + 1), ends)

        def ended_twice() -> Offsets:
            if len(ended) < 2:
                ended.append(connection.execute(_END_OTHERS).rowcount)
            return ends

        with _tended(spec, ended_twice):
            wait_until(
                lambda: (HISTORY.name, Store.TABLE) in sweeps.swept_versions(connection),
                timeout_s=60,
            )

    assert all(ended)
    assert [False] == [each["is_current"] for each in _states(spec.config)]


@contextmanager
def _tended(spec: JobSpec, committed: Callable[[], Offsets]) -> Iterator[threading.Semaphore]:
    """A caretaker is at work; each look of its releases the semaphore as it begins."""
    looked = threading.Semaphore(0)

    def told(_: Store) -> Offsets:
        looked.release()
        return committed()

    guards = {Store.TABLE: StoreGuard(spec.config.ledger, Store.TABLE)}
    caretaker = MaintenanceTask(spec, guards, told)
    caretaker.start()
    try:
        yield looked
    finally:
        caretaker.stop()
        caretaker.join(60)
        guards[Store.TABLE].close()


def _done(connection: psycopg.Connection[tuple[object, ...]], at: Lsn, ends: Offsets) -> None:
    """A whole read of the table is at its end."""
    reads.ask_initial(connection, "shop", 1, [HISTORY.schema.table])
    (asked,) = reads.of_source(connection, "shop", 1)
    assert reads.begin(connection, asked, at, SnapshotProgress("", (), ()), None)
    assert reads.finish(connection, asked.id, at, {p: end for (_, p), end in ends.items()})


def _deliver(sink: WarehouseSink, records: Sequence[Record]) -> None:
    delivery = TaskApplier([HISTORY], lambda: sink, {HISTORY.name: BlockedKeys()})
    delivery.take(TOPIC, records)
    delivery.finish()
    delivery.close()
    assert not delivery.waiting


def _states(config: JobConfig) -> list[dict[str, object]]:
    table = DeltaTable(str(config.addresses.tables / HISTORY.name)).to_pyarrow_table()
    found: list[dict[str, object]] = table.sort_by([("id", "ascending")]).to_pylist()
    return found
