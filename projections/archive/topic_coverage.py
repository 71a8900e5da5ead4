"""Topic origin: whether a view can be filled from the compacted topic of its table.

Such a topic has the newest record of each key, so a mirror of its table can be made from it. It has
no other, so nothing can of which every change counts: no history, and no view of events. And it has
them of every key only if nothing but compaction ever took records out of it: either it begins with
its first record, or everything that a whole read of its table has sent lies in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from cdc.broker.reading import compacted
from cdc.broker.reading.compacted import CLOCKS_APART_S, POLICY, CompactedTopic
from cdc.postgres import captures, escaped_topics
from cdc.snapshot import reads
from cdc.snapshot.reads import GIVEN_UP
from projections.definition.views import ChangeTime, MirrorView
from projections.planning import view_schemas

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import psycopg

    from cdc.broker.topics.incarnation import Incarnation
    from cdc.snapshot.reads import Read
    from projections.definition.views import View
    from projections.planning.job_config import JobConfig

KEEPS_MIN_S: Final = 600.0
"""Every change that comes while a version is filled has to be there when the job takes it over."""

SAYS_NOTHING: Final = "every change counts for it, and compaction keeps the newest one only"


@dataclass(frozen=True, slots=True)
class TopicOrigin:
    """The compacted topic of a view's table.

    Attributes:
        topic: It, as its brokers have it.
        lacking: Why a view cannot be filled from it; None if it can.
    """

    topic: CompactedTopic
    lacking: str | None = None


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What is known of a topic beside what its brokers say.

    Attributes:
        noted: The topic when the capture was looked at last; None if no one noted it.
        reads: Reads of its table in the present incarnation of the source, the oldest first.
        first_at_s: When the first record of each partition was sent, since 1970; of a partition
            that has any and does not begin with its first.
    """

    noted: Incarnation | None
    reads: Sequence[Read]
    first_at_s: Mapping[int, float]


def of_view(
    connection: psycopg.Connection[Any], config: JobConfig, view: View, place: str
) -> TopicOrigin | None:
    """Tells whether a view can be filled from the topic of its table; changes nothing.

    Args:
        connection: To the source.
        config: The job's configuration.
        view: The view.
        place: Where what readers see of it is kept.

    Returns:
        None where its topic is not one that keeps the newest record of each key.

    Raises:
        BrokerError: The broker does not answer.
    """
    if not isinstance(view, MirrorView):
        return None
    topic = compacted.look(
        config.bootstrap, escaped_topics.names(connection, config.source).of(view.table)
    )
    if topic is None or not topic.policy >= POLICY:
        return None
    why = unfit(view)
    if why is None and view_schemas.ready(connection):
        shape = view_schemas.read(connection, config.source).get(place)
        if shape is not None and view.table in shape.tables and len(shape.tables) > 1:
            why = (
                "its table had another name before: a row that was deleted since is in the topic of"
                " that name, and its delete may be in none"
            )
    if why is None:
        capture = captures.find(connection, config.source)
        noted = None if capture is None else (capture.topics or {}).get(topic.name)
        epoch = reads.epoch_of(connection, config.source, 1)
        own = [
            read
            for read in reads.of_source(connection, config.source, epoch)
            if read.table == view.table
        ]
        cut = any(first for first, _ in topic.bounds.values())
        times = compacted.first_times(config.bootstrap, topic) if cut else {}
        why = lacks(topic, TopicFacts(noted, own, times), datetime.now(UTC))
    return TopicOrigin(topic, why)


def unfit(view: MirrorView) -> str | None:
    """Says why a mirror cannot be made from the newest record of each key; None if it can."""
    if view.history is not None:
        return SAYS_NOTHING
    if any(which is ChangeTime.FIRST_COMMIT for _, which in view.times):
        return "it says when its rows were inserted, which the newest record of a key does not"
    return None


def lacks(topic: CompactedTopic, known: TopicFacts, now: datetime) -> str | None:
    """Says what a compacted topic may lack of the newest records of its keys; None if nothing.

    Args:
        topic: The topic.
        known: What else is known of it.
        now: The time.
    """
    name = f"topic {topic.name}"
    if topic.policy != POLICY:
        return f"{name} drops records by time or size, too ({', '.join(sorted(topic.policy))})"
    if topic.keeps_s < KEEPS_MIN_S:
        return (
            f"{name} may lose a change {topic.keeps_s:,.0f} s after it came, and a version has to"
            f" be taken over before that: at least {KEEPS_MIN_S:,.0f} s are wanted"
        )
    if known.noted is None:
        return f"no one has noted yet which {name} was captured"
    if known.noted.id != topic.identity:
        return f"{name} was deleted and made anew"
    ends = [end for _, (_, end) in sorted(topic.bounds.items())]
    if len(ends) < len(known.noted.ends) or any(
        end < was for end, was in zip(ends, known.noted.ends, strict=False)
    ):
        return f"{name} is shorter than it was"
    return _of_reads(topic, known, now)


def _of_reads(topic: CompactedTopic, known: TopicFacts, now: datetime) -> str | None:
    name = f"topic {topic.name}"
    newest = max((r for r in known.reads if r.whole and r.done), key=_stands_for, default=None)
    if newest is None:
        return f"no whole read of the table of {name} is done"
    if (newest.end_offsets or {}).keys() != topic.bounds.keys():
        # its keys may lie elsewhere since then: an older record of one and the delete of it apart
        return f"{name} has other partitions than when its table was read as a whole"
    for read in known.reads:
        if read.begun_at is None or not _ended_since(read, newest.begun_at):
            continue
        # what it has sent may have taken the place of a change that it had not seen
        if read.state in GIVEN_UP and read.rows_read:
            return f"a read of the table of {name} was given up amid its rows"
        if ((read.ended_at or now) - read.begun_at).total_seconds() > topic.keeps_s:
            return f"a read of the table of {name} took longer than it keeps every change"
    outside = [
        f"partition {number} begins at {first}"
        for number, (first, _) in sorted(topic.bounds.items())
        if first and not _begins_before(newest, known.first_at_s.get(number))
    ]
    if outside:
        return (
            f"{name} has lost records, perhaps of the last whole read of its table:"
            f" {'; '.join(outside)}"
        )
    return None


def _ended_since(read: Read, at: datetime | None) -> bool:
    return read.ended_at is None or at is None or read.ended_at >= at


def _begins_before(read: Read, at_s: float | None) -> bool:
    """Whether a record that was sent then was there before anything that a read has sent."""
    if at_s is None or read.begun_at is None:
        return False
    return at_s < read.begun_at.timestamp() - CLOCKS_APART_S


def _stands_for(read: Read) -> int:
    return 0 if read.read_lsn is None else read.read_lsn.value
