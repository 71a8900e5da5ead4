"""JobConfig: the configuration of a job, before any view is bound."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cdc.capture import HEARTBEAT_TABLE
from cdc.column_rule import NOTHING_HIDDEN

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cdc.column_rule import Hiding


FUNCTIONS: Final = "functions"
"""Folder in the home; see `projections.versions.function_store`."""


@dataclass(frozen=True, slots=True)
class StoreAddresses:
    """The addresses of the stores.

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
    """The address of the quarantine.

    Attributes:
        dsn: The source database.
        source: Name of the source.
        rows_max: Most quarantined records of one view in one store.
    """

    dsn: str = field(repr=False)
    source: str
    rows_max: int


@dataclass(frozen=True, slots=True)
class JobConfig:
    """The configuration of a job: plain values that can be sent to other processes.

    Attributes:
        source: Name of the source, which prefixes its topics.
        bootstrap: Kafka, `host:port[,host:port]`.
        source_dsn: The source database, where positions are published.
        slot: Replication slot of the source.
        home: Folder of tables, archive, checkpoints and status.
        cache_url: Valkey or Redis.
        search_url: OpenSearch.
        jars: What Spark needs beside its own jars.
        master: Spark's `master`. Four threads on two cores, because a task that waits for a
            store needs no core.
        driver_memory_mib: Heap of the driver, which in local mode is also the executor.
        load_rows_min: A new view of a table with at least this many rows is loaded directly from
            the source; see `projections.job.initial_load`.
        load_connections: Most connections to the source that the tasks of a load or of a comparison
            open.
        rebuild_rows_min: The job's Spark performs rebuilds of at least this many archived changes,
            see `projections.versions.job_engine`, and compares tables of at least this many rows.
        java_home: Java for Spark; None for the one on the path.
        conf: Additional Spark settings, which override this program's.
        tasks: Tasks of one batch of cache and search; one is cheapest on two cores.
        ready_file: Written once all queries run.
        code: Folders of modules that executors import: those that declare events.
        hiding: Rules for excluded, hashed and masked columns of the source.
        quarantine_rows_max: Most quarantined records of one view in one store; beyond that, the
            cause is not single records, and the view is paused in that store.
        archive_days: Whole days for which the archive keeps records; None for no limit.
        archive_interval_s: Seconds between two writes to the archive.
        shares_home: Jobs of other sources use the same home folder.
    """

    source: str
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
    load_connections: int = 2
    rebuild_rows_min: int = 3_000_000
    java_home: Path | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    tasks: int = 1
    ready_file: Path | None = None
    code: tuple[Path, ...] = ()
    hiding: Hiding = NOTHING_HIDDEN
    quarantine_rows_max: int = 50_000
    archive_days: int | None = None
    archive_interval_s: float = 15.0
    shares_home: bool = False

    @classmethod
    def of_tables(
        cls, source: str, home: Path, jars: tuple[Path, ...], **settings: Any
    ) -> JobConfig:
        """Returns the configuration of a session over tables only, without servers."""
        return cls(source, "", "", "", home, "", "", jars, **settings)

    @property
    def local(self) -> bool:
        """Returns whether driver and executors are one process."""
        return self.master == "local" or self.master.startswith("local[")

    @property
    def ledger(self) -> LedgerAddress:
        """Returns the address of the quarantine."""
        return LedgerAddress(self.source_dsn, self.source, self.quarantine_rows_max)

    @property
    def addresses(self) -> StoreAddresses:
        """Returns the addresses of the stores."""
        return StoreAddresses(
            self.home / "tables", self.search_url, self.cache_url, f"{self.source}:"
        )

    @property
    def archive(self) -> Path:
        """Returns the folder of the archive."""
        return self.home / "archive" / self.source

    @property
    def functions(self) -> Path:
        """Returns the folder of stored functions."""
        return self.home / FUNCTIONS

    @property
    def run(self) -> Path:
        """Returns the folder of the job's reports."""
        return run_folder(self.home, self.source if self.shares_home else None)

    @property
    def status_file(self) -> Path:
        """Returns the file of the job's status."""
        return self.run / "job.json"

    @property
    def derived_file(self) -> Path:
        """Returns the file of the job's report on derived views."""
        return self.run / "derived.json"

    def derived_file_of(self, source: str) -> Path:
        """Returns that file for the job of another source in the same home folder."""
        return run_folder(self.home, source) / self.derived_file.name

    def checkpoint(self, query: str) -> Path:
        """Returns the folder of a query's checkpoint."""
        return self.home / "checkpoints" / self.source / query

    @property
    def heartbeat_topic(self) -> str:
        """Returns the topic of the source's heartbeat."""
        return HEARTBEAT_TABLE.topic(self.source)


def run_folder(home: Path, source: str | None) -> Path:
    """Returns the folder of a job's reports.

    Args:
        home: The home folder.
        source: The job's source, if jobs of other sources use the same home folder.
    """
    return home / "run" if source is None else home / "run" / "sources" / source
