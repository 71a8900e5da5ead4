"""Whose a checkpoint is: which query of which home it was made by, and of which topics it tells.

A checkpoint says of each partition where its query stands. In the place of another query, or beside
a topic that was made anew under its name, it would say that changes are in a store that never had
them, and nobody would miss them. So each checkpoint bears a mark, which is there before its first
batch and is looked at before each start.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Final

import msgspec

from projections.errors import CheckpointForeignError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_MARK: Final = "headwater.json"
_HOME: Final = ".home"


class CheckpointMark(msgspec.Struct, frozen=True):
    """What a checkpoint says of itself.

    Attributes:
        home: Id of the folder of checkpoints in which it was made.
        source: Name of the source.
        query: The query.
        topics: Kafka's own id of each topic that it tells of, as far as that was known.
    """

    home: str
    source: str
    query: str
    topics: dict[str, str] = {}


def adopt(folder: Path) -> None:
    """Begins to keep account of a source's checkpoints; those that are there count as its own.

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
    """Returns the ids of the topics that a checkpoint tells of; empty of one that is not begun.

    Args:
        checkpoint: Folder of the query's checkpoint.

    Raises:
        CheckpointForeignError: Another query, source or home has made it, or nobody knows who.
    """
    if not (checkpoint / "offsets").is_dir():
        return {}
    wanted = _wanted(checkpoint)
    try:
        mark = msgspec.json.decode((checkpoint / _MARK).read_bytes(), type=CheckpointMark)
    except (FileNotFoundError, msgspec.DecodeError):
        raise _foreign(checkpoint, "it has no mark that can be read") from None
    if (mark.source, mark.query) != (wanted.source, wanted.query):
        raise _foreign(checkpoint, f"it was made by query {mark.query} of source {mark.source}")
    if mark.home != wanted.home:
        raise _foreign(checkpoint, "it was made in another home")
    return mark.topics


def claim(checkpoint: Path, topics: Mapping[str, str]) -> None:
    """Marks a checkpoint; it may not be begun yet.

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
        f"the checkpoint of query {checkpoint.name} is not its own",
        detail=f"{checkpoint}: {why}",
        hint=f"put its own back, or remove it and {checkpoint.name}.json beside it: its views are "
        "then filled anew",
    )


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())  # without a mark that can be read the query is refused
    draft.replace(path)
