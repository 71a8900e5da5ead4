"""Times of rows that are not in their newest records.

The time of a row's first commit is that of its newest insert, as in live delivery; see
`first_commit`. The times of an event are the earliest of its records. Both are from all records of
a key, so they are added to the rows after their newest records were decoded.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs

from projections.archive.rebuilding.divide_tasks import BEGINS, TOPIC
from projections.archive.survey import flags, integers, versions_of
from projections.definition.views import ARCHIVED_EVENTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from projections.archive.fold import Integers
    from projections.archive.rebuilding.plain_rows import Amended
    from projections.changes.row_change import RowChange
    from projections.planning.view_plan import ViewPlan


def amendment(
    plan: ViewPlan,
    topics: Sequence[str],
    records: pa.RecordBatch,
    codes: Integers,
    truncated: int,
) -> Amended | None:
    """Returns a function that adds times to rows; None if their newest records have them.

    Args:
        plan: The view.
        topics: Its topics.
        records: All records of some keys, in the order of their topics.
        codes: The keys as numbers.
        truncated: Version of the newest truncate of the table; 0 if there is none.
    """
    if plan.inserted_at:
        return _with_inserts(records, codes, truncated)
    if plan.events is not None and plan.times:
        return _with_earliest(topics, records, codes)
    return None


def newest_of(codes: Integers, versions: Integers) -> Integers:
    """Returns the indices of the newest records of each key, rising; the first of equal ones.

    Args:
        codes: Keys of records as numbers, in the order of their topics.
        versions: Their versions.
    """
    order = np.lexsort((np.arange(len(codes)), -versions, codes))
    ordered = codes[order]
    firsts = np.ones(len(order), np.bool_)
    firsts[1:] = ordered[1:] != ordered[:-1]
    return np.sort(order[firsts])


def _with_inserts(records: pa.RecordBatch, codes: Integers, truncated: int) -> Amended:
    """Adds the newest insert or delete of each key; those before a truncate are of other rows."""
    versions = versions_of(records)
    begins = flags(pc.is_in(records.column("op"), value_set=BEGINS)) & (versions >= truncated)
    numbers = np.flatnonzero(begins)
    newest = numbers[newest_of(codes[numbers], versions[numbers])]
    at_us = _microseconds(records, "committed_at")[newest]
    inserts = flags(pc.equal(records.column("op"), "c"))[newest]
    begun, begun_at_us = np.zeros((2, codes.max(initial=-1) + 1), np.int64)
    begun[codes[newest]] = versions[newest]
    begun_at_us[codes[newest]] = np.where(inserts, at_us, 0)
    return partial(_replaced, ("begun", "begun_at_us"), (begun[codes], begun_at_us[codes]))


def _with_earliest(topics: Sequence[str], records: pa.RecordBatch, codes: Integers) -> Amended:
    """Adds the earliest commit of each event, and the earliest time at the broker."""
    # the commit of such a record is not when its event came to be
    archived = [place for place, name in enumerate(topics) if name.endswith(str(ARCHIVED_EVENTS))]
    untold = np.isin(integers(records.column(TOPIC)), archived)
    untold |= flags(pc.equal(records.column("op"), "r"))
    committed_us = np.where(untold, 0, _microseconds(records, "committed_at"))
    sent_us = _microseconds(records, "recorded_at")
    earliest = _earliest(codes, committed_us)[codes], _earliest(codes, sent_us)[codes]
    return partial(_replaced, ("committed_at_us", "sent_at_us"), earliest)


def _earliest(codes: Integers, times_us: Integers) -> Integers:
    """Returns the earliest time of each key that is known; 0 if none is."""
    unknown = np.iinfo(np.int64).max
    earliest = np.full(codes.max(initial=-1) + 1, unknown, np.int64)
    np.minimum.at(earliest, codes, np.where(times_us > 0, times_us, unknown))
    return np.where(earliest == unknown, 0, earliest)


def _replaced(
    names: tuple[str, str],
    values: tuple[Integers, Integers],
    changes: Sequence[RowChange],
    numbers: Integers,
) -> list[RowChange]:
    own = zip(*(each[numbers].tolist() for each in values), strict=True)
    return [
        structs.replace(change, **dict(zip(names, each, strict=True)))
        for change, each in zip(changes, own, strict=True)
    ]


def _microseconds(records: pa.RecordBatch, name: str) -> Integers:
    return integers(records.column(name).cast(pa.int64()))
