"""Records that a query wants and its topics have no more: told apart from what may pass by itself.

Spark ends such a query with one of many messages that name neither what it wanted nor what there
is; started again it ends the same way. So the two sides are compared here instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cdc.broker.topics import extent
from cdc.errors import CdcError
from projections.common.spark_checkpoint import committed
from projections.errors import RecordsLostError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cdc.broker.topics.extent import Place
    from projections.planning.job_config import JobConfig

_HINT: Final = (
    "headwater source status says whether capture is whole; if it is not, headwater source repair"
    " has the tables read anew. Then remove the source's folder of checkpoints: its views are"
    " filled anew. A longer topic_retention_hours keeps it from happening again"
)


def find(config: JobConfig, query: str) -> RecordsLostError | None:
    """Returns the error of a query whose next records are gone; None if they are there.

    A broker that does not answer tells nothing: None as well.
    """
    wanted = committed(config.checkpoint(query))
    try:
        ends = extent.bounds(config.bootstrap, {topic for topic, _ in wanted})
    except CdcError:
        return None
    return lost(query, wanted, ends)


def lost(
    query: str, wanted: Mapping[Place, int], ends: Mapping[Place, tuple[int, int]]
) -> RecordsLostError | None:
    """Compares what a query wants next with what its topics have.

    Args:
        query: Its name.
        wanted: Offset that it wants next, by topic and partition.
        ends: First offset, and offset after the last record, of every partition that there is.
    """
    facts = [
        fact for place, offset in sorted(wanted.items()) if (fact := _fact(place, offset, ends))
    ]
    if not facts:
        return None
    return RecordsLostError(
        f"query {query} wants records that are gone",
        detail="; ".join(facts),
        hint=_HINT,
    )


def made_anew(
    query: str, wanted: Iterable[str], known: Mapping[str, str], now: Mapping[str, str]
) -> RecordsLostError | None:
    """Tells a topic that was deleted and made again from the one that a query stands in.

    Its offsets may fit the new topic by chance: what lies below them would be passed over.

    Args:
        query: Its name.
        wanted: Topics in which it stands.
        known: Kafka's own ids of the topics when the query began with them.
        now: Those that they have.
    """
    facts = [
        f"topic {topic} was made anew, {known[topic]} before, {now[topic]} now"
        for topic in sorted(wanted)
        if topic in known and known[topic] != now.get(topic, known[topic])
    ]
    if not facts:
        return None
    return RecordsLostError(
        f"query {query} stands in a topic that was made anew",
        detail="; ".join(facts),
        hint=_HINT,
    )


def _fact(place: Place, wanted: int, ends: Mapping[Place, tuple[int, int]]) -> str | None:
    topic, partition = place
    where = f"topic {topic}, partition {partition}"
    if place not in ends:
        return f"{where} does not exist any more, wanted offset {wanted}"
    earliest, end = ends[place]
    if wanted < earliest:
        return f"{where}, wanted offset {wanted}, earliest {earliest}"
    if wanted > end:
        return f"{where} was made anew or cut short, wanted offset {wanted}, its end {end}"
    return None
