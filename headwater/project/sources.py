"""Checks of the sources of a project: each has settings of its own, and no state is shared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from cdc.topic_names import TopicNames
from foundation.suggestion import did_you_mean
from headwater.errors import UsageError
from headwater.project.settings.errors import ConflictingSettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headwater.project.settings import Settings, SparkSettings
    from projections.definition.registry import Declarations

_ADDRESS = {"service": "", "host": "", "hostaddr": "", "port": "5432", "dbname": ""}
_CORES = "spark.cores.max"
_TOPICS_OF_SOURCE = ("headwater.heartbeat", "headwater.schema_changes", "transaction")


def check(settings: Settings, declarations: Declarations) -> None:
    """Refuses sources that are not what the settings say, or cannot be kept apart.

    Raises:
        UsageError: No source is declared, or the settings name one that is not declared.
        ConflictingSettingsError: Two sources have one database or share a topic, or the job of one
            would take all cores of a cluster.
    """
    sources = list(declarations.sources)
    if not sources:
        raise UsageError(
            "the project declares no source",
            detail=str(settings.views_path),
            hint='declare one: source("shop", tables=["public.orders"])',
        )
    if unknown := sorted(settings.source.keys() - set(sources)):
        declared = "declared: " + ", ".join(sources)
        raise UsageError(
            f"the settings name a source {unknown[0]} that is not declared",
            hint=did_you_mean(unknown[0], sources, declared),
        )
    if len(sources) > 1:
        _refuse_one_database(settings, sources)
        _refuse_shared_topics(declarations)
        _refuse_unlimited_cores(settings.spark, len(sources))


def _refuse_one_database(settings: Settings, sources: Sequence[str]) -> None:
    """As far as the addresses show it; `up` and `doctor` compare the databases themselves."""
    known: dict[tuple[str, ...], str] = {}
    for name in sources:
        dsn = settings.for_source(name).dsn
        if dsn is None:
            continue  # a database of that name in the local Postgres
        try:
            found = conninfo_to_dict(dsn.get_secret_value())
        except ProgrammingError:
            continue  # reported where it is connected to
        address = tuple(str(found.get(part) or usual) for part, usual in _ADDRESS.items())
        other = known.setdefault(address, name)
        if other != name:
            raise one_database(other, name)


def one_database(first: str, second: str) -> ConflictingSettingsError:
    """Says that two sources are the same database."""
    return ConflictingSettingsError(
        f"sources {first} and {second} are the same database",
        hint=f"list its tables in one source: remove source {second}",
    )


def _refuse_shared_topics(declarations: Declarations) -> None:
    """Kafka takes `.` and `_` for one character where it compares the names of topics."""
    known: dict[str, tuple[str, str]] = {}
    for name, source in declarations.sources.items():
        names = TopicNames(name, source.escaped_topics)
        topics = [names.of(table) for table in source.tables]
        for topic in (*topics, *(f"{name}.{each}" for each in _TOPICS_OF_SOURCE)):
            other, same = known.setdefault(topic.replace(".", "_"), (name, topic))
            if other != name:
                raise ConflictingSettingsError(
                    f"sources {other} and {name} need topics that Kafka does not keep apart",
                    detail=f"{same} and {topic}",
                    hint=f"give source {name} another name",
                )


def _refuse_unlimited_cores(spark: SparkSettings, jobs: int) -> None:
    """A standalone master gives the first job all cores, unless the job limits itself."""
    if spark.master.startswith("spark://") and _CORES not in spark.conf:
        raise ConflictingSettingsError(
            "the job of the first source would take all cores of the Spark cluster",
            detail=f"{_CORES} is not set, and {jobs} sources have a job each",
            hint=f'[spark.conf] "{_CORES}": the cores of each job; the cluster needs {jobs} times'
            " as many",
        )
