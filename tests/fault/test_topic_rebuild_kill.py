"""A version is filled from a compacted topic by processes that die: it equals what is live."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from contextlib import closing
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from cdc.broker.reading import compacted
from cdc.retention import TopicRetention
from cdc.table import TableName
from projections.archive.table import archive_lock
from projections.definition.views import MirrorView, Store
from projections.stores.factory import open_sink
from projections.versions import rebuild, registry
from projections.versions.version import VersionState
from tests.fix_capture import reading
from tests.fix_compaction import await_compacted, compacting
from tests.oracles import rebuild_workload
from tests.oracles.rebuild_workload import Workload
from tests.support.version_steps import connected
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

    from projections.planning.job_config import JobConfig
    from projections.planning.job_spec import JobSpec
    from tests.fix_capture import Captured
    from tests.fix_spark import ViewJob

pytestmark = [
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=4),
    pytest.mark.timeout(1800),
]

THINGS = TableName("public", "things")
HOUR_MS = 3_600_000
KILLS = (
    ("copies", 0),
    ("looks again", 0),
    ("writes to the cache", 1),
    ("writes to search", 2),
    ("notes", 2),
    ("joins", 0),
    None,
)


class Paused(Workload):
    """A workload that writes nothing while its gate is held."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gate = threading.Lock()

    def _step(self, connection: psycopg.Connection[Any]) -> None:
        with self.gate:
            super()._step(connection)

    def _truncate(self, connection: psycopg.Connection[Any]) -> set[int]:
        """Deletes all rows: brokers refuse the record of a TRUNCATE, which has no key."""
        gone = set(self._rows)
        self._rows = {}
        connection.execute("DELETE FROM things")
        return gone

    def write(self, transactions: int = 3) -> None:
        """Lets it write some transactions; the gate is held before and afterwards."""
        until = self.written + transactions
        self.gate.release()
        try:
            wait_until(lambda: self.written >= until or self.error is not None, timeout_s=LONG_S)
        finally:
            self.gate.acquire()


def test_a_version_filled_from_a_compacted_topic_equals_the_live_one_whatever_is_killed(
    capture: Callable[..., Captured], view_job: Callable[..., ViewJob], database: str, run_seed: int
) -> None:
    chance = Random(f"writes {run_seed}")  # noqa: S311  # no secret
    workload = Paused(database, chance, logged=bool(chance.getrandbits(1)))
    workload.begin()
    captured = capture("things", retention={THINGS: TopicRetention.parse("latest", HOUR_MS)})
    mirror = MirrorView(
        f"{captured.spec.name}_things", captured.spec.name, THINGS, (), frozenset(Store)
    )
    job = view_job(captured, views=[mirror])
    spec, topic = job.spec, THINGS.topic(captured.spec.name)
    with connected(spec.config) as connection, reading(captured):
        assert {} == registry.register(connection, spec.config.source, spec.views)
        job.start()
        assert [] == job.catch_up()
        workload.gate.acquire()
        workload.start()
        try:
            workload.write(300)
            job.catch_up()  # whoever follows has everything before it is compacted
            with compacting(spec.config.bootstrap, topic):
                left = await_compacted(spec.config.bootstrap, topic, workload.write)
                job.catch_up()
            there = compacted.look(spec.config.bootstrap, topic)
            assert there is not None
            assert (0, HOUR_MS / 1000) == (there.bounds[0][0], there.keeps_s)
            assert 0 not in left
            _cut_off(spec.config, topic)
            planned = rebuild.plan_rebuild(connection, spec, mirror, "archive")
            assert ("topic", None) == (planned.source, planned.lacking)
            workload.gate.release()
            for kill in KILLS:
                _built(spec, mirror, kill)
                assert workload.error is None
            wait_until(lambda: _held(connection, spec.config, mirror), timeout_s=LONG_S)
            done = workload.written + 50
            wait_until(
                lambda: workload.written > done or workload.error is not None, timeout_s=LONG_S
            )
        finally:
            if workload.gate.locked():
                workload.gate.release()
            workload.end()

        job.catch_up()  # what waits in quarantine is a difference until then
        wait_until(lambda: _at_rest(connection), timeout_s=LONG_S)
        assert [] == job.catch_up()
        _equal_in_all_stores(job, mirror)
        assert not list((spec.config.home / "copies").rglob("*.parquet"))
        assert 0 == job.stop()


def _cut_off(config: JobConfig, topic: str) -> None:
    """The archive loses its first records, as it does after `archive.keep_days`."""
    with archive_lock(config.archive):
        DeltaTable(str(config.archive)).delete(f"topic = '{topic}' AND \"offset\" < 20")


def _built(spec: JobSpec, view: MirrorView, kill: tuple[str, int] | None) -> None:
    processes = multiprocessing.get_context("forkserver")
    process = processes.Process(target=rebuild_workload.build_from_topic, args=(spec, view, kill))
    process.start()
    process.join(180)
    assert (0 if kill is None else -signal.SIGKILL) == process.exitcode, kill


def _held(connection: psycopg.Connection[Any], config: JobConfig, view: MirrorView) -> bool:
    version = rebuild.numbered(connection, config, view.name, 2)
    assert version.fault is None
    return version.state is VersionState.HELD


def _at_rest(connection: psycopg.Connection[Any]) -> bool:
    """Whether nothing waits to be read again."""
    waiting = "SELECT FROM headwater.quarantine WHERE state IN ('waiting', 'retry')"
    return not connection.execute(waiting).fetchall()


def _equal_in_all_stores(job: ViewJob, view: MirrorView) -> None:
    plans = {plan.name: plan for plan in job.bound().plans}
    for store in Store:
        with closing(open_sink(store, job.spec.config.addresses)) as sink:
            old, new = (
                {row["id"]: dict(row) for row in sink.documents(plans[name])}
                for name in (view.name, f"{view.name}.v2")
            )
        assert old == new, store
        assert old
