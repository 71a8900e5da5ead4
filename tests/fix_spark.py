"""The streaming job of a test's captured database, in a process of its own."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, LiteralString

import psutil
import psycopg
import pytest

from cdc.lsn import Lsn
from headwater.runtime.java.jars import ensure
from projections.definition.views import MirrorView, Store
from projections.errors import NotCaughtUpError, SinkUnavailableError
from projections.planning.binding import bind
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.planning.view_plan import plan_views
from projections.verification.verify import verify
from projections.versions import derived as versions_derived
from projections.versions import registry
from tests.programs.job_process import JobProcess
from tests.support.warm_jvm import WarmJvm
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from projections.definition.views import View
    from projections.verification.report import ViewReport
    from tests.fix_capture import Captured

UNCOMPILED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""A test runs each query a few times, over few rows: compiling them costs more than it saves."""

_LOG_LINES = 40
_CALLS = 8
_SAID = re.compile(r"^\d\d(?:\d\d-\d\d-\d\d|/\d\d/\d\d) |^\S*(?:Error|Exception|_ERROR\])\b")
"""What begins a line of a log that says more than where in Spark something was."""

_TOLD: tuple[LiteralString, ...] = (
    "SELECT 'now', clock_timestamp()::text",
    """
    SELECT 'read', id, table_name, rows_read, state, read_lsn, asked_at::text, begun_at::text,
           ended_at::text, failure FROM headwater.snapshots ORDER BY id
    """,
    "SELECT 'waits for read', view, read_id, paused FROM headwater.view_shapes ORDER BY view",
    """
    SELECT 'swept', view, store, max(below_version), max(swept_at)::text
      FROM headwater.sweeps GROUP BY view, store
    """,
    """
    SELECT 'position', view, store, applied_through, updated_at::text
      FROM headwater.view_positions
    """,
    "SELECT 'version', place, state FROM headwater.view_versions ORDER BY place",
    "SELECT 'slot', confirmed_flush_lsn, active, pg_current_wal_lsn() FROM pg_replication_slots",
)
"""What the source says of its views, for who looks at a test that failed."""


@dataclass(slots=True)
class ViewJob:
    """A job and its process.

    Attributes:
        spec: The job.
        jvm: The JVM that it uses if that is free; None if it starts its own.
        process: It, while it runs.
    """

    spec: JobSpec
    jvm: WarmJvm | None = None
    process: JobProcess | None = None
    seen: list[psutil.Process] = field(default_factory=list)
    _warm: bool = False

    def start(self) -> None:
        """Starts the job; it has its own log beside its data."""
        address = None if self.jvm is None else self.jvm.take(self.spec.config)
        self._warm = address is not None
        self.process = JobProcess(self.spec, address)

    def catch_up(self, timeout_s: float = 480) -> list[ViewReport]:
        """Waits until all that is committed now is applied; returns the views that differ."""
        with psycopg.connect(self.spec.config.source_dsn, autocommit=True) as connection:
            row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        assert row is not None
        deadline = time.monotonic() + timeout_s
        seen = ""
        while True:
            bound = self.bound()  # tables that change may be bound anew, or their views paused
            try:
                reports = verify(bound, through=Lsn.parse(row[0]), deadline_s=20)
            except (NotCaughtUpError, SinkUnavailableError) as error:  # a table takes other columns
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    pytest.fail(self.report(f"not caught up: {error.detail}") + seen)
                if left_s < timeout_s / 2:  # what a test's threads are at, such as those that read
                    seen = "".join(_stacks())
                continue
            if self.bound().plans == bound.plans:
                break
        assert reports
        return [report for report in reports if not report.equal]

    def bound(self) -> JobSpec:
        """The job with its views as they are bound now."""
        if not self.spec.views:
            return self.spec
        with psycopg.connect(self.spec.config.source_dsn, autocommit=True) as connection:
            kept = registry.maintained(connection, self.spec.config.source, self.spec.views)
            views = [version.view for version in kept]
            found = bind(connection, self.spec.config.source, views, hiding=self.spec.config.hiding)
            derived = versions_derived.maintained_views(
                connection,
                self.spec.config.source,
                self.spec.declared_derived,
                self.spec.config.functions,
            )
        events = [plan for plan in self.spec.plans if plan.events is not None]
        plans = (*found.plans, *events)
        made = derived or self.spec.derived
        return replace(self.spec, plans=plans, paused=found.paused, derived=made)

    def status(self) -> dict[str, Any]:
        """What the job last said of itself."""
        try:
            found: dict[str, Any] = json.loads(self.spec.config.status_file.read_bytes())
        except FileNotFoundError:
            return {"state": "none", "queries": {}}
        return found

    def wait(self, reached: Callable[[dict[str, Any]], bool], timeout_s: float = 480) -> None:
        """Waits until the job's status is as wanted."""
        wait_until(
            self.status,
            lambda: self.report("the job does not get there"),
            accept=reached,
            timeout_s=timeout_s,
        )

    def report(self, what: str) -> str:
        """What a failed test says of the job: how its parts are, and the end of its log."""
        status = self.status()
        parts = [f"{what}: the job is {status.get('state')}, {status.get('attendants')}"]
        parts += [
            f"query {name}: {query['batches']} batches, runs: {query['running']}, {query['error']}"
            for name, query in status["queries"].items()
        ]
        parts += self._said()
        try:
            with psycopg.connect(self.spec.config.source_dsn, connect_timeout=5) as connection:
                parts += [f"{row}" for told in _TOLD for row in connection.execute(told).fetchall()]
        except psycopg.Error as error:  # what the test has found is not to be hidden by this
            parts.append(f"the source says nothing: {type(error).__name__}")
        return "\n".join(parts)

    def _said(self) -> list[str]:
        """The newest lines of the job's log, without those of Spark's stacks."""
        log = self.spec.config.home / "job.log"
        if not log.exists():
            return ["it has no log"]
        lines = log.read_text(errors="replace").splitlines()
        return [line[:300] for line in lines if _SAID.match(line)][-_LOG_LINES:]

    def kill(self) -> None:
        """Kills the driver as hard as can be."""
        assert self.process is not None
        self.seen = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        self.process.wait()
        if self._warm and self.jvm is not None:
            self.jvm.discard()
        self._warm = False

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = 120) -> int:
        """Ends the job and returns its exit code."""
        assert self.process is not None
        self.seen = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(number)
        code = self.process.wait(timeout_s)
        self.give_back()
        return code

    def give_back(self) -> None:
        """Leaves the JVM to another job; this one has ended."""
        if self._warm and self.jvm is not None:
            self.jvm.give_back()
        self._warm = False

    def orphans(self, timeout_s: float = 30) -> list[psutil.Process]:
        """What is left of the job's processes after its end, JVM and workers."""
        return psutil.wait_procs(self.seen, timeout_s)[1]


