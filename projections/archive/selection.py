"""Selection: the keys of the rows that are within bounds, found in the archive.

What is found is keys, so that a row comes to what all of its records say, whichever of them are
within the bounds: to its newest state, never to one in between.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from projections.archive.bounds import shown
from projections.archive.commits import was_read
from projections.archive.fold import old_keys
from projections.archive.survey import by_topic, flags, integers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from projections.archive.bounds import Bounds
    from projections.archive.fold import Flags
    from projections.archive.scan import ArchiveScan
    from projections.archive.survey import RecordFilter
    from projections.planning.view_plan import ViewPlan

_COLUMNS: Final = ("topic", "partition", "offset", "op", "key", "headers")
_TIMES: Final = ("lsn", "committed_at", "recorded_at")
_NO_KEYS: Final = pa.array([], pa.string())


class Selection(NamedTuple):
    """Which rows are within bounds.

    Attributes:
        keys: Their keys, as records have them.
        records: How many records of the topics were looked at.
    """

    keys: pa.Array
    records: int


def select(
    scan: ArchiveScan,
    plan: ViewPlan,
    bounds: Bounds,
    taken: RecordFilter,
    done: Callable[[int], None] = lambda _: None,
) -> Selection:
    """Finds the rows of a view that are within bounds.

    Args:
        scan: The archive.
        plan: The view.
        bounds: The bounds, checked.
        taken: Which records count.
        done: Told how many rows of the archive were looked at.
    """
    looking = _Looking(plan, bounds)
    names = [*_COLUMNS, *(_TIMES if bounds.timed else ()), *(["after"] if bounds.where else [])]
    records = 0
    for _, batch in scan.read(names):
        for topic, chosen in by_topic(batch, plan.topics):
            own = batch if chosen is None else batch.filter(pa.array(chosen))
            own = own.filter(pa.array(taken.there(topic, own)))
            records += own.num_rows
            looking.take(own.filter(pc.is_valid(own.column("key"))))
        done(batch.num_rows)
    return Selection(looking.keys(), records)


def count(scan: ArchiveScan, plan: ViewPlan, keys: pa.Array, taken: RecordFilter) -> int:
    """Returns how many records some keys of a view have."""
    found = 0
    for _, batch in scan.read(["topic", "partition", "offset", "key"]):
        for topic, chosen in by_topic(batch, plan.topics):
            own = batch if chosen is None else batch.filter(pa.array(chosen))
            wanted = flags(pc.is_in(own.column("key"), value_set=keys))
            found += int((wanted & taken.there(topic, own)).sum())
    return found


class _Looking:
    """Takes records, and comes to the keys that are within each of the bounds."""

    def __init__(self, plan: ViewPlan, bounds: Bounds) -> None:
        self._bounds = bounds
        self._wanted = bounds.wanted(plan)
        self._moved: dict[str, set[str]] = defaultdict(set)
        self._changed: list[pa.Array] = []
        self._having: list[pa.Array] = []
        self._given = None if bounds.keys is None else sorted({*bounds.key_texts(plan)})
        name = bounds.where[0] if bounds.where else ""
        # records are older than the names that columns have by now
        others = (*plan.older_names.get(name, ()), plan.renamed.get(name, name))
        self._names = tuple(dict.fromkeys((name, *others)))

    def take(self, batch: pa.RecordBatch) -> None:
        keys = batch.column("key")
        for new, olds in old_keys(batch.column("headers"), keys).items():
            for old in olds:
                self._moved[new].add(old)
                self._moved[old].add(new)
        if self._bounds.timed:
            self._changed.append(pc.unique(keys.filter(pa.array(self._in_time(batch)))))
        if self._wanted is not None:
            self._having.append(pc.unique(keys.filter(pa.array(self._has(batch)))))

    def keys(self) -> pa.Array:
        """The keys that are within all bounds, and those that their rows had or have otherwise."""
        parts = []
        if self._given is not None:
            parts.append(pa.array(self._given, pa.string()))
        if self._bounds.timed:
            parts.append(_all(self._changed))
        if self._wanted is not None:
            parts.append(_all(self._having))
        # a row is within each of them by any of its keys
        found, *others = [_with_moves(part, self._moved) for part in parts]
        for other in others:
            found = found.filter(pc.is_in(found, value_set=other))
        return found

    def _in_time(self, batch: pa.RecordBatch) -> Flags:
        committed, sent = (
            integers(batch.column(name).cast(pa.int64()))
            for name in ("committed_at", "recorded_at")
        )
        # a row that was read was committed no one knows when
        at = np.where(was_read(batch), sent, committed)
        found = flags(batch.column("op").is_valid())
        if self._bounds.since_us is not None:
            found &= at >= self._bounds.since_us
        if self._bounds.until_us is not None:
            found &= at < self._bounds.until_us
        return found

    def _has(self, batch: pa.RecordBatch) -> Flags:
        after = batch.column("after")
        found = flags(after.is_valid()) & flags(batch.column("op").is_valid())
        wanted = self._wanted or ""
        if wanted.isascii() and wanted.isalnum():  # there is one way only to write it
            found &= flags(pc.match_substring(after, wanted))
        for place in np.flatnonzero(found).tolist():
            row = orjson.loads(after[place].as_py())
            found[place] = isinstance(row, dict) and wanted in shown(row, self._names)
        return found


def _all(parts: list[pa.Array]) -> pa.Array:
    return pc.unique(pa.chunked_array(parts, pa.string())) if parts else _NO_KEYS


def _with_moves(keys: pa.Array, moved: Mapping[str, set[str]]) -> pa.Array:
    """Adds the keys that rows came from or went to."""
    movers = pa.array(sorted(moved), pa.string())
    ahead = movers.filter(pc.is_in(movers, value_set=keys)).to_pylist()
    found = set(ahead)
    while ahead:
        further = moved[ahead.pop()] - found
        found |= further
        ahead += further
    return pc.unique(pa.concat_arrays([keys, pa.array(sorted(found), pa.string())]))
