"""DerivedStoreTask: copies the derived views of a source from their tables into one other store.

A file beside the checkpoints records what the store has of each view. It is written after the
store, so a follower that is killed in between writes the same rows again, with the same or greater
versions.

The follower also detects a lost index or cache while nothing changes: every few seconds it compares
the identity marks in the store with the recorded ones, and writes a view again whose mark differs.
It also writes a view again on request, see `projections.verification.requests`.
"""

from __future__ import annotations

import time
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec
import psycopg
import pyarrow as pa
import structlog
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from msgspec import structs
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from cdc.errors import CdcError
from cdc.postgres import session as postgres
from foundation.atomic_file import write_atomically
from projections.common.background_task import BackgroundTask
from projections.common.fault import Fault
from projections.common.store_lock import DerivedStoreLock
from projections.definition.views import Store
from projections.errors import (
    FeedLostError,
    IndexLostError,
    ProjectionError,
    QueryFailedError,
    SinkError,
    WriterFencedError,
)
from projections.incremental.delivery import (
    COMMITS_MAX,
    DeliveredState,
    DerivedDelivery,
    delivered,
    delivered_file,
    plan_at,
)
from projections.incremental.row_form import derived_plan, form_of
from projections.incremental.spark.maintainer import number_of
from projections.job.tasks.store_delivery import DELIVERED_DDL, StoreDelivery, StoreQuarantine
from projections.publishing import positions
from projections.publishing.published_versions import Published
from projections.stores.factory import open_sink
from projections.stores.identity import Marked
from projections.stores.valkey.epoch import CacheEpoch
from projections.stores.valkey.sink import CacheSink
from projections.verification.requests import Renewals

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from cdc.lsn import Lsn
    from projections.definition.views import DerivedView
    from projections.planning.job_spec import JobSpec
    from projections.planning.view_plan import ViewPlan
    from projections.publishing.published_content import (
        PublishedVersion,
        SourcePosition,
        TableVersion,
    )

LOOK_S: Final = 5.0
"""Pause between two checks of the marks while nothing is published."""

_TICK_S: Final = 0.1
_PAUSE_S: Final = 2.0
_POOL: Final = "derived"
_CONNECT_S: Final = 5
_FAILURES: Final = (
    ProjectionError,
    CdcError,
    PySparkException,
    Py4JError,
    DeltaError,
    psycopg.Error,
    OSError,
)
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _StoreState:
    """The state of a view in the store."""

    plan: ViewPlan
    version: int


