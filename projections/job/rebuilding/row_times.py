"""Times of rows that other records than their newest ones tell.

The time of a row's first commit is that of its newest insert, as `first_commit` says of live
delivery. It comes from all records of a key, so the rows are amended after their newest records
were decoded.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs

from projections.archive.survey import flags, integers, versions_of
from projections.job.rebuilding.divide_tasks import BEGINS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from projections.archive.fold import Integers
    from projections.changes.row_change import RowChange
    from projections.job.rebuilding.plain_rows import Amended
    from projections.planning.view_plan import ViewPlan


def amendment(
    plan: ViewPlan,
    records: pa.RecordBatch,
    codes: Integers,
    truncated: int,
) -> Amended | None:
    """Returns what adds times to the rows of a view; None if their newest records tell them.

    Args:
        plan: The view.
        records: All records of some keys, in the order of their topics.
        codes: The keys as numbers.
        truncated: Version of the newest truncate of the table; 0 if there is none.
    """
    return _with_inserts(records, codes, truncated) if plan.inserted_at else None


def newest_of(codes: Integers, versions: Integers) -> Integers:
    """Returns the places of the newest records of each key, rising; the first of equal ones.

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
    tells = flags(pc.is_in(records.column("op"), value_set=BEGINS)) & (versions >= truncated)
    told = np.flatnonzero(tells)
    newest = told[newest_of(codes[told], versions[told])]
    at_us = _microseconds(records, "committed_at")[newest]
    inserts = flags(pc.equal(records.column("op"), "c"))[newest]
    begun, begun_at_us = np.zeros((2, codes.max(initial=-1) + 1), np.int64)
    begun[codes[newest]] = versions[newest]
    begun_at_us[codes[newest]] = np.where(inserts, at_us, 0)
    return partial(_replaced, ("begun", "begun_at_us"), (begun[codes], begun_at_us[codes]))


def _replaced(
    names: tuple[str, str],
    values: tuple[Integers, Integers],
    changes: Sequence[RowChange],
    places: Integers,
) -> list[RowChange]:
    own = zip(*(each[places].tolist() for each in values), strict=True)
    return [
        structs.replace(change, **dict(zip(names, each, strict=True)))
        for change, each in zip(changes, own, strict=True)
    ]


def _microseconds(records: pa.RecordBatch, name: str) -> Integers:
    return integers(records.column(name).cast(pa.int64()))
