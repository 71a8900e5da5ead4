"""JobSpec: all that the streaming job and a verification need to know."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from cdc.capture import HEARTBEAT_TABLE
from cdc.column_rule import NOTHING_HIDDEN
from projections.definition.views import Store

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from cdc.column_rule import Hiding
    from projections.common.driver_lock import Tenure
    from projections.common.fault import Fault
    from projections.common.offsets import Offsets
    from projections.definition.views import DerivedView, View
    from projections.planning.view_plan import ViewPlan


FUNCTIONS: Final = "functions"
"""Folder in the home; see `projections.versions.function_store`."""


@dataclass(frozen=True, slots=True)
class StoreAddresses:
    """Where the views are kept.

    Attributes:
        tables: Folder of the Delta tables.
        search_url: OpenSearch.
        cache_url: Valkey or Redis.
        cache_prefix: Namespace on that server, so that several projects can share it.
    """

    tables: Path
    search_url: str = field(repr=False)
    cache_url: str = field(repr=False)
    cache_prefix: str


@dataclass(frozen=True, slots=True)
class LedgerAddress:
    """Where what cannot be applied waits.

    Attributes:
        dsn: The source database.
        source: Name of the source.
        rows_max: Records of one view that may wait in one store.
    """

    dsn: str = field(repr=False)
    source: str
    rows_max: int


@dataclass(frozen=True, slots=True)
class PausedView:
    """A view that stands still in all its stores.

    Attributes:
        name: Its name.
        to: The stores.
        topics: Topics that it would read.
        fault: Why, and what lets it go on.
    """

    name: str
    to: frozenset[Store]
    topics: tuple[str, ...]
    fault: Fault


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job: one source, its views, and where everything is.

    Attributes:
        source: Name of the source, which prefixes its topics.
        plans: Its views.
        bootstrap: Kafka, `host:port[,host:port]`.
        source_dsn: The source database, where positions are published.
        slot: Replication slot of the source.
        home: Folder of tables, archive, checkpoints and status.
        cache_url: Valkey or Redis.
        search_url: OpenSearch.
        jars: What Spark needs beside its own jars.
        master: Spark's own word. Four threads on two cores, because a task that waits for a
            store needs no core.
        driver_memory_mib: Heap of the driver, which in local mode is also the executor.
        load_rows_min: A new view of a table with this many rows or more is loaded straight from
            the source; see `first_load`.
        rebuild_rows_min: Changes of an archive from which on a rebuild is done by the
            job's Spark; see `projections.versions.job_engine`.
        java_home: Java to run Spark with; None for the one on the path.
        conf: Further Spark settings, which win over ours.
        tasks: Tasks of one batch of cache and search; one costs least on two cores.
        mark: The driver's mark in the folder of the tables, which executors look for; none where
            they are the driver's own process.
        ready_file: Written once all queries run.
        code: Folders of modules that executors import: those that declare events.
        views: Views of one table or of events, as they are declared: the job binds them and their
            other versions anew whenever tables or versions change. Without them it keeps to its
            plans.
        derived: Versions of derived views, under their places, each after those that it reads.
        declared_derived: Those views as they are declared: the job looks for their versions at
            every boundary. Without them it keeps to `derived`.
        paused: Views that stand still.
        awaited: What views that came late wait for, by view and store: the least number of the
            snapshot of the whole table that the rows of each topic come with; see `backfill`.
        joining: Versions that were filled from the archive and that no query has had yet: the
            offset up to which each has all records of a partition.
        hiding: What of the source's columns does not leave it as it is.
        quarantine_rows_max: Records of one view that may wait in one store; beyond that it is no
            matter of single records, and the store's views stop.
        archive_days: Whole days for which the archive keeps records; None for good.
        archive_interval_s: Seconds between two writes to the archive.
        tenure: The right to write, which a driver has while it is the only one; None of those who
            only read.
        shares_home: Jobs of other sources use the same home folder.
    """

    source: str
    plans: tuple[ViewPlan, ...]
    bootstrap: str
    source_dsn: str = field(repr=False)
    slot: str
    home: Path
    cache_url: str = field(repr=False)
    search_url: str = field(repr=False)
    jars: tuple[Path, ...]
    master: str = "local[4]"
    driver_memory_mib: int = 640
    load_rows_min: int = 200_000
    rebuild_rows_min: int = 3_000_000
    java_home: Path | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    tasks: int = 1
    mark: str | None = None
    ready_file: Path | None = None
    code: tuple[Path, ...] = ()
    views: tuple[View, ...] = ()
    derived: tuple[DerivedView, ...] = ()
    declared_derived: tuple[DerivedView, ...] = ()
    paused: tuple[PausedView, ...] = ()
    awaited: Mapping[tuple[str, Store], Mapping[str, int]] = field(default_factory=dict)
    joining: Mapping[str, Offsets] = field(default_factory=dict)
    hiding: Hiding = NOTHING_HIDDEN
    quarantine_rows_max: int = 50_000
    archive_days: int | None = None
    archive_interval_s: float = 15.0
    tenure: Tenure | None = None
    shares_home: bool = False

    @classmethod
    def of_tables(cls, source: str, home: Path, jars: tuple[Path, ...], **settings: Any) -> JobSpec:
        """A session over tables alone: it has neither views nor servers."""
        return cls(source, (), "", "", "", home, "", "", jars, **settings)

    def writing(self) -> AbstractContextManager[None]:
        """Keeps other drivers out while something is written; see `Tenure.writing`."""
        return writing(self.tenure)

    @property
    def local(self) -> bool:
        """Whether driver and executors are one process."""
        return self.master == "local" or self.master.startswith("local[")

    @property
    def ledger(self) -> LedgerAddress:
        """Where what cannot be applied waits."""
        return LedgerAddress(self.source_dsn, self.source, self.quarantine_rows_max)

    @property
    def addresses(self) -> StoreAddresses:
        """Where the views are kept."""
        return StoreAddresses(
            self.home / "tables", self.search_url, self.cache_url, f"{self.source}:"
        )

    @property
    def archive(self) -> Path:
        """Folder of the archived change records."""
        return self.home / "archive" / self.source

    @property
    def functions(self) -> Path:
        """Folder of what is kept of the functions that views are made by."""
        return self.home / FUNCTIONS

    @property
    def run(self) -> Path:
        """Folder of what the job reports."""
        return run_folder(self.home, self.source if self.shares_home else None)

    @property
    def status_file(self) -> Path:
        """Where the job says how it is."""
        return self.run / "job.json"

    @property
    def derived_file(self) -> Path:
        """Where the job says how each derived view is kept."""
        return self.run / "derived.json"

    def checkpoint(self, query: str) -> Path:
        """Folder of a query's checkpoint."""
        return self.home / "checkpoints" / self.source / query

    def plans_in(self, store: Store) -> tuple[ViewPlan, ...]:
        """Views that live in a store."""
        read = {name for view in self.derived for name in view.inputs}
        return tuple(
            replace(plan.in_store(store), feeds=store is Store.TABLE and plan.view in read)
            for plan in self.plans
            if store in plan.to
        )

    @property
    def heartbeat_topic(self) -> str:
        """Topic of the source's heartbeat."""
        return HEARTBEAT_TABLE.topic(self.source)

    def topics_in(self, store: Store) -> frozenset[str]:
        """Topics that a store's query reads; those of paused views are read past."""
        read = {topic for plan in self.plans_in(store) for topic in plan.topics}
        if store is Store.TABLE:
            read.add(self.heartbeat_topic)  # its transactions show where the tables are whole
        return frozenset(read).union(*(view.topics for view in self.paused if store in view.to))


def run_folder(home: Path, source: str | None) -> Path:
    """Returns the folder of what a job reports.

    Args:
        home: The home folder.
        source: The job's source, if jobs of other sources use the same home folder.
    """
    return home / "run" if source is None else home / "run" / "sources" / source


def writing(tenure: Tenure | None) -> AbstractContextManager[None]:
    """Keeps other drivers out while something is written; without a tenure there are none."""
    return nullcontext() if tenure is None else tenure.writing()
