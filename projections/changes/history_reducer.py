"""EveryChangeReducer: all changes of a topic, for the histories of its table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from msgspec.structs import replace

from projections.changes.raw_change import RawChange
from projections.changes.record import canonical
from projections.changes.reducer import TopicReducer
from projections.changes.row_change import RowChange

if TYPE_CHECKING:
    from collections.abc import Mapping

    from projections.changes.reduced import Reduced


class EveryChangeReducer(TopicReducer):
    """Keeps every change of every key of one table; see `TopicReducer`.

    A truncate is a change of the key `()`. Rows of a snapshot have the time of the snapshot. A
    change that is in a batch twice is returned twice: the history detects duplicates.

    Kept values are not filled in, because the preceding change in a batch need not be the preceding
    one in the log, for example when records are retried after later ones were applied. The history
    fills them in.
    """

    _every = True

    def __len__(self) -> int:
        return len(self._newest) + len(self._passed)

    def reduced(self) -> Reduced:
        """Decodes and returns the changes, and clears them."""
        decoded = super().reduced()
        changes = [
            replace(change, inserted=raw.inserted)
            if change.committed_at_us
            else replace(change, read_at_us=_read_at_us(raw))
            for change, raw in zip(decoded.changes, decoded.raws, strict=True)
        ]
        return decoded._replace(changes=changes)

    def _upsert(self, raw: RawChange, value: bytes, operation: str) -> RawChange | None:
        upsert = super()._upsert(raw, value, operation)
        return None if upsert is None else replace(upsert, inserted=operation == "c")

    def _items(self) -> list[tuple[bytes | str, RawChange]]:
        raws = [*self._passed, *self._newest.values()]
        # a row that a snapshot sent twice has one log position: the first record counts
        raws.sort(key=lambda raw: (raw.own.partition, raw.own.offset))
        return [(raw.key or b"", raw) for raw in raws]

    def _after(self, older: RawChange, newer: RawChange) -> RawChange:
        return replace(newer, lost=True) if newer.unchanged_columns and older.cut else newer

    def _before(self, older: RawChange, newer: RawChange) -> RawChange:  # noqa: ARG002
        return newer

    def _change(
        self, identity: bytes | str, raw: RawChange, row: dict[str, object] | None = None
    ) -> RowChange:
        if raw.key is None:
            return RowChange((), raw.version, None, raw.committed_at_us)
        return super()._change(identity, raw, row)

    def _moved(self, raw: RawChange) -> RawChange:
        old_key = canonical(raw.own.old_key)
        if old_key is None:
            return replace(raw, lost=True)
        return replace(raw, base=old_key, moved_at=raw.version)

    def _truncate(self, version: int, at_us: int, record: Any) -> None:
        self._passed.append(RawChange(version, None, None, at_us, (), record))


def _read_at_us(raw: RawChange) -> int:
    about: Mapping[str, int] = orjson.loads(raw.own.value or b"null")["source"]
    return about.get("ts_us") or about["ts_ms"] * 1000
