"""The model of `headwater.toml`; the documentation of each default gives its reason."""

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
    """The project.

    Attributes:
        name: Namespace of the project in shared stores, such as the keys of one cache.
        views: Module that declares sources and views, relative to the settings file.
    """

    name: str = Field(default="headwater", pattern=r"^[a-z][a-z0-9_-]{0,38}$")
    views: Path = Path("views.py")


class SourceSettings(_Section):
    """Connection and capture of one declared source.

    Attributes:
        dsn: The database; default: a local Postgres that Headwater starts. Its role sets up the
            capture and stores its state.
        capture_dsn: The same database with a role for the capture, which needs only the privileges
            that `headwater source role` prints. Default: the role of `dsn`.
        connector_password: Where an external Kafka Connect finds the password: a reference to one
            of its config providers, such as `${file:/etc/connect/shop.properties:shop}`. Without
            it, the password is stored in clear text in Connect's configuration topic. A Connect
            that Headwater starts does not need it: it reads the password from a file in the home
            folder.
        salt: Salt for columns declared as hashed, at least 16 characters. Keep it secret: with the
            salt, guessed values can be confirmed. A different salt changes all hashes.
        connector_salt: Where an external Kafka Connect finds the salt: a reference to a config
            provider.
        epoch: Incarnation of the source; raised when its slot is recreated on purpose.
        heartbeat_interval_ms: Interval of heartbeats, with which an idle database releases its log.
            One second keeps `applied_through` close to the present, at the cost of one small
            transaction.
        guard_interval_s: Interval at which the capture is checked for topics that Kafka lost or
            recreated, and for heartbeats that went missing. A loss is noticed within it.
        topic_partitions: Partitions of each table's topic. With one, a micro-batch is one task,
            which is best on two cores. Raise it before the topics exist.
        topic_retention_hours: Retention of changes in Kafka. The archive has its own setting.
        snapshot_workers: Number of key ranges that are snapshotted at the same time. Two occupy two
            cores: each needs a core in Postgres, and one process writes at most some 250,000 rows a
            second.
        wal_disk_bytes: Size of the disk with the source's log, from which `source slot` forecasts
            when it is full. Default: measured, if the server runs on this machine.
        retention: Retention of single tables, `"public.orders" = "3 days, 50 GB"`; a size is per
            partition. `"latest"` keeps the latest record of every key permanently.
    """

    dsn: SecretStr | None = None
    capture_dsn: SecretStr | None = None
    connector_password: str | None = Field(default=None, pattern=r"^\$\{[^}]+\}$")
    salt: SecretStr | None = None
    connector_salt: str | None = Field(default=None, pattern=r"^\$\{[^}]+\}$")
    epoch: int = Field(default=1, ge=1, le=127)
    heartbeat_interval_ms: int = Field(default=1_000, ge=100, le=3_600_000)
    guard_interval_s: float = Field(default=10.0, ge=0.5, le=3_600)
    topic_partitions: int = Field(default=1, ge=1, le=1_000)
    topic_retention_hours: int = Field(default=168, ge=1, le=87_600)
    snapshot_workers: int = Field(default=2, ge=1, le=64)
    wal_disk_bytes: int | None = Field(default=None, ge=1)
    retention: dict[str, str] = Field(default_factory=dict)


