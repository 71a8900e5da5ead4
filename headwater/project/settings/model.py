"""The shape of `headwater.toml`; every default says why it is what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, SecretStr

Port = Annotated[int, Field(ge=1024, le=65535)]
Mebibytes = Annotated[int, Field(ge=64, le=1_048_576)]

_EXECUTOR_MIN_MIB = 450
"""Spark refuses an executor with less."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ProjectSettings(_Section):
    """What is built here.

    Attributes:
        name: Namespace of the project in shared stores, such as the keys of one cache.
        views: Module that declares sources and views, relative to the settings file.
    """

    name: str = Field(default="headwater", pattern=r"^[a-z][a-z0-9_-]{0,38}$")
    views: Path = Path("views.py")


class SourceSettings(_Section):
    """How one declared source is reached and captured.

    Attributes:
        dsn: Where the database is; left out, a local Postgres is started for it. Its role sets
            capture up and keeps its state.
        capture_dsn: The same database with the role that captures, so that it need be no more than
            `headwater source role` prints; left out, the role of `dsn` captures.
        connector_password: Where a Kafka Connect that runs elsewhere finds the password: a
            reference to one of its providers, such as `${file:/etc/connect/shop.properties:shop}`.
            Left out, the password lies in its configuration topic in clear. A Connect that is
            started here needs none: it reads the password from a file in the home folder.
        salt: Secret that columns declared as hashed are hashed with, 16 characters or more. Whoever
            has it can try values; another one makes other hashes of everything.
        connector_salt: Where a Kafka Connect that runs elsewhere finds the salt, as a reference.
        epoch: Incarnation of the source; raised when its slot was made anew on purpose.
        heartbeat_interval_ms: An idle database frees its log this often. A second keeps
            `applied_through` close to now at the cost of one small transaction.
        topic_partitions: Partitions of each table's topic; one keeps a micro-batch to one task,
            which two cores like best. Raise it before a topic exists.
        topic_retention_hours: How long Kafka keeps changes; for how long the archive keeps them is
            a setting of its own.
        snapshot_workers: Ranges of tables that are read at once. Two keep two cores busy: each
            costs one in Postgres, and one process writes at most some 250,000 rows a second.
        wal_disk_bytes: Size of the disk that holds the source's log, for `source slot` to forecast
            when it is full; left out, it is looked at where the server is on this machine.
        retention: Tables whose topic keeps them otherwise, `"public.orders" = "3 days, 50 GB"`; the
            size is a partition's. `"latest"` keeps the latest record of every key for good.
    """

    dsn: SecretStr | None = None
    capture_dsn: SecretStr | None = None
    connector_password: str | None = Field(default=None, pattern=r"^\$\{[^}]+\}$")
    salt: SecretStr | None = None
    connector_salt: str | None = Field(default=None, pattern=r"^\$\{[^}]+\}$")
    epoch: int = Field(default=1, ge=1, le=127)
    heartbeat_interval_ms: int = Field(default=1_000, ge=100, le=3_600_000)
    topic_partitions: int = Field(default=1, ge=1, le=1_000)
    topic_retention_hours: int = Field(default=168, ge=1, le=87_600)
    snapshot_workers: int = Field(default=2, ge=1, le=64)
    wal_disk_bytes: int | None = Field(default=None, ge=1)
    retention: dict[str, str] = Field(default_factory=dict)


class ServiceSettings(_Section):
    """One server: either it runs already, at `address`, or it is started here.

    Attributes:
        address: Where it runs already (`host:port` for Kafka, a URL for the others).
        port: Port to start it on; left out, a free one is chosen and remembered.
        memory_mib: Memory cap: heap of a Java server, data of the cache, shared buffers of
            Postgres. Left out, what was measured to carry the demo on two cores.
    """

    address: SecretStr | None = None
    port: Port | None = None
    memory_mib: Mebibytes | None = None


class ServicesSettings(_Section):
    """The five servers beside Spark."""

    postgres: ServiceSettings = ServiceSettings()
    kafka: ServiceSettings = ServiceSettings()
    connect: ServiceSettings = ServiceSettings()
    search: ServiceSettings = ServiceSettings()
    cache: ServiceSettings = ServiceSettings()


