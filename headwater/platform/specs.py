"""From settings to what runs: the servers, the job beside them, and who reaches whom where."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit, urlunsplit

from cdc.capture import CaptureSpec
from cdc.postgres.check import Check, CheckState
from cdc.retention import TopicRetention
from cdc.table import TableName
from headwater.runtime.java import jars
from headwater.runtime.java.java import find_java
from headwater.runtime.servers.connect import secrets_folder
from headwater.runtime.servers.opensearch import HEAP_MB as SEARCH_HEAP_MIB
from headwater.runtime.spec import (
    CommandSpec,
    External,
    RuntimeSpec,
    ServiceName,
    SparkCluster,
    Spawned,
)
from projections.definition.alert import Webhook
from projections.definition.views import OUTBOX, EventsView, Store
from projections.planning.job_config import JobConfig, run_folder
from projections.planning.job_spec import JobSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from headwater.project.project import Project
    from headwater.project.settings import ServiceSettings, SourceSettings, SparkSettings
    from headwater.runtime import Endpoints
    from projections.alerting.watcher import AlertSpec
    from projections.definition.views import DerivedView, View
    from projections.planning.view_plan import ViewPlan

JOB = "projections"
"""Name of the Spark job among the supervised programs."""

WATCH = "capture"
"""Name of the supervisor of the capture among the supervised programs."""

_EXITS_FOR_GOOD = (2, 3, 4)
"""Usage, unhealthy for a reason that a restart does not cure, a program missing."""

_MIB = 1024 * 1024
_HOUR_MS = 3_600_000
_INDEXES_AT_FIRST = 100
_INDEXES_PER_STEP = 150
_HEAP_STEP_MIB = 256
"""Heap of OpenSearch: with 512 MiB and 400 indexes, it collects garbage most of the time."""

_COMMAND_START_S = 300.0
_TABLE_START_S = 2.0
"""What a table may add to that: its snapshot, its index in search and its files. A job that is
ended while it makes these makes the rest after its restart."""


def command_name(project: Project, command: str) -> str:
    """Returns the name of the job or the watch of a project's source among supervised programs."""
    return f"{command}.{project.source.name}" if project.shares_home else command


def ready_file(project: Project, command: str) -> Path:
    """Written by a supervised program of ours once it does its work."""
    return project.home.run / f"{command_name(project, command)}.ready"


def job_folder(project: Project) -> Path:
    """Where the job of a project's source reports how it is."""
    source = project.source.name if project.shares_home else None
    return run_folder(project.settings.home, source)


def applied_file(project: Project) -> Path:
    """Written once the source is captured as declared, which the job waits for."""
    return job_folder(project) / "applied"


def runtime_spec(project: Project, config: Path, *, lifeline: bool) -> RuntimeSpec:
    """Says what the supervisor of the whole project runs.

    Args:
        project: The project.
        config: Its settings file, which the job opens again.
        lifeline: Stop everything when the caller ends, however it ends.
    """
    settings = project.settings
    services = settings.services
    sources_are_external = all(
        settings.for_source(name).dsn is not None for name in project.sources
    )
    wanted: dict[ServiceName, External | Spawned] = {
        ServiceName.KAFKA: _service(services.kafka),
        ServiceName.CONNECT: _service(services.connect),
        ServiceName.SEARCH: _service(services.search, _search_heap_mib(project)),
        ServiceName.CACHE: _service(services.cache),
    }
    if not sources_are_external:
        wanted[ServiceName.POSTGRES] = _service(services.postgres)
    return RuntimeSpec(
        home=settings.home,
        services=wanted,
        commands=tuple(
            _command(part, config, *command)
            for part in project.parts
            for command in ((JOB, "run"), (WATCH, "source", "watch"))
        ),
        spark=_cluster(project),
        java_home=str(settings.java_home) if settings.java_home else None,
        disk_free_min_bytes=settings.disk_free_min_mib * _MIB,
        lifeline=lifeline,
    )