class ServiceSettings(_Section):
    """One server: either external, at `address`, or started by Headwater.

    Attributes:
        address: Address of an external server (`host:port` for Kafka, a URL for the others).
        port: Port of a server that Headwater starts. Default: a free port, which is remembered.
        memory_mib: Memory limit: heap of a Java server, data of the cache, shared buffers of
            Postgres. The default suffices for the demo on two cores.
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
    """Where and how the job runs.

    Attributes:
        master: Spark's master: `local[4]`, `spark://…`, `yarn`, `k8s://…`. Four threads on two
            cores, because a task that waits for a store needs no core.
        workers: Worker processes of a standalone cluster that Headwater starts, with a master, for
            the job. With none, the job runs where `master` says. Each worker runs an executor of
            the job, in a project of several sources one of each job.
        worker_cores: Concurrent tasks of each executor.
        worker_memory_mib: Heap of each executor; Python needs memory in addition.
        tasks: Tasks of one batch of the cache and of search, each with some of the topics'
            partitions. One costs least on two cores; on a cluster use as many as it has cores.
        driver_memory_mib: Heap of the driver, which in local mode is also the executor.
        load_rows_min: From this number of rows on, a new view's Delta table is loaded directly from
            the source. For smaller tables the stream is fast enough.
        load_connections: Most connections to the source that the tasks of such a load, or of a
            verification, open. Each reads its part of the table, and the job leaves one task slot
            free.
        rebuild_rows_min: From this number of changes in the archive on, the job's Spark rebuilds a
            view, on all its cores; from this number of rows on, it compares a table with the source
            for a verification, and the tables of two versions. For fewer the command is fast
            enough.
        conf: Further Spark settings, passed on unchanged.
    """

    master: str = "local[4]"
    workers: int = Field(default=0, ge=0, le=64)
    worker_cores: int = Field(default=2, ge=1, le=1_024)
    worker_memory_mib: Annotated[int, Field(ge=_EXECUTOR_MIN_MIB, le=1_048_576)] = 640
    tasks: int = Field(default=1, ge=1, le=1_000)
    driver_memory_mib: Mebibytes = 1_024
    load_rows_min: int = Field(default=200_000, ge=1)
    load_connections: int = Field(default=2, ge=1, le=64)
    rebuild_rows_min: int = Field(default=3_000_000, ge=1)
    conf: dict[str, str] = Field(default_factory=dict)


class QuarantineSettings(_Section):
    """Quarantined records: those that cannot be read or applied.

    Attributes:
        rows_max: Maximum number of quarantined records of one view in one store. More indicate a
            general fault, and the job stops. During the first snapshot of a large table, each
            change that lacks an unchanged value is quarantined until its row arrives.
    """

    rows_max: int = Field(default=50_000, ge=1, le=10_000_000)


class ArchiveSettings(_Section):
    """The archive of change records, from which every view can be rebuilt.

    Attributes:
        keep_days: Number of whole days for which a record is kept after its arrival. Default:
            permanently. Removed records cannot be restored.
        interval_s: Seconds between two writes to the archive. A shorter interval brings rebuilds
            and time travel closer to the present; each write costs about 0.2 s of a core.
    """

    keep_days: int | None = Field(default=None, ge=1, le=36_500)
    interval_s: float = Field(default=15.0, ge=0.5, le=3_600)


class VerifySettings(_Section):
    """Verification of the views in the background.

    Attributes:
        enabled: Verify views continuously in the background, beside the capture.
        budget: Share of the time that verification may use. A twentieth leaves two cores to other
            work, and verifies a million rows within some minutes.
    """

    enabled: bool = True
    budget: float = Field(default=0.05, gt=0, le=1)


class AlertSettings(_Section):
    """Alerts.

    Attributes:
        secrets: Signing secrets of webhooks, by the names that the declarations use. Use an
            environment variable to keep a secret out of the file: `secrets.fraud =
            "${FRAUD_SECRET}"`.
    """

    secrets: dict[str, SecretStr] = Field(default_factory=dict)


class EventStoreSettings(_Section):
    """The event store, as `headwater db` and `headwater events` use it.

    Attributes:
        dsn: The event store's database. Default: the project's source.
        tenant: Tenant of the commands without `--tenant`.
        modules: Python modules that declare event types, deciders and reactors, such as
            `shop.orders`. They are imported with the settings file's folder first on the path.
        master_key_file: File with the master keys that decrypt personal fields, relative to the
            settings file. Without it, personal fields stay encrypted.
        keys_dsn: Database of the subject keys. Default: the database of the events.
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
        home: Home folder: data of local servers, logs, Delta tables, checkpoints.
        java_home: `JAVA_HOME` of the environment, if set.
        disk_free_min_mib: Minimum free disk space; with less, nothing is started.
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
