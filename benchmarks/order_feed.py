"""Rows of orders, and changes of them as of a source: skewed keys, deletes, keys that are new."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

CHANGES: Final = 10_000
"""Changes of a batch."""

LOADED_AT_ONCE: Final = 500_000
EPOCH: Final = 1 << 56
"""What a version of a row begins with."""

ROW: Final = pa.schema(
    [
        ("id", pa.int64()),
        ("customer", pa.int32()),
        ("price", pa.decimal128(12, 2)),
        ("status", pa.string()),
        ("note", pa.string()),
    ]
)
NAMES: Final = tuple(ROW.names)

_SKEW: Final = 4
_DELETED: Final = 0.05
_NEW: Final = 0.02
_FEED: Final = pa.schema([*ROW, ("live", pa.bool_()), ("version", pa.int64())])
_STATES: Final = ("placed", "paid", "sent")


@dataclass(slots=True)
class OrderFeed:
    """Makes rows, and changes of them as a source would."""

    rows: int
    random: random.Random
    number: int = 0

    def first(self) -> Iterator[pa.Table]:
        """Every row, in the order of the keys."""
        for start in range(0, self.rows, LOADED_AT_ONCE):
            keys = pa.array(range(start, min(start + LOADED_AT_ONCE, self.rows)), pa.int64())
            texts = keys.cast(pa.string())
            yield pa.table(
                [
                    keys,
                    pc.subtract(keys, pc.multiply(pc.divide(keys, 9973), 9973)).cast(pa.int32()),
                    pc.divide(keys, 1_000).cast(pa.int32()).cast(pa.decimal128(12, 2)),
                    pa.array([_STATES[key % 3] for key in range(start, start + len(keys))]),
                    pc.binary_join_element_wise("the first note of order", texts, " "),
                ],
                schema=ROW,
            )

    def batch(self) -> pa.Table:
        """Changes of skewed keys, now and then a delete or a key that is new."""
        found = []
        for _ in range(CHANGES):
            key = int(self.rows * self.random.random() ** _SKEW)
            if self.random.random() < _NEW:
                key = self.rows + self.number
            found.append(self._change(key, live=self.random.random() >= _DELETED))
        return pa.Table.from_pylist(found, schema=_FEED)

    def _change(self, key: int, *, live: bool) -> dict[str, Any]:
        self.number += 1
        change: dict[str, Any] = {"id": key, "live": live, "version": EPOCH | 8 * self.number}
        if live:
            change |= {
                "customer": key % 9973,
                "price": Decimal(self.number).scaleb(-2),
                "status": _STATES[self.number % 3],
                "note": f"the note of change {self.number} of order {key}, as long as notes are",
            }
        return change