def capture_spec(project: Project, dsn: str, endpoints: Endpoints) -> CaptureSpec:
    """Says how the project's source is captured.

    Args:
        project: The project.
        dsn: Where the source is.
        endpoints: Where the servers answer.
    """
    source = project.source
    settings = project.settings.for_source(source.name)
    connect_is_external = project.settings.services.connect.address is not None
    return CaptureSpec(
        name=source.name,
        dsn=dsn,
        tables=source.tables,
        outbox=OUTBOX if source.eventstore else None,
        connect_url=endpoints.connect_url,
        kafka_bootstrap=endpoints.kafka_bootstrap,
        epoch=settings.epoch,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
        guard_interval_s=settings.guard_interval_s,
        topic_partitions=settings.topic_partitions,
        topic_retention_ms=settings.topic_retention_hours * _HOUR_MS,
        snapshot_workers=settings.snapshot_workers,
        retention=_retention(settings),
        capture_dsn=settings.capture_dsn.get_secret_value() if settings.capture_dsn else None,
        connector_password=settings.connector_password,
        columns=source.columns,
        insert_only=source.insert_only,
        escaped_topics=source.escaped_topics,
        salt=settings.salt.get_secret_value() if settings.salt else None,
        connector_salt=settings.connector_salt,
        secrets_folder=None if connect_is_external else secrets_folder(project.home),
    )


def job_config(project: Project, dsn: str, endpoints: Endpoints) -> JobConfig:
    """Returns what the Spark job of a project's source is configured with.

    Args:
        project: The project.
        dsn: Where the source is.
        endpoints: Where the servers answer.
    """
    settings = project.settings
    capture = capture_spec(project, dsn, endpoints)
    return JobConfig(
        source=project.source.name,
        bootstrap=endpoints.kafka_bootstrap,
        source_dsn=dsn,
        slot=capture.slot,
        home=settings.home,
        cache_url=endpoints.cache_url,
        search_url=endpoints.search_url,
        jars=tuple(jars.ensure("spark")),
        master=endpoints.spark_url or settings.spark.master,
        tasks=settings.spark.tasks,
        driver_memory_mib=settings.spark.driver_memory_mib,
        load_rows_min=settings.spark.load_rows_min,
        load_connections=settings.spark.load_connections,
        rebuild_rows_min=settings.spark.rebuild_rows_min,
        java_home=java_home(project),
        conf=_spark_conf(settings.spark),
        ready_file=ready_file(project, JOB),
        code=_code(project),
        quarantine_rows_max=settings.quarantine.rows_max,
        archive_days=settings.archive.keep_days,
        archive_interval_s=settings.archive.interval_s,
        hiding=capture.hiding,
        shares_home=project.shares_home,
    )


def job_spec(
    project: Project, plans: tuple[ViewPlan, ...], dsn: str, endpoints: Endpoints
) -> JobSpec:
    """Returns what the Spark job and a verification work on.

    Args:
        project: The project.
        plans: Its views, bound to the source's tables.
        dsn: Where the source is.
        endpoints: Where the servers answer.
    """
    derived = tuple(project.declarations.derived.values())
    return JobSpec(
        job_config(project, dsn, endpoints),
        plans=plans,
        views=tuple(_views(project)),
        derived=derived,
        declared_derived=derived,
        cross_reads=project.cross_reads,
    )


def alert_spec(
    project: Project,
    dsn: str,
    endpoints: Endpoints,
    bound: Callable[[], tuple[ViewPlan, ...]],
    shown: Callable[[], Mapping[str, DerivedView]],
) -> AlertSpec:
    """Describes the alerts and their channels.

    Args:
        project: The project.
        dsn: Where the source is.
        endpoints: Where the servers answer.
        bound: Binds the views to the source's tables.
        shown: Returns derived views as readers see them, by their names.
    """
    from projections.alerting.watcher import AlertSpec  # noqa: PLC0415  # loads the tables' engine

    declared = project.declarations

    def keys() -> dict[str, tuple[str, ...]]:
        made = {name: view.keys for name, view in shown().items()}
        return made | {plan.view: plan.keys for plan in bound()}

    return AlertSpec(
        source=project.source.name,
        dsn=dsn,
        tables=project.settings.home / "tables",
        bootstrap=endpoints.kafka_bootstrap,
        alerts=tuple(declared.alerts.values()),
        keys=keys,
        secrets=_secrets(project),
    )


