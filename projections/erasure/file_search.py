"""Searches files, byte by byte and column by column, for texts that must not be there."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa

_CHUNK_BYTES: Final = 1 << 22
_PARQUET: Final = ".parquet"


@dataclass(slots=True)
class Searched:
    """The result of a search.

    Attributes:
        texts: Number of texts searched for.
        files: Number of files read.
        size_bytes: Their size.
        matching_files: Files that contain one, relative to the folder.
        unread: Parquet files searched only as bytes because no decoder is installed, as in an event
            store without views.
    """

    texts: int = 0
    files: int = 0
    size_bytes: int = 0
    matching_files: list[str] = field(default_factory=list)
    unread: int = 0


def search_files(root: Path, texts: Collection[str], *, but: Iterable[Path] = ()) -> Searched:
    """Searches all files of a folder for texts.

    Files are read as bytes; the columns of Parquet files, which are compressed, are read as well.
    Another program's own compression may hide a text.

    Args:
        root: The folder.
        texts: The texts to find.
        but: Folders and files that are skipped.
    """
    passed = frozenset(but)
    searched = Searched(len(texts))
    wanted = [text.encode() for text in sorted(texts)]
    decodes = _decodes()
    for path in _files(root, passed):
        try:
            size = path.stat().st_size
            columns = path.suffix == _PARQUET and decodes
            matches = (
                size > 0
                and wanted
                and (_in_bytes(path, wanted) or (columns and _in_columns(path, texts)))
            )
        except FileNotFoundError:  # removed meanwhile
            continue
        searched.files += 1
        searched.size_bytes += size
        searched.unread += path.suffix == _PARQUET and not decodes
        if matches:
            searched.matching_files.append(str(path.relative_to(root)))
    searched.matching_files.sort()
    return searched


def _decodes() -> bool:
    """Returns whether a decoder of Parquet files is installed."""
    try:
        return find_spec("pyarrow") is not None
    except ModuleNotFoundError:
        return False


def _files(folder: Path, but: frozenset[Path]) -> Iterator[Path]:
    try:
        entries = sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    for path in entries:
        if path in but or path.is_symlink():
            continue
        if path.is_dir():
            yield from _files(path, but)
        elif path.is_file():  # neither a socket nor a named pipe
            yield path


def _in_bytes(path: Path, wanted: list[bytes]) -> bool:
    """Reads the file instead of mapping it, since its owner may truncate it meanwhile."""
    overlap = max(map(len, wanted)) - 1
    before = b""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            window = before + chunk
            if any(text in window for text in wanted):
                return True
            before = window[max(0, len(window) - overlap) :]
    return False


def _in_columns(path: Path, texts: Collection[str]) -> bool:
    import pyarrow as pa  # noqa: PLC0415  # not there where the event store works alone
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        with pq.ParquetFile(path) as file:
            return any(
                _has(column, texts) for batch in file.iter_batches() for column in batch.columns
            )
    except (pa.ArrowException, OSError):
        return False  # damaged: its bytes were searched


def _has(column: pa.Array, texts: Collection[str]) -> bool:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    kind = column.type
    if pa.types.is_dictionary(kind):
        return _has(column.dictionary, texts)
    if pa.types.is_struct(kind) or pa.types.is_map(kind) or pa.types.is_list(kind):
        inner = column.flatten()
        parts = inner if isinstance(inner, list) else [inner]
        return any(_has(part, texts) for part in parts)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return any(pc.any(pc.match_substring(column, text)).as_py() for text in texts)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return any(pc.any(pc.match_substring(column, text.encode())).as_py() for text in texts)
    return False
