"""Records of tables without a key, divided so that one task can take all copies of a row.

Such a row is sent once: its log position and its number in the transaction identify it. A record
may have a key nevertheless, because the connector uses any unique index as a key. In live delivery,
a record that cannot be applied then blocks later records of that key. Records with a key are
therefore divided by it, and all others by the identity of their row.

Truncates, records that do not add a row, and all records of the keys of these are left to the
replay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from projections.archive.rebuilding.columnar_rows import row_ids
from projections.archive.rebuilding.divide_tasks import DivideRecords, keeps, parted, plain
from projections.archive.survey import classified, flags, integers, versions_of
from projections.changes.record import canonical

if TYPE_CHECKING:
    from projections.archive.fold import Flags, Integers
    from projections.planning.view_plan import Facts

_ADDS: Final = pa.array(["c", "r"])


@dataclass(frozen=True, slots=True, kw_only=True)
class DivideKeyless(DivideRecords):
    """Divides the records of blocks by their keys, or by the identities of their rows."""

    reads: ClassVar = ("raw_key",)

    def divided(
        self,
        topic: int,
        facts: Facts | None,  # noqa: ARG002  # a table of events has a key
        batch: pa.RecordBatch,
        rows: Integers,
        undivided: list[int],
    ) -> tuple[pa.Table, int]:
        """Divides records; see `DivideRecords.divided`."""
        keyed, truncates, tombstones, named = classified(batch)
        readable = keyed & flags(batch.column("raw_value").is_null())
        passed = tombstones | (readable & (versions_of(batch) < self.plan.left_to_read))
        odd = ~readable | ~flags(pc.is_in(batch.column("op"), value_set=_ADDS)) | keeps(batch)
        alone = truncates | flags(batch.column("raw_key").is_valid()) | (odd & ~named)
        alone &= ~passed
        undivided += rows[alone].tolist()
        wanted = ~passed & ~alone
        chosen = batch.filter(pa.array(wanted))
        keys = plain(chosen.column("key"))
        left_keys = _left_keys(keys, named[wanted], odd[wanted])
        keys = pc.if_else(pa.array(named[wanted]), keys, row_ids(chosen))
        made = parted(topic, chosen.set_column(_place(chosen, "key"), "key", keys), rows[wanted])
        return pa.concat_tables([made, self.left_behind(left_keys)]), int(passed.sum())


def _left_keys(keys: pa.Array, named: Flags, odd: Flags) -> set[str]:
    """Returns the keys that are left because of these records, in each of their forms."""
    keys_left = set[str]()
    for text, is_odd in zip(keys.filter(named).to_pylist(), odd[named].tolist(), strict=True):
        same = canonical(text.encode())
        usual = None if same is None else same.decode()
        if is_odd or usual != text:
            keys_left.add(text)
            if usual is not None:
                keys_left.add(usual)
    return keys_left


def without_row_ids(records: pa.RecordBatch) -> pa.RecordBatch:
    """Returns records with their keys in the topic; NULL if a record has none."""
    keys = records.column("key")
    own = pc.starts_with(keys, "{")  # others that are no objects were left
    return records.set_column(
        _place(records, "key"), "key", pc.if_else(own, keys, pa.scalar(None, keys.type))
    )


def first_copies(records: pa.RecordBatch) -> Integers:
    """Returns the indices of the first record of each row, rising."""
    versions, orders = versions_of(records), integers(records.column("total_order"))
    order = np.lexsort((np.arange(len(versions)), orders, versions))
    firsts = np.ones(len(order), np.bool_)
    firsts[1:] = (np.diff(versions[order]) != 0) | (np.diff(orders[order]) != 0)
    return np.sort(order[firsts])


def _place(batch: pa.RecordBatch, name: str) -> int:
    return int(batch.schema.get_field_index(name))