def unsigned(project: Project) -> list[Check]:
    """Returns warnings about webhooks without a signing secret, which cannot send."""
    secrets = _secrets(project)
    return [
        Check(
            f"alert {alert.name}",
            CheckState.WARN,
            f"{channel.name} has no secret to sign with",
            hint=f"in the settings: alerts.secrets.{channel.secret}",
        )
        for alert in project.declarations.alerts.values()
        for channel in alert.to
        if isinstance(channel, Webhook) and channel.secret not in secrets
    ]


def _secrets(project: Project) -> dict[str, str]:
    """What webhooks are signed with; an empty one, such as of a variable unset, is none."""
    found = project.settings.alerts.secrets.items()
    return {name: value for name, secret in found if (value := secret.get_secret_value())}


def _retention(settings: SourceSettings) -> dict[TableName, TopicRetention]:
    usual_ms = settings.topic_retention_hours * _HOUR_MS
    return {
        TableName.parse(table): TopicRetention.parse(text, usual_ms)
        for table, text in settings.retention.items()
    }


def java_home(project: Project) -> Path:
    """Returns the home of the Java that everything of the project runs on."""
    wanted = project.settings.java_home
    return find_java(str(wanted) if wanted else None).home


def with_database(dsn: str, database: str) -> str:
    """Returns a DSN of the same server that names another database."""
    parts = urlsplit(dsn)
    return urlunsplit(parts._replace(path="/" + quote(database, safe="")))


def _code(project: Project) -> tuple[Path, ...]:
    """Folders of the modules that declare a project's events; none if no view needs them."""
    if not any(isinstance(view, EventsView) for view in _views(project)):
        return ()
    settings = project.settings
    return settings.root.resolve(), settings.views_path.resolve().parent


def _views(project: Project) -> list[View]:
    return list(project.declarations.views.values())


def _service(settings: ServiceSettings, memory_mib: int | None = None) -> External | Spawned:
    if settings.address is not None:
        return External(settings.address.get_secret_value())
    return Spawned(settings.port, settings.memory_mib or memory_mib)


def _search_heap_mib(project: Project) -> int | None:
    """The heap that a source of many views needs; None for the default, which suits most.

    OpenSearch keeps more than a mebibyte for each index. The steps are wide, because a server that
    runs has to be stopped before it gets another heap.
    """
    indexes = sum(Store.SEARCH in view.to for part in project.parts for view in _views(part))
    steps = -(-max(0, indexes - _INDEXES_AT_FIRST) // _INDEXES_PER_STEP)
    return SEARCH_HEAP_MIB + steps * _HEAP_STEP_MIB if steps else None


def _cluster(project: Project) -> SparkCluster | None:
    """The workers to start, each with capacity for an executor of every source's job."""
    spark, jobs = project.settings.spark, len(project.sources)
    if not spark.workers:
        return None
    return SparkCluster(spark.workers, spark.worker_cores * jobs, spark.worker_memory_mib * jobs)


def _spark_conf(settings: SparkSettings) -> dict[str, str]:
    """Spark's settings as far as they follow from ours; those of the file win."""
    if not settings.workers:
        return settings.conf
    ours = {
        # one executor of each job on each worker: left to itself, the first job takes all cores
        "spark.executor.cores": str(settings.worker_cores),
        "spark.cores.max": str(settings.worker_cores * settings.workers),
        "spark.executor.memory": f"{settings.worker_memory_mib}m",
    }
    return ours | settings.conf


def _command(project: Project, config: Path, name: str, *words: str) -> CommandSpec:
    place = ["--config", str(config.resolve()), "--home", str(project.settings.home)]
    if project.profile is not None:
        place += ["--profile", project.profile]
    if project.shares_home:
        place += ["--source", project.source.name]
    cluster = _cluster(project)
    executors = cluster.worker_names if name == JOB and cluster else ()
    return CommandSpec(
        name=command_name(project, name),
        argv=(sys.executable, "-m", "headwater", *words, *place),
        # after the servers: on two cores a Spark that starts beside them doubles their start
        depends_on=(ServiceName.CONNECT, ServiceName.SEARCH, ServiceName.CACHE, *executors),
        ready_file=ready_file(project, name),
        start_timeout_s=_COMMAND_START_S + _TABLE_START_S * len(project.source.tables),
        final_exit_codes=_EXITS_FOR_GOOD,
    )
