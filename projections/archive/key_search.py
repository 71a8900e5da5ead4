"""Finds the changes of one key in an archive.

Decoding a record takes a hundred times as long as comparing its key, so only records are decoded
whose keys may be the wanted one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from cdc.change_event import ChangeEvent
from cdc.table import ColumnKind
from projections.archive.scan import ArchiveScan
from projections.archive.table import record_key, record_value
from projections.changes.documents import key_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from projections.planning.view_plan import ViewPlan

_KEYS: Final = ("partition", "offset", "key", "raw_key")
_RECORDS: Final = (
    *("partition", "offset", "epoch", "key", "raw_key"),
    *("before", "after", "source", "rest", "raw_value"),
)
_NEVER: Final = r"[^\x00-\x{10FFFF}]"
_PLAIN: Final = re.compile(r"[A-Za-z0-9]+")


def key_patterns(plan: ViewPlan, key: str) -> list[str]:
    """Returns regular expressions that the JSON of a record's key matches if it is this key.

    Only columns are compared whose values are in a record as in the text of a key. A text is
    compared by a part that JSON never escapes.

    Args:
        plan: The view.
        key: The key, as `projections.changes.documents.key_text` returns it.
    """
    columns = [plan.schema.by_name[name] for name in plan.keys]
    try:
        values = key_values(key, columns)
    except ValueError:  # no key of the view has this text
        return [_NEVER]
    patterns = []
    for column, value in zip(columns, values, strict=True):
        if column.kind is ColumnKind.INTEGER and isinstance(value, int):
            patterns.append(rf"(^|[^0-9]){abs(value)}([^0-9]|$)")
        elif column.kind in {ColumnKind.TEXT, ColumnKind.UUID} and isinstance(value, str):
            patterns.append(max(_PLAIN.findall(value), key=len, default=""))
    return patterns


def changes_of_key(
    archive: Path, topic: str, patterns: Sequence[str], reached: dict[int, int]
) -> Iterator[tuple[tuple[int, int], ChangeEvent]]:
    """Yields the changes of a topic whose keys match some patterns, with partition and offset.

    Args:
        archive: The archive; it need not exist.
        topic: The topic.
        patterns: What `key_patterns` returned. Other keys can match them too.
        reached: Receives the end of each partition in the archive.
    """
    if not DeltaTable.is_deltatable(str(archive)):
        return

    def may_be_it(batch: pa.RecordBatch) -> pa.Array:
        ends = pa.table(batch.select(["partition", "offset"])).group_by("partition")
        for end in ends.aggregate([("offset", "max")]).to_pylist():
            partition = end["partition"]
            reached[partition] = max(reached.get(partition, 0), end["offset_max"] + 1)
        met = pa.array(np.ones(batch.num_rows, np.bool_))
        for pattern in patterns:
            met = pc.and_(met, pc.match_substring_regex(batch.column("key"), pattern))
        return pc.or_kleene(met, pc.is_valid(batch.column("raw_key")))

    scan = ArchiveScan(archive, {topic})
    for _, batch in scan.chosen(_RECORDS, scan.numbers(_KEYS, may_be_it)):
        for row in batch.to_pylist():
            value = record_value(row)
            if value is not None and row["epoch"] is not None:
                place = row["partition"], row["offset"]
                yield place, ChangeEvent.parse(record_key(row), value, row["epoch"])