class SparkSettings(_Section):
    """Where the projections run.

    Attributes:
        master: Spark's own word: `local[4]`, `spark://…`, `yarn`, `k8s://…`. Four threads on two
            cores, because a task that waits for a store needs no core.
        workers: Worker processes of a standalone cluster that is started here, beside its master,
            for the job to run on; with none the job runs where `master` says.
        worker_cores: Tasks that each of them takes at once.
        worker_memory_mib: Heap of the executor that each of them runs; Python comes on top.
        tasks: Tasks of one batch of cache and of search, each with some of the partitions of the
            topics. One costs least on two cores; a cluster wants as many as its cores.
        driver_memory_mib: Heap of the driver, which in local mode is also the executor.
        load_rows_min: Rows of a table from which on a new view of it gets its Delta table straight
            from the source; of fewer the stream makes short work, too.
        rebuild_rows_min: Changes in the archive from which on a rebuild of a Delta table is done
            by the job's Spark, on all its cores; of fewer the command makes short work, too.
        conf: Further Spark settings, passed on as they are.
    """

    master: str = "local[4]"
    workers: int = Field(default=0, ge=0, le=64)
    worker_cores: int = Field(default=2, ge=1, le=1_024)
    worker_memory_mib: Annotated[int, Field(ge=_EXECUTOR_MIN_MIB, le=1_048_576)] = 640
    tasks: int = Field(default=1, ge=1, le=1_000)
    driver_memory_mib: Mebibytes = 1_024
    load_rows_min: int = Field(default=200_000, ge=1)
    rebuild_rows_min: int = Field(default=3_000_000, ge=1)
    conf: dict[str, str] = Field(default_factory=dict)


class QuarantineSettings(_Section):
    """Records that wait because they cannot be read or applied.

    Attributes:
        rows_max: Records of one view that may wait in one store; with more it is no matter of
            single records, and the job stops. While a large table is read for the first time,
            each change that lacks an unchanged value waits for its row.
    """

    rows_max: int = Field(default=50_000, ge=1, le=10_000_000)


class ArchiveSettings(_Section):
    """The archive of change records, which every view can be made from again.

    Attributes:
        keep_days: Whole days for which a record is kept, counted from when it came; left out, for
            good. What is removed cannot be got back from anywhere.
        interval_s: Seconds between two writes to the archive. A rebuild, and time travel within it,
            reach this much nearer to now with less; each write costs about 0.2 s of a core.
    """

    keep_days: int | None = Field(default=None, ge=1, le=36_500)
    interval_s: float = Field(default=15.0, ge=0.5, le=3_600)


class VerifySettings(_Section):
    """Verification of the views in the background.

    Attributes:
        enabled: Whether views are verified all the time, while the capture is watched.
        budget: Share of the time that it may work. A twentieth leaves two cores to the rest, and
            comes round a million rows in some minutes.
    """

    enabled: bool = True
    budget: float = Field(default=0.05, gt=0, le=1)


class AlertSettings(_Section):
    """Alerts.

    Attributes:
        secrets: What webhooks are signed with, by the name that they call it; a variable of the
            environment keeps one out of the file: `secrets.fraud = "${FRAUD_SECRET}"`.
    """

    secrets: dict[str, SecretStr] = Field(default_factory=dict)


class EventStoreSettings(_Section):
    """The event store, as `headwater db` and `headwater events` use it.

    Attributes:
        dsn: Where it is; left out, in the project's source.
        tenant: Whose streams the commands work on where `--tenant` is left out.
        modules: Python modules, such as `shop.orders`, that declare event types and deciders; they
            are imported with the settings file's folder first on the path.
        master_key_file: File of the master keys that open personal fields, relative to the settings
            file. Left out, personal fields stay sealed.
        keys_dsn: Where the keys of subjects are, if not beside the events.
    """

    dsn: SecretStr | None = None
    tenant: str = "default"
    modules: tuple[str, ...] = ()
    master_key_file: Path | None = None
    keys_dsn: SecretStr | None = None


class Settings(_Section):
    """All settings of a project.

    Attributes:
        root: Folder of the settings file.
        home: Folder of all state: data of local servers, logs, Delta tables, checkpoints.
        java_home: `JAVA_HOME` of the environment, if set.
        disk_free_min_mib: Below this much free disk nothing is started.
    """

    root: Path
    home: Path
    java_home: Path | None = None
    disk_free_min_mib: int = Field(default=2_048, ge=0)
    project: ProjectSettings = ProjectSettings()
    source: dict[str, SourceSettings] = Field(default_factory=dict)
    services: ServicesSettings = ServicesSettings()
    spark: SparkSettings = SparkSettings()
    eventstore: EventStoreSettings = EventStoreSettings()
    quarantine: QuarantineSettings = QuarantineSettings()
    archive: ArchiveSettings = ArchiveSettings()
    verify: VerifySettings = VerifySettings()
    alerts: AlertSettings = AlertSettings()

    @property
    def views_path(self) -> Path:
        """The module of declarations."""
        return self.root / self.project.views

    def for_source(self, name: str) -> SourceSettings:
        """Returns the settings of a declared source; defaults where the file has none."""
        return self.source.get(name, SourceSettings())
