"""The offsets of a query of the job, read from its checkpoint; the job need not run.

Spark continues with a checkpoint only while the query has the same topics, and reads an additional
topic only from its very first record. If a view was removed, or one was added whose topic has lost
records already, the query begins a new checkpoint at the offsets of the old one.

The identity of a checkpoint: the query and home that created it, and its topics.

A checkpoint has the offsets of each partition. Used for another query, or for a topic that was
recreated under its name, it would claim changes that the store never received, and they would be
missing without an error. Each checkpoint therefore has an identity mark, which is written before
its first batch and checked before each start.
"""

from __future__ import annotations

import secrets
import shutil
import zlib
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import msgspec
import orjson

from foundation.atomic_file import write_atomically
from projections.errors import CheckpointForeignError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from projections.common.offsets import Offsets

_EARLIEST: Final = -2  # Spark's own number for it
_CRC_HEAD: Final = b"crc\0"
_CRC_BYTES: Final = 4


def positions(home: Path, source: str) -> dict[str, Offsets]:
    """Returns the next offsets of every query of a source, by the query's name.

    Args:
        home: Folder of all state.
        source: Name of the source.
    """
    folder = home / "checkpoints" / source
    queries = sorted(folder.glob("[!.]*")) if folder.is_dir() else []
    found = {f"query {path.name}": committed(path) for path in queries}
    return {name: offsets for name, offsets in found.items() if offsets}


def committed(checkpoint: Path) -> Offsets:
    """Returns the offset after the last record of each partition that a query has finished.

    Returns:
        Offsets by topic and partition; empty before the first batch. A batch with a damaged file is
        ignored: the one before counts.
    """
    ends = (_end(checkpoint, batch) for batch in reversed(_numbers(checkpoint / "commits")))
    return next((end for end in ends if end is not None), {})


def begun(checkpoint: Path) -> Offsets:
    """Returns the offset after the last record of each partition that a query has begun to write.

    No batch has written later records to its store, not even an unfinished one.

    Returns:
        Offsets by topic and partition; empty before the first batch.
    """
    ends = (_end(checkpoint, batch) for batch in reversed(_numbers(checkpoint / "offsets")))
    return next((end for end in ends if end is not None), {})


def damaged(checkpoint: Path) -> Path | None:
    """Returns a file with which Spark could not continue; None if there is none."""
    begun, done = _numbers(checkpoint / "offsets"), _numbers(checkpoint / "commits")
    last = max([*begun[-1:], *done[-1:]], default=-1)
    for batch in range(max(0, last - 1), last + 1):  # Spark reads the last one and the one before
        if _end(checkpoint, batch) is None:
            return checkpoint / "offsets" / str(batch)
    read = [checkpoint / "metadata", checkpoint / "sources" / "0" / "0"] if begun else []
    read += [checkpoint / "commits" / str(batch) for batch in done[-1:]]
    return next((path for path in read if _lines(path) is None), None)


def batch_end(checkpoint: Path, batch: int) -> Offsets:
    """Returns the offset after the last record of each partition of a batch.

    Args:
        checkpoint: Folder of the query's checkpoint.
        batch: Number of a started batch.
    """
    lines = (checkpoint / "offsets" / str(batch)).read_text("utf-8").splitlines()
    return _decoded_offsets(lines)


def _decoded_offsets(lines: list[str]) -> Offsets:
    offsets: Offsets = {}
    for line in lines[2:]:  # after a version and Spark's metadata
        for topic, partitions in orjson.loads(line).items():
            offsets |= {(topic, int(number)): int(at) for number, at in partitions.items()}
    return offsets


def batch_of(checkpoint: Path, place: tuple[str, int], offset: int) -> int | None:
    """Returns the number of the finished batch that had a record; None if unknown.

    Args:
        checkpoint: Folder of the query's checkpoint, which keeps its last batches.
        place: Topic and partition of the record.
        offset: Its offset.
    """
    kept = set(_numbers(checkpoint / "offsets"))
    for number in kept & set(_numbers(checkpoint / "commits")):
        if number and number - 1 not in kept:
            continue  # the start of the batch is unknown
        begin, end = _end(checkpoint, number - 1) if number else {}, _end(checkpoint, number)
        if begin is None or end is None:
            continue  # damaged
        if begin.get(place, 0) <= offset < end.get(place, 0):
            return number
    return None


def starts(
    at: Offsets,
    topics: frozenset[str],
    bounds: Mapping[tuple[str, int], tuple[int, int]],
    *,
    restart: bool = False,
) -> dict[str, dict[str, int]] | None:
    """Returns where a query begins a new checkpoint; None if it continues with the one it has.

    The last record of each partition is read once more: a query without any would have no offsets.

    Args:
        at: Its present offsets, see `committed`.
        topics: Topics that it must read.
        bounds: First offset of each of their partitions, and the one after its last record.
        restart: Whether it needs a new checkpoint in any case.
    """
    kept = {place: offset for place, offset in at.items() if place[0] in topics}
    gone = len(kept) < len(at)
    late = any(first > 0 for place, (first, _) in bounds.items() if place not in at)
    if not at or not (gone or late or restart):
        return None
    if not all(_within(offset, bounds.get(place)) for place, offset in kept.items()):
        return None  # records are lost: the query ends with the error for that
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for (topic, partition), (first, _) in sorted(bounds.items()):
        offset = kept.get((topic, partition))
        found[topic][str(partition)] = _EARLIEST if offset is None else max(first, offset - 1)
    return dict(found)


