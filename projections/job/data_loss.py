"""Detects records that a query needs and its topics no longer have, as opposed to passing faults.

Spark ends such a query with one of many messages that name neither the wanted offset nor the
existing ones, and after a restart it fails the same way. This module therefore compares the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cdc.broker.topics import extent
from cdc.errors import CdcError
from projections.common.spark_checkpoint import committed
from projections.errors import RecordsLostError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cdc.broker.topics.extent import PartitionId
    from projections.planning.job_config import JobConfig

_HINT: Final = (
    "headwater source status reports whether capture is complete; if it is not, headwater source"
    " repair reads the tables again. Then remove the source's folder of checkpoints: its views are"
    " filled again. A longer topic_retention_hours prevents this"
)


def find(config: JobConfig, query: str) -> RecordsLostError | None:
    """Returns the error of a query whose next records are gone; None if they exist.

    Also None if the broker does not answer.
    """
    wanted = committed(config.checkpoint(query))
    try:
        ends = extent.bounds(config.bootstrap, {topic for topic, _ in wanted})
    except CdcError:
        return None
    return lost(query, wanted, ends)


def lost(
    query: str, wanted: Mapping[PartitionId, int], ends: Mapping[PartitionId, tuple[int, int]]
) -> RecordsLostError | None:
    """Compares the next offsets of a query with those that its topics have.

    Args:
        query: Its name.
        wanted: Its next offset, by topic and partition.
        ends: First offset, and offset after the last record, of every existing partition.
    """
    facts = [
        fact
        for partition, offset in sorted(wanted.items())
        if (fact := _fact(partition, offset, ends))
    ]
    if not facts:
        return None
    return RecordsLostError(
        f"query {query} needs records that are gone",
        detail="; ".join(facts),
        hint=_HINT,
    )


def find_recreated(
    query: str, wanted: Iterable[str], known: Mapping[str, str], now: Mapping[str, str]
) -> RecordsLostError | None:
    """Returns an error if a topic was deleted and recreated since a query began to read it.

    Its offsets may fit the new topic by chance; the records below them would then be skipped.

    Args:
        query: Its name.
        wanted: Topics that it reads.
        known: Kafka's own ids of the topics when the query began with them.
        now: Their present ids.
    """
    facts = [
        f"topic {topic} was recreated, {known[topic]} before, {now[topic]} now"
        for topic in sorted(wanted)
        if topic in known and known[topic] != now.get(topic, known[topic])
    ]
    if not facts:
        return None
    return RecordsLostError(
        f"query {query} has read a topic that was recreated since",
        detail="; ".join(facts),
        hint=_HINT,
    )


def _fact(
    topic_partition: PartitionId, wanted: int, ends: Mapping[PartitionId, tuple[int, int]]
) -> str | None:
    topic, partition = topic_partition
    where = f"topic {topic}, partition {partition}"
    if topic_partition not in ends:
        return f"{where} does not exist any more, wanted offset {wanted}"
    earliest, end = ends[topic_partition]
    if wanted < earliest:
        return f"{where}, wanted offset {wanted}, earliest {earliest}"
    if wanted > end:
        return f"{where} was recreated or truncated, wanted offset {wanted}, its end {end}"
    return None
