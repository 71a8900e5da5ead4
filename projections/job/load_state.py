"""LoadState: what an initial load of a table has to know when it goes on under another snapshot.

It is a file in the folder of the load, beside the finished pieces. It goes before their files are
moved into the view's table, so a folder without it cannot be continued.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import msgspec

from foundation.atomic_file import write_atomically
from projections.stores.delta.arrow import table_schema
from projections.stores.delta.source_copy import BlockRange  # noqa: TC001  # decoded by annotations

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from projections.stores.delta.source_copy import SourceCopy, TableFile

_FILE: Final = "load.json"


class LoadState(msgspec.Struct, frozen=True):
    """A load that is under way.

    Attributes:
        source: The source.
        made_from: What the rows depend on; see `made_from`.
        files: The table's files when it began; see `files_of`.
        pieces: The ranges of each piece.
        since: Rows that earlier transactions wrote are the same under all snapshots.
        snapshots: How many snapshots it has used, the present one included.
    """

    source: str
    made_from: str
    files: tuple[tuple[str, str, int, int | None], ...]
    pieces: tuple[tuple[BlockRange, ...], ...]
    since: int
    snapshots: int = 1

    @classmethod
    def of(cls, folder: Path) -> LoadState | None:
        """Returns the state of a load; None if it cannot be continued."""
        try:
            return _DECODER.decode((folder / _FILE).read_bytes())
        except (OSError, msgspec.MsgspecError):
            return None

    def store(self, folder: Path) -> None:
        """Stores the state."""
        write_atomically(folder / _FILE, msgspec.json.encode(self), mode=0o600)

    @staticmethod
    def remove(folder: Path) -> None:
        """Removes it: the files of the pieces are about to be moved."""
        (folder / _FILE).unlink(missing_ok=True)


_DECODER: Final = msgspec.json.Decoder(LoadState)


def made_from(source: SourceCopy) -> str:
    """Returns a digest of what the rows of pieces depend on, beside the rows of the table."""
    columns, rule = source.plan.schema.columns, source.rules.get(source.plan.schema.table)
    hidden: tuple[object, ...] = ()
    if rule is not None:
        only = None if rule.only is None else sorted(rule.only)
        hidden = only, sorted(rule.exclude), sorted(rule.hash), sorted(rule.mask.items())
    kinds = table_schema(source.plan).to_string()
    parts = source.version, columns, kinds, hidden, source.salt
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def files_of(files: Sequence[TableFile]) -> tuple[tuple[str, str, int, int | None], ...]:
    """Returns which files a table has; others may have its rows in other blocks."""
    return tuple((each.schema, each.name, each.oid, each.file) for each in files)