class DerivedStoreTask(BackgroundTask):
    """Keeps the derived views of one store at the version of their published tables.

    A view that cannot be delivered is retried; the others continue. Rows that the store refuses are
    quarantined, and written when they change or an operator retries them.

    Args:
        session: The Spark session.
        spec: The job.
        store: Search or cache.
    """

    def __init__(self, session: SparkSession, spec: JobSpec, store: Store) -> None:
        super().__init__(f"derived {store}")
        self.faults: dict[str, Fault] = {}
        self.reached: dict[str, Lsn] = {}
        self.others: dict[str, dict[str, SourcePosition]] = {}
        self._session = session
        self._spec = spec
        self._store = store
        self._views = [view for view in spec.derived if store in view.to]
        self._published = Published(spec.config.addresses.tables, spec.config.source)
        self._store_lock = DerivedStoreLock(spec.config.source_dsn, spec.config.source, store)
        self._file = delivered_file(spec.config, store)
        self._had = delivered(spec.config, store)
        self._renewals = Renewals(spec.config)
        self._prepared: dict[str, str] = {}  # the forms for which the store was prepared, by view
        self._at: dict[str, _StoreState] = {}
        self._quarantine = StoreQuarantine(spec.config.ledger, store)
        self._look_at = 0.0
        self._epoch: CacheEpoch | None = None
        if store is Store.CACHE:
            addresses = spec.config.addresses
            file = spec.config.checkpoint(store).with_suffix(".derived.epoch")
            self._epoch = CacheEpoch(
                addresses.cache_url, addresses.cache_prefix, file, "_epoch_derived"
            )

    def run(self) -> None:
        """Follows the published versions until stopped."""
        super().run()
        self._store_lock.close()
        if self._epoch is not None:
            self._epoch.close()

    def work(self) -> None:
        """Delivers each published version."""
        self._session.sparkContext.setLocalProperty("spark.scheduler.pool", _POOL)
        delivered, wait_s = 0, _TICK_S
        while not self.rested(wait_s):
            version = self._published.latest()
            if version is None or (
                version.number == delivered and time.monotonic() < self._look_at
            ):
                continue
            delivered, wait_s = 0, _PAUSE_S
            with suppress(WriterFencedError), self._spec.writing():  # which ends the job
                if self._follow_in_turn(version):
                    delivered, wait_s = version.number, _TICK_S

    def meet(self, views: Iterable[DerivedView]) -> None:
        """Follows these views from now on."""
        self._views = [view for view in views if self._store in view.to]

    def _follow_in_turn(self, version: PublishedVersion) -> bool:
        """Follows with the store locked against cutovers, if a version may become active."""
        if not self._spec.declared_derived:
            return self.follow(version)
        try:
            with self._store_lock.acquired():
                return self.follow(version)
        except _FAILURES as error:
            for view in self._views:
                self._failed(view.name, error)
            return False

    def state_of(self, view: str) -> dict[str, Any] | None:
        """Returns a view's state in the store; None if it does not belong there."""
        if all(each.name != view for each in self._views):
            return None
        fault = self.faults.get(view)
        return {"error": None if fault is None else asdict(fault)}

    def follow(self, version: PublishedVersion) -> bool:
        """Delivers every view up to a version; returns whether all of them are there."""
        try:
            self._look(version)
        except _FAILURES as error:
            for view in self._views:
                self._failed(view.name, error)
            return False
        whole = True
        for view in self._views:
            table = version.views.get(view.name)
            if table is None or self._stopped.is_set():
                whole = whole and table is None
                continue
            try:
                whole &= self._deliver(view, table, version)
            except _FAILURES as error:
                whole = False
                self._failed(view.name, error)
        return whole

    def _deliver(self, view: DerivedView, table: TableVersion, version: PublishedVersion) -> bool:
        """Delivers a view up to a version; returns whether it is there."""
        at = self._at.get(view.name)
        renewal = self._renewals.due(view.name, self._store, number_of(version))
        if renewal is None and at is not None and at.version == table.version:
            self._retry(at)
            self._come(at, table)
            return True
        tables = self._spec.config.addresses.tables
        stored = DeltaTable(str(tables / view.name), version=table.version)
        plan = derived_plan(view, self._spec.config.source, pa.schema(stored.schema().to_arrow()))
        active = self._published.current().get(plan.view, plan.view) == plan.name
        plan = replace(plan, active=active)
        form, had = form_of(plan), self._had.get(view.name)
        place = self._place(plan, form)
        wanted = DeliveredState(
            str(stored.metadata().id), table.version, version.epoch, version.lsn, form, place
        )
        after = None if renewal is not None else _after(had, wanted)
        if had is not None and had.place != place:
            _log.warning("a view was lost by a store", view=view.name, store=str(self._store))
            self._withdraw([view.name])
        if had is None or after is None or after < wanted.version:
            if after is None and had is not None and had.place == place:
                if had.number >= wanted.number:
                    return False  # rows that are written again need a newer version: wait
                if renewal is not None:
                    had = self._begin(plan, wanted)
                elif self._store is Store.CACHE and not plan.cache.linked:
                    self._rid(plan)
            self._write(self._delivery(plan, wanted, after), wanted)
        self._come(_StoreState(plan, table.version), table)
        if renewal is not None:
            self._renewals.done(renewal, self._store, wanted.number)
            _log.info("a view was written again on request", view=view.name, store=self._store)
        return True

    def _begin(self, plan: ViewPlan, wanted: DeliveredState) -> DeliveredState:
        """Records that all rows of an existing view are about to be written again.

        If the process is killed meanwhile, all rows are written once more with newer versions:
        sorted sets and counters of the cache are written together with the row only.
        """
        begun = self._had[plan.name] = structs.replace(wanted, table="")
        self._keep()
        if self._epoch is not None:
            self._epoch.mark([plan])
            self._rid(plan)
        return begun

    def _retry(self, at: _StoreState) -> None:
        """Writes the rows again that an operator retries."""
        plan, retried = at.plan, self._quarantine.retried(at.plan.name)
        if retried:
            state = self._had[plan.name]
            delivery = self._delivery(plan, state, state.version)
            self._write(replace(delivery, retried=retried), state)

    def _come(self, brought: _StoreState, table: TableVersion) -> None:
        """Records that a view is at its table's version."""
        name = brought.plan.name
        self._at[name] = brought
        self.reached[name], self.others[name] = table.applied_through, table.others
        self.faults.pop(name, None)

    def _delivery(self, plan: ViewPlan, to: DeliveredState, after: int | None) -> DerivedDelivery:
        config = self._spec.config
        return DerivedDelivery(
            config.addresses.tables,
            plan,
            to.version,
            to.number,
            after,
            quarantined=self._quarantine.keys(plan.name),
            refused_max=config.ledger.rows_max,
        )

    def _write(self, delivery: DerivedDelivery, wanted: DeliveredState) -> None:
        plan, config = delivery.plan, self._spec.config
        task = StoreDelivery(
            delivery, self._store, config.addresses, config.ledger, self._spec.driver_token
        )
        if self._epoch is not None:
            self._epoch.beat()
        tasks = self._session.range(1, numPartitions=1).mapInArrow(task.run, DELIVERED_DDL)
        (row,) = tasks.collect()
        self._quarantine.record(delivery, row["refused"], row["written"])
        if self._epoch is not None:
            self._epoch.beat()
            if delivery.after is None:
                self._epoch.built(plan)
        self._had[plan.name] = wanted
        self._keep()

    def _place(self, plan: ViewPlan, form: str) -> str:
        """Prepares the store for a view; returns its identity mark."""
        with closing(open_sink(self._store, self._spec.config.addresses)) as sink:
            if self._prepared.get(plan.name) != form:
                sink.prepare(plan)
                self._prepared[plan.name] = form
            if isinstance(sink, Marked):
                mark = sink.mark(plan)
                if mark is None:
                    self._prepared.pop(plan.name)
                    raise IndexLostError(
                        f"view {plan.name} was lost by {self._store}",
                        hint="the job creates and fills it again",
                    )
                return mark
        return "" if self._epoch is None else self._epoch.id

    def _look(self, version: PublishedVersion) -> None:
        """Detects what the store has lost, so that it is written again, and what is to be retried.

        If the store does not answer, the next delivery reports that.

        Raises:
            QuarantineDownError: The source does not answer, and the quarantine is not known yet.
        """
        due = time.monotonic() >= self._look_at
        if due:
            self._quarantine.read(view.name for view in self._views)
            self._look_at = time.monotonic() + LOOK_S
        if self._epoch is not None:
            self._look_at_cache(self._epoch, version)
        elif due:
            try:
                lost = self._lost()
            except SinkError:
                lost = list(self._at)
            self._forget(lost)

    def _lost(self) -> list[str]:
        """Returns the views whose identity mark in the store is not the recorded one.

        Raises:
            SinkError: The store does not answer.
        """
        with closing(open_sink(self._store, self._spec.config.addresses)) as sink:
            if not isinstance(sink, Marked):
                return []
            return [
                name
                for name, brought in self._at.items()
                if sink.mark(brought.plan) != self._had[name].place
            ]

    def _look_at_cache(self, epoch: CacheEpoch, version: PublishedVersion) -> None:
        """Detects a cache that has lost data: all views are then written again."""
        reason = epoch.look()
        if reason is None:
            return
        _log.warning("derived views of the cache are written again", why=reason)
        views = [view for view in self._views if view.name in version.views]
        self._withdraw([view.name for view in views])
        self._forget([view.name for view in self._views])
        epoch.renew([plan_at(self._spec.config, view) for view in views])

    def _forget(self, views: list[str]) -> None:
        """Forgets the known state of views, so that the store is checked first."""
        for view in views:
            self._prepared.pop(view, None)
            self._at.pop(view, None)

    def _withdraw(self, views: list[str]) -> None:
        """Removes the positions that views claim in the store."""
        dsn = self._spec.config.source_dsn
        with postgres.connect(dsn, autocommit=False, timeout_s=_CONNECT_S) as connection:
            positions.withdraw(connection, views, self._store)
        for view in views:
            self.reached.pop(view, None)
            self.others.pop(view, None)

    def _rid(self, plan: ViewPlan) -> None:
        """Removes sorted sets and counters of a view that no longer declares any."""
        addresses = self._spec.config.addresses
        with closing(CacheSink(addresses.cache_url, addresses.cache_prefix)) as sink:
            sink.drop_beside(plan)

    def _failed(self, view: str, error: Exception) -> None:
        self._look_at = 0.0  # what failed may have quarantined rows
        if isinstance(error, ProjectionError):
            fault = Fault.of(error)
        else:
            unknown = Fault(
                QueryFailedError.code,
                f"view {view} cannot be delivered",
                type(error).__name__,
                None,
                True,
            )
            fault = Fault.find(str(error)) or unknown
        if fault.code == IndexLostError.code:
            self._prepared.pop(view, None)
        if fault.code == FeedLostError.code:
            self._had[view] = structs.replace(self._had[view], table="")
        self._note(view, fault)

    def _note(self, view: str, fault: Fault) -> None:
        if self.faults.get(view) != fault:
            _log.warning(
                "a view is not delivered",
                view=view,
                store=str(self._store),
                code=fault.code,
                reason=fault.message,
            )
        self.faults[view] = fault

    def _keep(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._file, msgspec.json.encode(self._had))


def _after(had: DeliveredState | None, wanted: DeliveredState) -> int | None:
    """Returns the version after which changes are read; None where all rows are written."""
    if had is None or had.refused:
        return None
    same = (had.table, had.form, had.place) == (wanted.table, wanted.form, wanted.place)
    near = had.version <= wanted.version <= had.version + COMMITS_MAX
    return had.version if same and near else None