def set_aside(checkpoint: Path) -> None:
    """Moves a query's checkpoint away, so that it begins another; see `take_back`."""
    aside = _aside(checkpoint)
    shutil.rmtree(aside, ignore_errors=True)
    checkpoint.rename(aside)


def take_back(checkpoint: Path) -> None:
    """Restores such a checkpoint if the query was killed before its first batch since.

    Otherwise the query's position would be unknown, and so would lost records.
    """
    aside = _aside(checkpoint)
    if not aside.is_dir():
        return
    if committed(checkpoint):
        shutil.rmtree(aside, ignore_errors=True)
    else:
        shutil.rmtree(checkpoint, ignore_errors=True)
        aside.rename(checkpoint)


def _aside(checkpoint: Path) -> Path:
    return checkpoint.with_name(f".{checkpoint.name}")


def _within(offset: int, bounds: tuple[int, int] | None) -> bool:
    return bounds is not None and bounds[0] <= offset <= bounds[1]


def _end(checkpoint: Path, batch: int) -> Offsets | None:
    """Returns the offsets of a batch; None if its file is damaged or missing."""
    lines = _lines(checkpoint / "offsets" / str(batch))
    try:
        return None if lines is None else _decoded_offsets(lines) or None
    except (AttributeError, TypeError, ValueError):
        return None


def _lines(path: Path) -> list[str] | None:
    """Returns the lines of a Spark file, parsed except the first; None if damaged or missing."""
    try:
        content = path.read_bytes()
        first, *others = lines = content.decode().splitlines()
        for line in others or [first]:
            orjson.loads(line)
        return lines if _intact(path, content) else None
    except (FileNotFoundError, ValueError):
        return None


def _intact(path: Path, content: bytes) -> bool:
    """Returns whether a file matches its Hadoop checksum; true if it has none."""
    beside = path.with_name(f".{path.name}.crc")
    if not beside.is_file():
        return True
    head = len(_CRC_HEAD)
    told = beside.read_bytes()
    size = int.from_bytes(told[head : head + _CRC_BYTES])
    parts = [content[start : start + size] for start in range(0, len(content), size)]
    return told[head + _CRC_BYTES :] == b"".join(
        zlib.crc32(part).to_bytes(_CRC_BYTES) for part in parts
    )


def _numbers(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


_MARK: Final = "headwater.json"
_HOME: Final = ".home"


class CheckpointMark(msgspec.Struct, frozen=True):
    """The identity mark of a checkpoint.

    Attributes:
        home: Id of the folder of checkpoints in which it was created.
        source: Name of the source.
        query: The query.
        topics: Kafka's id of each of its topics, as far as known.
    """

    home: str
    source: str
    query: str
    topics: dict[str, str] = {}


_MARKS: Final = msgspec.json.Decoder(CheckpointMark)


def adopt(folder: Path) -> None:
    """Begins to mark a source's checkpoints; existing ones count as its own.

    Args:
        folder: The source's folder of checkpoints.
    """
    if (folder / _HOME).is_file():
        return
    home = secrets.token_hex(8)
    for place in folder.glob("[!.]*/"):
        _write(place / _MARK, msgspec.json.encode(CheckpointMark(home, folder.name, place.name)))
    _write(folder / _HOME, home.encode())


def check(checkpoint: Path) -> Mapping[str, str]:
    """Returns the ids of the topics in a checkpoint; empty if it has not begun.

    Raises:
        CheckpointForeignError: It belongs to another query, source or home folder, or has no mark.
    """
    if not (checkpoint / "offsets").is_dir():
        return {}
    wanted = _wanted(checkpoint)
    try:
        mark = _MARKS.decode((checkpoint / _MARK).read_bytes())
    except (FileNotFoundError, msgspec.DecodeError):
        raise _foreign(checkpoint, "its identity cannot be read") from None
    if (mark.source, mark.query) != (wanted.source, wanted.query):
        raise _foreign(checkpoint, f"it belongs to query {mark.query} of source {mark.source}")
    if mark.home != wanted.home:
        raise _foreign(checkpoint, "it belongs to another home folder")
    return mark.topics


def claim(checkpoint: Path, topics: Mapping[str, str]) -> None:
    """Marks a checkpoint, even before its first batch.

    Args:
        checkpoint: Folder of the query's checkpoint.
        topics: Ids of the topics that its query reads.
    """
    mark = msgspec.structs.replace(_wanted(checkpoint), topics=dict(topics))
    _write(checkpoint / _MARK, msgspec.json.encode(mark))


def _wanted(checkpoint: Path) -> CheckpointMark:
    folder = checkpoint.parent
    return CheckpointMark((folder / _HOME).read_text(), folder.name, checkpoint.name)


def _foreign(checkpoint: Path, why: str) -> CheckpointForeignError:
    return CheckpointForeignError(
        f"the checkpoint of query {checkpoint.name} belongs to another query",
        detail=f"{checkpoint}: {why}",
        hint=f"restore the query's own checkpoint, or remove it and {checkpoint.name}.json "
        "beside it: its views are then filled again",
    )


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)  # a query without a readable mark is refused
