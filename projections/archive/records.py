"""Archived records in the form that the reducers read: bytes as in the topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from cdc.change_event import EPOCH_HEADER
from projections.changes.record import OLD_KEY_HEADER

if TYPE_CHECKING:
    from collections.abc import Sequence

COLUMNS: Final = (
    "topic",
    "partition",
    "offset",
    "epoch",
    "lsn",
    "commit_lsn",
    "committed_at",
    "recorded_at",
    "op",
    "key",
    "before",
    "after",
    "source",
    "rest",
    "headers",
    "raw_key",
    "raw_value",
)
"""Columns of a record, and of its log position."""

_BEFORE, _AFTER, _SOURCE = (
    pa.scalar(text, pa.large_string()) for text in ('{"before":', ',"after":', ',"source":')
)
_NOTHING: Final = pa.scalar("", pa.large_string())


def records(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Returns the records of archived rows, in the form of `Record`."""
    epochs, olds = _headers(batch)
    return list(
        zip(
            _bytes(batch.column("key"), batch.column("raw_key")),
            _values(batch),
            epochs,
            batch.column("partition").to_pylist(),
            batch.column("offset").to_pylist(),
            olds,
            batch.column("recorded_at").cast(pa.int64()).to_pylist(),
            strict=True,
        )
    )


def _values(batch: pa.RecordBatch) -> list[bytes | None]:
    parts = {
        name: batch.column(name).cast(pa.large_string())
        for name in ("before", "after", "source", "rest")
    }
    before, after = (pc.fill_null(parts[name], "null") for name in ("before", "after"))
    made = pc.binary_join_element_wise(
        _BEFORE, before, _AFTER, after, _SOURCE, parts["source"], parts["rest"], _NOTHING
    )
    return _bytes(made, batch.column("raw_value"))


def _bytes(text: pa.Array, raw: pa.Array) -> list[bytes | None]:
    """Returns values as bytes: of the text, or the raw ones if there is no text."""
    encoded = text.cast(pa.large_binary())
    if encoded.null_count and raw.null_count < len(raw):
        encoded = pc.coalesce(encoded, raw.cast(pa.large_binary()))
    values: list[bytes | None] = encoded.to_pylist()
    return values


def _headers(batch: pa.RecordBatch) -> tuple[list[str | None], Sequence[bytes | None]]:
    """Returns the headers of each record: the source's incarnation, and its former key."""
    column, rows = batch.column("headers"), batch.num_rows
    inner, parents = column.flatten(), pc.list_parent_indices(column)
    epochs: list[str | None] = [None] * rows
    olds: list[bytes | None] = [None] * rows
    if not len(inner):
        return epochs, olds
    names, values = inner.field("key"), inner.field("value")
    ours = pc.equal(names, EPOCH_HEADER)
    for row, value in zip(
        parents.filter(ours).to_pylist(), values.filter(ours).to_pylist(), strict=True
    ):
        epochs[row] = None if value is None else value.decode()
    moved = pc.equal(names, OLD_KEY_HEADER)
    if pc.any(moved).as_py():
        for row, value in zip(
            parents.filter(moved).to_pylist(), values.filter(moved).to_pylist(), strict=True
        ):
            olds[row] = value
    return epochs, olds