def _stacks() -> Iterator[str]:
    """Where each thread of this process stands, the innermost calls of it."""
    for number, frame in sys._current_frames().items():
        calls = traceback.extract_stack(frame)[-_CALLS:]
        places = (f"{'/'.join(c.filename.split('/')[-2:])}:{c.lineno}" for c in calls)
        yield f"\nthread {number}: {' > '.join(places)}"


@pytest.fixture(scope="session")
def warm_jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmJvm]:
    """The JVM of the jobs that are not killed, one after the other."""
    jvm = WarmJvm(tmp_path_factory.mktemp("jvm") / "jvm.log")
    yield jvm
    jvm.discard()


@pytest.fixture
def view_job(
    tmp_path: Path, kafka_bootstrap: str, search_url: str, cache_url: str, warm_jvm: WarmJvm
) -> Iterator[Callable[..., ViewJob]]:
    """Makes the job that keeps the given views, or mirrors all captured tables everywhere.

    A job that a test kills starts a JVM of its own.
    """
    from cdc.postgres import catalog

    jobs: list[ViewJob] = []

    def make(
        captured: Captured,
        to: tuple[str, ...] = tuple(Store),
        views: Sequence[View] | None = None,
        *,
        own_jvm: bool = False,
        **settings: Any,
    ) -> ViewJob:
        name = captured.spec.name
        wanted = views or [
            MirrorView(f"{name}_{table.name}", name, table, (), frozenset(map(Store, to)))
            for table in captured.spec.tables
        ]
        with psycopg.connect(captured.database) as connection:
            tables, rules = captured.spec.tables, captured.spec.columns
            schemas = catalog.describe(connection, tables, rules)
        config = {f.name: settings.pop(f.name) for f in fields(JobConfig) if f.name in settings}
        spec = JobSpec(
            JobConfig(
                source=name,
                bootstrap=kafka_bootstrap,
                source_dsn=captured.database,
                hiding=captured.spec.hiding,
                slot=captured.spec.slot,
                home=tmp_path / "home",
                archive_interval_s=1.0,
                jars=tuple(ensure("spark", progress=False)),
                driver_memory_mib=700,
                **{"cache_url": cache_url, "search_url": search_url, "conf": UNCOMPILED} | config,
            ),
            plans=plan_views(wanted, schemas),
            views=tuple(view for view in wanted if isinstance(view, MirrorView)),
            **settings,
        )
        jobs.append(ViewJob(spec, None if own_jvm else warm_jvm))
        return jobs[-1]

    yield make
    for job in jobs:
        if job.process is not None and job.process.poll() is None:
            job.kill()
        job.give_back()
        for left in job.orphans(10):  # a test that failed may have left them stopped
            with suppress(psutil.NoSuchProcess):
                left.kill()
