"""Whether an archive has all that a view is made from.

It has if it begins with the very first record of each partition; or if it has every row of a whole
read of the table and what came since then. Otherwise days were removed by retention, or the archive
was begun after the topics had lost records; then only the source has it all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from cdc.position import ChangePosition
from projections.archive.scan import ArchiveScan
from projections.archive.survey import TopicSurvey, by_topic, flags, versions_of
from projections.errors import ArchiveIncompleteError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cdc.snapshot.reads import Read
    from projections.common.offsets import Offsets

_COLUMNS: Final = ("topic", "partition", "offset", "op", "epoch", "lsn", "key")
_HINT: Final = (
    "read the table again: headwater source resnapshot; what the read sends is archived, and"
    " complete"
)


def check(
    scan: ArchiveScan,
    topic: str,
    survey: TopicSurvey,
    archived: Offsets,
    whole: Mapping[str, Read],
) -> None:
    """Refuses a topic of which the archive lacks records.

    Args:
        scan: The archive.
        topic: The topic.
        survey: How its records lie.
        archived: How far the archive says that it has had each partition; see `Archive.ends`.
        whole: The newest whole read of each table that is done, by topic.

    Raises:
        ArchiveIncompleteError: It lacks some, and has no whole read of the table either.
    """
    firsts = survey.firsts
    had = {number: end for (name, number), end in archived.items() if name == topic and end}
    missing = [
        f"partition {number} begins at {firsts[number]}"
        if number in firsts
        else f"partition {number} has nothing before {had[number]}"
        for number in sorted(firsts.keys() | had.keys())
        if firsts.get(number, -1) != 0
    ]
    if not missing:
        return
    read = whole.get(topic)
    if read is not None and read.read_lsn is not None and _has(scan, topic, survey, read):
        return
    raise ArchiveIncompleteError(
        f"the archive lacks the first records of topic {topic}",
        detail="; ".join(missing),
        hint=_HINT,
    )


def check_since(  # noqa: PLR0913, PLR0917  # what it is told by
    archive: Path,
    scan: ArchiveScan,
    topic: str,
    survey: TopicSurvey,
    archived: Offsets,
    since: Mapping[int, int],
) -> None:
    """Refuses a topic of which the archive lacks records that came since it was read before.

    Days go from the archive the oldest first. So as long as it has a record of a partition that is
    not beyond those wanted, it has all of these. The first of them nearly always tells that; where
    offsets were skipped in the topic itself, an older one does.

    Args:
        archive: Folder of the archive.
        scan: Of it, the files that may have such records.
        topic: The topic.
        survey: How its records lie in those files.
        archived: How far the archive says that it has had each partition.
        since: The offset of each partition from which on its records are wanted; 0 of others.

    Raises:
        ArchiveIncompleteError: It lacks some.
    """
    had = {number: end for (name, number), end in archived.items() if name == topic}
    lacking = _beyond(survey.firsts, had, since)
    if lacking:
        every = TopicSurvey()
        whole = ArchiveScan(archive, {topic}, version=scan.version)
        for _, batch in whole.read(("topic", "partition", "offset")):
            for _, chosen in by_topic(batch, [topic]):
                every.begin(batch if chosen is None else batch.filter(pa.array(chosen)))
        lacking = _beyond(every.firsts, had, since)
    if lacking:
        raise ArchiveIncompleteError(
            f"the archive lacks records of topic {topic} that came since it was read",
            detail="; ".join(lacking),
            hint=_HINT,
        )


def _beyond(
    firsts: Mapping[int, int], had: Mapping[int, int], since: Mapping[int, int]
) -> list[str]:
    """Names partitions of which records between those wanted and the first may be gone."""
    return [
        f"partition {number} has nothing from {wanted} to {first}"
        for number in sorted(firsts.keys() | had.keys())
        if (first := firsts.get(number, had.get(number, 0))) > (wanted := since.get(number, 0))
    ]


def _has(scan: ArchiveScan, topic: str, survey: TopicSurvey, read: Read) -> bool:
    """Whether all rows of a read are there, and every change since the position it stands for.

    That is so if each partition begins before the read did: its first record is an older change.
    """
    if read.read_lsn is None:
        return False
    version = ChangePosition.of_read(read.epoch, read.read_lsn).version
    firsts, before = survey.firsts, set()
    keys: list[pa.Array] = []
    blocks = [scan.blocks[number] for number in sorted({p.block for p in survey.pieces})]
    for _, batch in scan.read(_COLUMNS, blocks):
        for _, chosen in by_topic(batch, [topic]):
            own = batch if chosen is None else batch.filter(pa.array(chosen))
            versions = versions_of(own)
            rows = flags(pc.equal(own.column("op"), "r")) & (versions == version)
            keys.append(pc.unique(own.column("key").filter(pa.array(rows))))
            for number, first in firsts.items():
                place = flags(
                    pc.and_(
                        pc.equal(own.column("partition"), number),
                        pc.equal(own.column("offset"), first),
                    )
                )
                if (versions[place] < version).any():
                    before.add(number)
    found = len(pc.unique(pa.chunked_array(keys, pa.string()))) if keys else 0
    return before == firsts.keys() and found >= read.rows_read
