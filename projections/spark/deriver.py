"""Deriver: makes each boundary readable once the views made from others have come there."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import orjson
import psutil
import structlog
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from projections.errors import ProjectionError, WriterFencedError
from projections.published import Published
from projections.spark.derived import DerivedKeeper, number_of, query_fault
from projections.spark.derived_watch import DerivedWatch
from projections.spark.follower import Follower
from projections.spark.table_versions import TableVersions
from projections.verification.renewal import Renewals
from projections.view import Store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from cdc.lsn import Lsn
    from projections.fault import Fault
    from projections.published import PublishedVersion, TableVersion
    from projections.spec import JobSpec
    from projections.verification.renewal import Renewal

_TICK_S: Final = 0.1
_REST_MAX_S: Final = 5.0
"""Longest rest after a boundary. Where the machine is busy it rests as long as the last one took:
else views made from others would always be at work, and take half of a small machine from the views
that they are made from. Where half of it is idle, half as long."""
_REST_FAILED_S: Final = 1.0
_END_S: Final = 60.0
_AT_ONCE: Final = 2
"""Views that are brought to a boundary at once: one is planned while rows of another are read."""
_POOL: Final = "derived"
_log = structlog.get_logger(__name__)


class Deriver(threading.Thread):
    """Keeps the derived views of a source, boundary by boundary.

    A boundary that comes while another is at work waits; of several only the newest counts. Two
    views are at work at once, each after those that it is made from. A view that cannot be kept
    stays at its last boundary, with those made from it; the others go on. What somebody asked for
    is computed whole at the next boundary, see `projections.verification.renewal`.

    Args:
        session: Where.
        batches: Where that is done which concerns few rows.
        spec: The job.
    """

    def __init__(self, session: SparkSession, batches: SparkSession, spec: JobSpec) -> None:
        super().__init__(name="deriver", daemon=True)
        tables = spec.addresses.tables
        self.faults: dict[str, Fault] = {}
        self.seconds: dict[str, float] = {}
        self._session = session
        self._published = Published(tables, spec.source)
        self._file = spec.derived_file
        self._spec = spec
        self._versions = TableVersions(session, tables)
        self._versions_of_few = TableVersions(batches, tables)
        self.keepers = [
            DerivedKeeper(tables, view, self._versions, self._versions_of_few, tenure=spec.tenure)
            for view in spec.derived
        ]
        self._names = frozenset(view.name for view in spec.derived)
        self._pool = ThreadPoolExecutor(_AT_ONCE, "derived", self._in_pool)
        self._epoch = 0
        self._renewals = Renewals(spec)
        self._renewed: list[Renewal] = []
        self._followers = {
            store: Follower(batches, spec, store)
            for store in (Store.SEARCH, Store.CACHE)
            if any(store in view.to for view in spec.derived)
        }
        self._watch = DerivedWatch(session, spec, _POOL)
        self._said = b""
        self._stopped = threading.Event()

    def run(self) -> None:
        """Follows the boundaries until stopped."""
        for follower in self._followers.values():
            follower.start()
        self._watch.start()
        rest_s = _TICK_S
        while not self._stopped.wait(rest_s):
            rest_s = _TICK_S
            try:
                self._tell()
                version = self._published.newest()
                if version is not None and not version.complete:
                    began = time.monotonic()
                    made = self.derived(version)
                    with self._spec.writing():
                        self._published.complete(version, made)
                        self._settle(version)
                    took_s = time.monotonic() - began
                    busy = psutil.cpu_percent(interval=None) / 100  # since it was asked before
                    rest_s = max(_TICK_S, min(took_s * busy, _REST_MAX_S))
            except (Py4JError, DeltaError, OSError, WriterFencedError, RuntimeError) as error:
                # a pool takes no work any more once this process has begun to end
                if not self._stopped.is_set():
                    _log.warning("a boundary is not readable yet", error=type(error).__name__)
                rest_s = _REST_FAILED_S
        self._pool.shutdown()
        for thread in (*self._followers.values(), self._watch):
            thread.join(_END_S)

    def stop(self) -> None:
        """Ends the thread, and those of the other stores, after what they are at."""
        self._stopped.set()
        self._watch.stop()
        for follower in self._followers.values():
            follower.stop()

    def reached(self) -> dict[tuple[str, Store], Lsn]:
        """Returns where each view is in each store beside the tables."""
        return {
            (view, store): lsn
            for store, follower in self._followers.items()
            for view, lsn in dict(follower.reached).items()
        }

    def derived(self, version: PublishedVersion) -> dict[str, TableVersion]:
        """Brings every view to a boundary; returns their tables there, as far as there are any."""
        if version.epoch != self._epoch:  # whatever was made anew has versions of its own
            self._forget()
            self._epoch = version.epoch
        self._renewed.clear()
        before = self._published.latest()
        views = {} if before is None else before.views
        places = self._published.current()
        kept: dict[str, Future[TableVersion | None]] = {}
        for keeper in self.keepers:
            # those that it waits for are in the pool already, so they come to their end
            inputs = {name: kept[name] for name in keeper.view.inputs if name in kept}
            own = views.get(keeper.view.name)
            kept[keeper.view.name] = self._pool.submit(
                self._kept, keeper, version, inputs, own, places
            )
        wait(kept.values())
        found = {name: future.result() for name, future in kept.items()}
        return {name: table for name, table in found.items() if table is not None}

    def _settle(self, version: PublishedVersion) -> None:
        """Strikes off what was asked for and can be read now."""
        for renewal in self._renewed:
            self._renewals.done(renewal, Store.TABLE, number_of(version))
            _log.info("a view was made whole as it was asked", view=renewal.view)

    def _kept(
        self,
        keeper: DerivedKeeper,
        version: PublishedVersion,
        inputs: Mapping[str, Future[TableVersion | None]],
        own: TableVersion | None,
        places: Mapping[str, str],
    ) -> TableVersion | None:
        """Brings a view to a boundary; it stays where it was if it cannot be kept."""
        name = keeper.view.name
        # of a view made from others the version itself says where it was before
        known = {each: at for each, at in version.views.items() if each not in self._names}
        for each, future in inputs.items():
            made = future.result()
            if made is not None:
                known[each] = made
        began = time.monotonic()
        renewal = self._renewals.due(name, Store.TABLE, number_of(version))
        try:
            made = keeper.keep(version, known, own, places, whole=renewal is not None)
            self.faults.pop(name, None)
            if renewal is not None and made is not None:
                self._renewed.append(renewal)
        except (ProjectionError, PySparkException, Py4JJavaError, DeltaError, OSError) as error:
            made = own
            self._forget()  # a file that a frame names may be gone
            self._failed(name, error)
        self.seconds[name] = time.monotonic() - began
        return made

    def _forget(self) -> None:
        for versions in (self._versions, self._versions_of_few):
            versions.forget()

    def _in_pool(self) -> None:
        """Puts what a thread of the pool has Spark do beside the batches of the stores."""
        self._session.sparkContext.setLocalProperty("spark.scheduler.pool", _POOL)

    def _tell(self) -> None:
        """Says how each view is kept; read by `headwater view explain` and `status`."""
        said = {
            keeper.view.name: {
                "seconds": round(self.seconds.get(keeper.view.name, 0.0), 3),
                "error": asdict(fault) if (fault := self.faults.get(keeper.view.name)) else None,
                **(asdict(keeper.explanation) if keeper.explanation else {}),
                "failed": dict(keeper.failed),
                "stores": {
                    str(store): found
                    for store, follower in self._followers.items()
                    if (found := follower.told(keeper.view.name)) is not None
                },
            }
            for keeper in self.keepers
        }
        text = orjson.dumps(said)
        if text == self._said:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        draft = self._file.with_suffix(".tmp")
        draft.write_bytes(text)
        draft.replace(self._file)
        self._said = text

    def _failed(self, view: str, error: Exception) -> None:
        fault = query_fault(view, error)
        if self.faults.get(view) != fault:
            _log.warning("a view cannot be kept", view=view, code=fault.code, what=fault.message)
        self.faults[view] = fault
