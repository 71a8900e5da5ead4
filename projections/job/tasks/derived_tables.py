"""DerivedTablesTask: makes each boundary readable once the derived views have reached it."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import orjson
import psutil
import psycopg
import structlog
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from cdc.errors import CdcError
from foundation.atomic_file import write_atomically
from projections.common.background_task import BackgroundTask
from projections.common.store_lock import DerivedStoreLock
from projections.definition.views import Store
from projections.errors import ProjectionError, ViewQueryError, WriterFencedError
from projections.incremental.spark.maintainer import DerivedMaintainer, number_of
from projections.incremental.spark.query_fault import query_fault
from projections.incremental.spark.table_reader import TableVersions
from projections.job.tasks.derived_checks import DerivedChecksTask
from projections.job.tasks.derived_stores import DerivedStoreTask
from projections.publishing.other_sources import NO_VIEWS, published_views
from projections.publishing.published_versions import Published
from projections.verification.requests import Renewals
from projections.versions import derived as versions_derived
from projections.versions import registry
from projections.versions.version import VersionState

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from typing import Any

    from pyspark.sql import SparkSession

    from cdc.lsn import Lsn
    from projections.common.fault import Fault
    from projections.definition.views import DerivedView
    from projections.planning.job_spec import JobSpec
    from projections.publishing.other_sources import OtherViews
    from projections.publishing.published_content import PublishedVersion, TableVersion
    from projections.verification.requests import Renewal

    Connection = psycopg.Connection[Any]

_TICK_S: Final = 0.1
_REST_MAX_S: Final = 5.0
"""Longest pause after a boundary. On a busy machine the pause is as long as the last computation:
otherwise derived views would be computed all the time, and take half of a small machine from their
inputs. The pause is shorter the more of the machine is idle, and 0 if half of it is."""
_REST_FAILED_S: Final = 1.0
_END_S: Final = 60.0
_AT_ONCE: Final = 2
"""Views that are computed at once: one is planned while rows of another are read."""
_POOL: Final = "derived"
_FAILURES: Final = (
    *(Py4JError, DeltaError, OSError, WriterFencedError, RuntimeError),
    *(psycopg.Error, CdcError),
)
_log = structlog.get_logger(__name__)


class DerivedTablesTask(BackgroundTask):
    """Maintains the derived views of a source, boundary by boundary.

    Boundaries published during a computation wait, and only the newest of them is computed. Two
    views are computed at once, each after its inputs. A view that cannot be maintained stays at its
    last boundary, as do the views derived from it; the others continue. A requested renewal is
    computed completely at the next boundary, see `projections.verification.requests`. So is a
    joining version, which is recorded as held once all its stores have it.

    Args:
        session: The Spark session.
        batches: The session for few rows.
        spec: The job.
    """

    def __init__(self, session: SparkSession, batches: SparkSession, spec: JobSpec) -> None:
        super().__init__("deriver")
        tables = spec.config.addresses.tables
        self.faults: dict[str, Fault] = {}
        self.seconds: dict[str, float] = {}
        self._session = session
        self._tables = tables
        self._published = Published(tables, spec.config.source)
        self._file = spec.config.derived_file
        self._spec = spec
        self._versions = TableVersions(session, tables)
        self._versions_of_few = TableVersions(batches, tables)
        self.maintainers = [self._maintainer(view) for view in spec.derived]
        self._store_lock = DerivedStoreLock(spec.config.source_dsn, spec.config.source, Store.TABLE)
        self._joining: dict[str, DerivedView] = {}
        self._made: Mapping[str, TableVersion] = {}
        self._pool = ThreadPoolExecutor(_AT_ONCE, "derived", self._in_pool)
        self._epochs: dict[str, int] = {}
        self._renewals = Renewals(spec.config)
        self._renewed: list[Renewal] = []
        self._followers = {
            store: DerivedStoreTask(batches, spec, store)
            for store in (Store.SEARCH, Store.CACHE)
            if any(store in view.to for view in (*spec.derived, *spec.declared_derived))
        }
        self._watch = DerivedChecksTask(session, spec, _POOL, lambda: self.views)
        self._explained = b""

    def run(self) -> None:
        """Follows the boundaries until stopped."""
        for companion in self.companions:
            companion.start()
        super().run()
        self._pool.shutdown()
        self._store_lock.close()
        for companion in self.companions:
            companion.join(_END_S)

    def work(self) -> None:
        """Computes the views at each boundary that is not readable yet."""
        rest_s = _TICK_S
        while not self.rested(rest_s):
            rest_s = _TICK_S
            try:
                self._publish_explanations()
                version = self._published.newest()
                if self._joining:
                    self._hold()
                if version is not None and not version.complete:
                    began = time.monotonic()
                    with self._tables_lock() as connection:
                        if connection is not None:
                            self._meet(connection)
                        others = published_views(self._tables, self._spec.cross_reads.read)
                        made = self.derived(version, others)
                        if connection is not None:
                            self._refuse(connection)
                        with self._spec.writing():
                            self._published.complete(version, made, others.positions)
                            self._settle(version)
                        self._made = made
                    took_s = time.monotonic() - began
                    rest_s = max(_TICK_S, min(took_s * _pressure(), _REST_MAX_S))
            except _FAILURES as error:
                # the pool accepts no work once this process has begun to end
                if not self._stopped.is_set():
                    _log.warning("a boundary is not readable yet", error=type(error).__name__)
                rest_s = _REST_FAILED_S

    def stop(self) -> None:
        """Ends the thread, and those of the other stores, after their present work."""
        super().stop()
        for companion in self.companions:
            companion.stop()

    @property
    def companions(self) -> tuple[BackgroundTask, ...]:
        """The tasks that it starts and stops."""
        return (*self._followers.values(), self._watch)

    @property
    def views(self) -> list[DerivedView]:
        """The maintained views, by their physical names."""
        return [maintainer.view for maintainer in self.maintainers]

    def reached(self) -> dict[tuple[str, Store], Lsn]:
        """Returns the position of each view in each store."""
        maintained = {view.name for view in self.views}
        made = {
            view: table.applied_through for view, table in self._made.items() if view in maintained
        }
        return {(view, Store.TABLE): lsn for view, lsn in made.items()} | {
            (view, store): lsn
            for store, follower in self._followers.items()
            for view, lsn in dict(follower.reached).items()
            if view in maintained
        }

    def derived(
        self, version: PublishedVersion, others: OtherViews = NO_VIEWS
    ) -> dict[str, TableVersion]:
        """Computes every view at a boundary; returns their tables there, as far as they exist.

        Args:
            version: The boundary.
            others: Its inputs from other sources.
        """
        epochs = {source: position.epoch for source, position in others.positions.items()}
        epochs[self._spec.config.source] = version.epoch
        if epochs != self._epochs:  # a recreated table has other version numbers
            self._forget()
            self._epochs = epochs
        self._renewed.clear()
        before = self._published.latest()
        views = {} if before is None else before.views
        physical_names = {**self._published.current(), **others.physical_names}
        names = {view.name for view in self.views}
        # the version also has the former tables of derived views
        known = {each: at for each, at in version.views.items() if each not in names}
        known |= others.tables
        futures: dict[str, Future[TableVersion | None]] = {}
        identities = self._identities()
        for maintainer in self.maintainers:
            maintainer.identities = identities
            # its inputs are in the pool already, so they will complete
            read = (physical_names.get(name, name) for name in maintainer.view.inputs)
            inputs = {place: futures[place] for place in read if place in futures}
            own = views.get(maintainer.view.name)
            futures[maintainer.view.name] = self._pool.submit(
                self._maintained,
                maintainer,
                version,
                {**known},
                inputs,
                own,
                physical_names,
                others.sources,
            )
        wait(futures.values())
        results = {name: future.result() for name, future in futures.items()}
        return {name: table for name, table in results.items() if table is not None}

    def _identities(self) -> dict[str, tuple[str, ...]]:
        """Returns the key columns of each table that has one row per key, by physical name."""
        mirrored = {
            plan.name: plan.keys
            for plan in self._spec.plans
            if plan.history is None and not plan.append_only
        }
        return mirrored | {view.name: view.keys for view in self.views}

    def _maintainer(self, view: DerivedView) -> DerivedMaintainer:
        tables, driver_token = self._spec.config.addresses.tables, self._spec.driver_token
        return DerivedMaintainer(
            tables, view, self._versions, self._versions_of_few, driver_token=driver_token
        )

    def _tables_lock(self) -> AbstractContextManager[Connection | None]:
        """Prevents that versions are dropped meanwhile, if there can be any."""
        return self._store_lock.acquired() if self._spec.declared_derived else nullcontext()

    def _meet(self, connection: Connection) -> None:
        """Updates the maintained views to the present versions."""
        spec = self._spec
        maintained = versions_derived.maintained(
            connection, spec.config.source, spec.declared_derived, spec.config.functions
        )
        self._joining = {each.view.name: each.view for each in maintained if each.joining}
        if [each.view for each in maintained] == self.views:
            return
        known = {maintainer.view.name: maintainer for maintainer in self.maintainers}
        self.maintainers = [
            before
            if (before := known.get(each.view.name)) and before.view == each.view
            else self._maintainer(each.view)
            for each in maintained
        ]
        for name in known.keys() - {view.name for view in self.views}:
            self.faults.pop(name, None)
        for follower in self._followers.values():
            follower.meet(self.views)

    def _refuse(self, connection: Connection) -> None:
        """Records why joining versions cannot be computed."""
        for name in self._joining:
            fault = self.faults.get(name)
            if fault is not None and not fault.retriable:
                registry.note_fault(connection, self._spec.config.source, name, fault)

    def _hold(self) -> None:
        """Records versions as held once all their stores have them."""
        reached = self.reached()
        there = [
            name
            for name, view in self._joining.items()
            if all((name, store) in reached for store in (*view.to, Store.TABLE))
        ]
        if not there:
            return
        with self._store_lock.acquired() as connection:
            for name in there:
                before, source = [VersionState.JOINING], self._spec.config.source
                if registry.move(connection, source, name, VersionState.HELD, before):
                    _log.info("a version is held", place=name)
                del self._joining[name]

    def _settle(self, version: PublishedVersion) -> None:
        """Removes the requests for renewals that are readable now."""
        for renewal in self._renewed:
            self._renewals.done(renewal, Store.TABLE, number_of(version))
            _log.info("a view was recomputed on request", view=renewal.view)

    def _maintained(  # noqa: PLR0913, PLR0917  # the parts of one boundary
        self,
        maintainer: DerivedMaintainer,
        version: PublishedVersion,
        known: dict[str, TableVersion],
        inputs: Mapping[str, Future[TableVersion | None]],
        own: TableVersion | None,
        physical_names: Mapping[str, str],
        others: Mapping[str, str],
    ) -> TableVersion | None:
        """Computes a view at a boundary; it stays at its last one if it cannot be maintained."""
        name = maintainer.view.name
        for each, future in inputs.items():
            made = future.result()
            if made is not None:
                known[each] = made
        began = time.monotonic()
        renewal = self._renewals.due(name, Store.TABLE, number_of(version))
        try:
            self._require_declared(maintainer.view)
            whole = renewal is not None
            made = maintainer.maintain(
                version, known, own, physical_names, whole=whole, others=others
            )
            self.faults.pop(name, None)
            if renewal is not None and made is not None:
                self._renewed.append(renewal)
        except (ProjectionError, PySparkException, Py4JJavaError, DeltaError, OSError) as error:
            made = own
            self._forget()  # a file that a frame names may be gone
            self._failed(name, error)
        self.seconds[name] = time.monotonic() - began
        return made

    def _require_declared(self, view: DerivedView) -> None:
        """Refuses a view with an input that is no longer declared: it would wait forever.

        Raises:
            ViewQueryError: An input is not declared.
        """
        spec = self._spec
        declared = {each.name for each in (*spec.views, *spec.declared_derived)}
        declared |= spec.cross_reads.read.keys()
        gone = [name for name in view.inputs if name not in declared]
        if gone and spec.declared_derived and spec.views:
            raise ViewQueryError(
                f"view {view.name} reads {gone[0]}, which is not declared any more",
                hint=f"headwater view rebuild {view.name.partition('.')[0]} computes it by its"
                " present query",
            )

    def _forget(self) -> None:
        for versions in (self._versions, self._versions_of_few):
            versions.forget()

    def _in_pool(self) -> None:
        """Assigns a thread's Spark jobs to the scheduler pool of derived views."""
        self._session.sparkContext.setLocalProperty("spark.scheduler.pool", _POOL)

    def _publish_explanations(self) -> None:
        """Writes how each view is maintained, for `headwater view explain` and `status`."""
        explanations = {
            maintainer.view.name: {
                "seconds": round(self.seconds.get(maintainer.view.name, 0.0), 3),
                "error": asdict(fault)
                if (fault := self.faults.get(maintainer.view.name))
                else None,
                **(asdict(maintainer.explanation) if maintainer.explanation else {}),
                "failed": dict(maintainer.failed),
                "reached": self._vectors(maintainer.view.name),
                "stores": {
                    str(store): state
                    for store, follower in self._followers.items()
                    if (state := follower.state_of(maintainer.view.name)) is not None
                },
            }
            for maintainer in self.maintainers
        }
        text = orjson.dumps(explanations)
        if text == self._explained:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._file, text, durable=False)
        self._explained = text

    def _vectors(self, view: str) -> dict[str, dict[str, tuple[int, int]]]:
        """Returns the boundaries of a view in other sources, by store."""
        made = self._made.get(view)
        vectors = {str(Store.TABLE): {} if made is None else made.others}
        vectors |= {
            str(store): follower.others.get(view, {}) for store, follower in self._followers.items()
        }
        return {
            store: {source: (at.epoch, at.lsn) for source, at in vector.items()}
            for store, vector in vectors.items()
            if vector
        }

    def _failed(self, view: str, error: Exception) -> None:
        fault = query_fault(view, error)
        if self.faults.get(view) != fault:
            _log.warning(
                "a view cannot be maintained", view=view, code=fault.code, reason=fault.message
            )
        self.faults[view] = fault


def _pressure() -> float:
    """Returns the load since the last call: 0 up to half of the cores, 1 if all are busy."""
    return max(0.0, psutil.cpu_percent(interval=None) / 50 - 1)
