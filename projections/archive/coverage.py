"""Coverage: whether an archive goes back to the first change of a topic, checked before a replay.

`completeness` proves that for each record, in the first pass of a replay. The check here is for
plans: it reads few columns, in about the time needed to count the records. It counts the rows of
all snapshots together. After a positive result a replay may therefore still detect a gap; a
negative result is always right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from cdc.broker.errors import BrokerError
from cdc.broker.topics import extent
from cdc.broker.topics import topics as broker_topics
from cdc.position import VERSION_LSN_BITS, ChangePosition
from cdc.postgres import escaped_topics
from projections.archive import completeness
from projections.archive.scan import ArchiveScan
from projections.archive.survey import TopicSurvey
from projections.archive.table import Archive
from projections.definition.views import MirrorView, tables_of
from projections.errors import ArchiveIncompleteError, RebuildRefusedError
from projections.planning import view_schemas
from projections.stores.delta.table_query import answer

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    import psycopg

    from cdc.snapshot.reads import Read
    from projections.common.offsets import Offsets
    from projections.definition.views import View
    from projections.planning.job_config import JobConfig

_FIRSTS: Final = """
SELECT topic, "partition", count(*) AS n, min("offset") AS first
  FROM archive WHERE topic IN ({topics}) GROUP BY topic, "partition"
"""
_LSN: Final = (1 << VERSION_LSN_BITS) - 1


@dataclass(frozen=True, slots=True)
class ArchiveCoverage:
    """What an archive has of some topics.

    Attributes:
        records: Number of their records.
        lacking: What is missing; None if it goes back to the first change.
    """

    records: int
    lacking: str | None = None


def of_view(
    connection: psycopg.Connection[Any],
    config: JobConfig,
    view: View,
    place: str,
    whole: Mapping[str, Read],
) -> ArchiveCoverage:
    """Returns what the archive has of a view's topics; see `reach`.

    Args:
        connection: To the source.
        config: The job's configuration.
        view: The view.
        place: The physical name of the active version.
        whole: The newest finished snapshot of each table, by topic.

    Raises:
        RebuildRefusedError: The archive cannot be read.
    """
    tables = {*tables_of(view)}
    if isinstance(view, MirrorView) and view_schemas.ready(connection):
        shape = view_schemas.read(connection, config.source).get(place)
        if shape is not None and view.table in shape.tables:
            tables.update(shape.tables)  # and the former names
    topics = frozenset(map(escaped_topics.names(connection, config.source).of, tables))
    try:
        had = archived(config, topics)
    except BrokerError:
        had = {}  # nothing proves that a partition without records ever had any
    return reach(config.archive, topics, had, whole)


def instead(view: View) -> str:
    """Returns what to do if the archive cannot fill a view."""
    past = isinstance(view, MirrorView) and view.history is not None
    loses = ", which has no state but the present ones" if past else " instead"
    return f"headwater view rebuild {view.name} --from-source reads its table{loses}"


def archived(config: JobConfig, topics: frozenset[str], version: int | None = None) -> Offsets:
    """Returns the archive's recorded end of each partition of some topics.

    Args:
        config: The job's configuration.
        topics: The topics.
        version: Version of the archive; None for the newest.

    Raises:
        BrokerError: The broker does not answer.
        SinkUnavailableError: The archive cannot be read.
    """
    if not DeltaTable.is_deltatable(str(config.archive)):
        return {}
    identities = broker_topics.identities(config.bootstrap, topics)
    partitions = extent.bounds(config.bootstrap, topics)
    known = {place: identities.get(place[0], "") for place in partitions}
    return Archive(config.archive).ends(known, version)


def reach(
    archive: Path, topics: Collection[str], archived: Offsets, whole: Mapping[str, Read]
) -> ArchiveCoverage:
    """Returns what an archive has of some topics; reads few columns and writes nothing.

    Args:
        archive: Folder of the archive.
        topics: The topics.
        archived: Its recorded end of each partition; see `Archive.ends`.
        whole: The newest finished snapshot of each table, by topic.

    Raises:
        RebuildRefusedError: The archive cannot be read.
    """
    if not DeltaTable.is_deltatable(str(archive)):
        return ArchiveCoverage(0, "the source has no archive yet")
    try:
        engine = QueryBuilder().register("archive", DeltaTable(str(archive)))
        rows = _rows(engine, _FIRSTS.format(topics=", ".join(map(_text, topics))))
        scan = ArchiveScan(archive, topics)
        lacking = None
        for topic in sorted(topics):
            firsts = {row["partition"]: row["first"] for row in rows if row["topic"] == topic}
            read = whole.get(topic)
            try:
                completeness.check(scan, topic, TopicSurvey(firsts=firsts), archived, {})
            except ArchiveIncompleteError as error:
                if read is None or not _has(engine, topic, firsts, read):
                    lacking = lacking or f"{error.message}: {error.detail}"
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise RebuildRefusedError(
            "the archive cannot be read", detail=type(error).__name__
        ) from None
    return ArchiveCoverage(sum(row["n"] for row in rows), lacking)


def _has(engine: QueryBuilder, topic: str, firsts: Mapping[int, int], read: Read) -> bool:
    """Returns whether the archive has a snapshot and all later changes; see `completeness`."""
    if read.read_lsn is None:
        return False
    version = ChangePosition.of_read(read.epoch, read.read_lsn).version
    epoch, lsn = version >> VERSION_LSN_BITS, version & _LSN
    first_records = " OR ".join(
        f'("partition" = {number} AND "offset" = {first})' for number, first in firsts.items()
    )
    older = (
        f"(coalesce(epoch, 0) < {epoch}"
        f" OR coalesce(epoch, 0) = {epoch} AND coalesce(lsn, 0) < {lsn})"
    )
    own = f"topic = {_text(topic)}"
    before = _rows(
        engine,
        f'SELECT DISTINCT "partition" FROM archive WHERE {own} AND ({first_records or "false"})'  # noqa: S608
        f" AND {older}",
    )
    (counted,) = _rows(
        engine,
        f"SELECT count(*) AS n FROM archive WHERE {own} AND op = 'r'"  # noqa: S608
        f" AND epoch = {epoch} AND lsn = {lsn}",
    )
    return {row["partition"] for row in before} == firsts.keys() and counted["n"] >= read.rows_read


def _rows(engine: QueryBuilder, query: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = answer(engine, query).read_all().to_pylist()
    return rows


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
