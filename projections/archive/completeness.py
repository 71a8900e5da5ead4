"""Whether an archive has all records of a view.

It is complete if it begins with the first record of each partition, or if it has every row of a
snapshot of the table and all later changes. Otherwise retention removed days, or the archive began
after the topics had lost records: then only the source has all rows.
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
    """Refuses a topic if the archive lacks records of it.

    Args:
        scan: The archive.
        topic: The topic.
        survey: Where its records are.
        archived: The archive's recorded end of each partition; see `Archive.ends`.
        whole: The newest finished snapshot of each table, by topic.

    Raises:
        ArchiveIncompleteError: Records are missing, and so is a snapshot of the table.
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
    """Refuses a topic if the archive lacks records since an earlier replay of it.

    The archive removes its oldest days first. If it has a record of a partition at or before the
    wanted ones, it therefore has all of these. The first wanted record nearly always proves that;
    where the topic itself skips offsets, an older one does.

    Args:
        archive: Folder of the archive.
        scan: Its files that may have such records.
        topic: The topic.
        survey: Where its records are in those files.
        archived: The archive's recorded end of each partition.
        since: The first wanted offset of each partition; 0 for others.

    Raises:
        ArchiveIncompleteError: Records are missing.
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
    """Names partitions that may have lost records before their first archived one."""
    return [
        f"partition {number} has nothing from {wanted} to {first}"
        for number in sorted(firsts.keys() | had.keys())
        if (first := firsts.get(number, had.get(number, 0))) > (wanted := since.get(number, 0))
    ]


def _has(scan: ArchiveScan, topic: str, survey: TopicSurvey, read: Read) -> bool:
    """Returns whether the archive has all rows of a snapshot, and every change since its position.

    That holds if each partition begins before the snapshot did: its first record is an older
    change.
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
    keys_read = len(pc.unique(pa.chunked_array(keys, pa.string()))) if keys else 0
    return before == firsts.keys() and keys_read >= read.rows_read
