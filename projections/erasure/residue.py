"""The past of a Delta table: what its files and its log keep of versions that nobody is to read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from projections.common.delta_log import parsed

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

_NUMBERED: Final = re.compile(r"(\d{20})\.(.+)")
_COMMIT: Final = "json"
_CHECKPOINT: Final = "parquet"
_VALUED: Final = {
    "add": ("stats", "stats_parsed", "tags"),
    "remove": ("stats", "tags"),
    "commitInfo": ("operationParameters", "operationMetrics"),
}
"""Of what a commit says, that which tells values: the least and the greatest of each column of a
file, and conditions."""


def forget_past(table: Path, kept: Collection[int] = ()) -> None:
    """Removes all files that are no part of a version that is kept, and values from the log.

    The log itself stays, without values: a writer that knows the table at a former commit goes on
    from there, and would else take the number after it for one that nobody has; and who opens the
    table just now may be at an older checkpoint. Nobody may write to the table meanwhile. Whoever
    reads another version fails.

    Args:
        table: Folder of the table.
        kept: Versions that have to stay readable beside the newest.

    Raises:
        DeltaError: The table cannot be read or written.
        OSError: A file cannot be removed.
    """
    opened = DeltaTable(str(table))
    oldest = min([*kept, opened.version()])
    at_oldest = opened
    if oldest < opened.version():
        at_oldest = DeltaTable(str(table), version=oldest)
    at_oldest.create_checkpoint()
    opened.vacuum(
        retention_hours=0,
        enforce_retention_duration=False,
        dry_run=False,
        full=True,  # also what a writer that was killed has left
        keep_versions=sorted({*kept, opened.version()}),
    )
    for file in sorted((table / "_delta_log").iterdir()):
        found = _NUMBERED.fullmatch(file.name)
        if found is None:
            continue
        if found[2] == _COMMIT and int(found[1]) <= oldest:
            _forget_in_commit(file)
        elif found[2].endswith(_CHECKPOINT) and int(found[1]) < oldest:
            _forget_in_checkpoint(file)


def _forget_in_commit(commit: Path) -> None:
    content = commit.read_bytes()
    told = b"\n".join(orjson.dumps(_without_values(line)) for line in parsed(content))
    if told != content:
        draft = commit.with_name(f".{commit.name}.tmp")
        draft.write_bytes(told)
        draft.replace(commit)


def _forget_in_checkpoint(checkpoint: Path) -> None:
    lines = pq.read_table(checkpoint, partitioning=None)
    for kind in _VALUED.keys() & set(lines.schema.names):
        lines = lines.set_column(
            lines.schema.get_field_index(kind), kind, _without(lines[kind], _VALUED[kind])
        )
    draft = checkpoint.with_name(f".{checkpoint.name}.tmp")
    pq.write_table(lines, draft)
    draft.replace(checkpoint)


def _without(said: pa.ChunkedArray, names: Collection[str]) -> pa.Array:
    """What was said, without some of its parts."""
    array = said.combine_chunks()
    parts = [
        pa.nulls(len(array), field.type) if field.name in names else array.field(number)
        for number, field in enumerate(array.type)
    ]
    return pa.StructArray.from_arrays(parts, fields=list(array.type), mask=array.is_null())


def _without_values(line: dict[str, Any]) -> dict[str, Any]:
    return {
        kind: {name: value for name, value in said.items() if name not in _VALUED.get(kind, ())}
        for kind, said in line.items()
    }
