"""TableLog: the log of a Delta table, action by action.

The engines return which files a version consists of, but not the actions that added them. A caller
that writes the same files to another log needs these actions verbatim.

Damaged logs of Delta tables: the result of a power cut or of manual changes.

The engines read an empty commit as one without changes, so rows would be missing without an error.
Their messages about other damage do not distinguish it from a disk that does not answer.

Plain tables: tables whose rows are exactly what their files contain, column by column.

Such a table may be read file by file by a Parquet reader; any other needs an engine that supports
its features.
"""

from __future__ import annotations

import os
import re
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from projections.errors import LogUnreadableError, TableTornError

if TYPE_CHECKING:
    from pathlib import Path

    from deltalake import DeltaTable

Action = dict[str, Any]
"""Content of an action in a commit."""

FileKey = tuple[str, str]
"""Identity of a data file: its path, and its deletion vector."""

_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.parquet")
_ADDED: Final = (
    "path",
    "partitionValues",
    "size",
    "modificationTime",
    "dataChange",
    "stats",
    "tags",
    "deletionVector",
    "baseRowId",
    "defaultRowCommitVersion",
    "clusteringProvider",
)
_REPLAYED: Final = ("add", "remove", "protocol", "metaData")
_Z85: Final = (
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)
_UUID_CHARACTERS: Final = 20


@dataclass(slots=True)
class LogState:
    """The state of a log at a version.

    Attributes:
        protocol: The protocol that readers need.
        metadata: The table's schema and properties.
        files: The add action of each file.
        gone: The remove action of each removed file that the log still has.
    """

    protocol: Action = field(default_factory=dict)
    metadata: Action = field(default_factory=dict)
    files: dict[FileKey, Action] = field(default_factory=dict)
    gone: dict[FileKey, Action] = field(default_factory=dict)

    def take(self, line: Action) -> None:
        """Applies one line of a commit, or of a checkpoint."""
        if (add := line.get("add")) is not None:
            key = file_key(add)
            self.files[key] = {name: add[name] for name in _ADDED if add.get(name) is not None}
            self.gone.pop(key, None)
        elif (remove := line.get("remove")) is not None:
            key = file_key(remove)
            self.files.pop(key, None)
            self.gone[key] = remove
        elif (protocol := line.get("protocol")) is not None:
            self.protocol = _without_nulls(protocol)
        elif (metadata := line.get("metaData")) is not None:
            self.metadata = _without_nulls(metadata)


class TableLog:
    """Reads a table's log.

    Args:
        table: Folder of the table.
    """

    def __init__(self, table: Path) -> None:
        self.folder = table / "_delta_log"

    def commit(self, number: int) -> Path:
        """Returns the file of a commit, whether or not it is there."""
        return self.folder / f"{number:020}.json"

    def commits(self) -> list[int]:
        """Returns the numbers of the existing commits, the oldest first."""
        return self._numbers(_COMMIT)

    def checkpoints(self) -> list[int]:
        """Returns the numbers of the existing checkpoints, the oldest first."""
        return self._numbers(_CHECKPOINT)

    def lines(self, number: int) -> list[Action]:
        """Returns the actions of a commit.

        Raises:
            LogUnreadableError: It is missing or damaged.
        """
        try:
            return parsed(self.commit(number).read_bytes())
        except (OSError, ValueError) as error:
            raise self._unreadable(f"{number:020}.json", error) from None

    def state(self, version: int) -> LogState:
        """Returns the state of the log at a version.

        Raises:
            LogUnreadableError: It does not reach back that far, or is damaged.
        """
        state = LogState()
        since = max((number for number in self.checkpoints() if number <= version), default=-1)
        if since >= 0:
            for line in self._checkpoint(since):
                state.take(line)
        for number in range(since + 1, version + 1):
            for line in self.lines(number):
                state.take(line)
        return state

    def _checkpoint(self, number: int) -> list[Action]:
        path = self.folder / f"{number:020}.checkpoint.parquet"
        try:
            table = pq.read_table(path, columns=list(_REPLAYED), partitioning=None)
            return [_without_nulls(line) for line in table.to_pylist(maps_as_pydicts="strict")]
        except (OSError, pa.ArrowException) as error:
            raise self._unreadable(path.name, error) from None

    def _numbers(self, pattern: re.Pattern[str]) -> list[int]:
        try:
            with os.scandir(self.folder) as entries:
                found = [pattern.fullmatch(entry.name) for entry in entries]
        except FileNotFoundError:
            return []
        return sorted(int(match[1]) for match in found if match)

    def _unreadable(self, name: str, error: Exception) -> LogUnreadableError:
        return LogUnreadableError(
            "the log of a table cannot be read",
            detail=f"{self.folder.parent.name}/_delta_log/{name}: {type(error).__name__}",
        )


def parsed(commit: bytes) -> list[Action]:
    """Returns the lines of a commit.

    Raises:
        ValueError: It is damaged.
    """
    lines = [orjson.loads(line) for line in commit.splitlines() if line.strip()]
    if not lines or not all(isinstance(line, dict) for line in lines):
        raise ValueError
    return lines


def _without_nulls(action: Action) -> Action:
    """Removes the NULL fields of a checkpoint, which a commit lacks."""
    return {name: value for name, value in action.items() if value is not None}


def file_key(said: Action) -> FileKey:
    """Returns the identity of an added or removed file."""
    vector = said.get("deletionVector")
    if vector is None:
        return said["path"], ""
    return said["path"], f"{vector['storageType']}{vector['pathOrInlineDv']}@{vector.get('offset')}"


def files_of(said: Action) -> list[str]:
    """Returns the paths of an added file below the table's folder.

    Raises:
        LogUnreadableError: They are outside the folder.
    """
    path = unquote(said["path"])
    vector = said.get("deletionVector") or {"storageType": "i"}
    if path.startswith("/") or "://" in path or vector["storageType"] == "p":
        raise LogUnreadableError("a table has files outside its folder")
    if vector["storageType"] == "i":
        return [path]
    prefix, name = vector["pathOrInlineDv"][:-_UUID_CHARACTERS], _uuid(vector["pathOrInlineDv"])
    return [
        path,
        f"{prefix}/deletion_vector_{name}.bin" if prefix else f"deletion_vector_{name}.bin",
    ]


def _uuid(text: str) -> uuid.UUID:
    """Returns the name of a deletion vector's file, which is base 85 in the log."""
    found = b""
    for start in range(len(text) - _UUID_CHARACTERS, len(text), 5):
        number = 0
        for character in text[start : start + 5]:
            number = number * 85 + _Z85.index(character)
        found += number.to_bytes(4)
    return uuid.UUID(bytes=found)


def refuse_torn(root: Path, view: str, *, every: bool = False) -> None:
    """Refuses the tables of a view whose log is damaged.

    Args:
        root: Folder of the tables.
        view: The view.
        every: Whether to read every commit since the last checkpoint, instead of only the newest.

    Raises:
        TableTornError: One is.
    """
    for name in (view, f"{view}.deleted"):
        found = torn(root / name, every=every)
        if found is not None:
            raise TableTornError(
                f"view {view}: the log of its table is damaged",
                detail=f"{name}/_delta_log: {found}",
                hint=f"run headwater down, move tables/{view} and tables/{view}.deleted away, "
                "then headwater up: it takes a new snapshot of the view's table",
            )


def torn(path: Path, *, every: bool = False) -> str | None:
    """Returns the damage of a table's log; None if it is intact or there is none."""
    log = path / "_delta_log"
    commits = {int(file.stem): file for file in log.glob("*.json") if file.stem.isdigit()}
    if not commits:
        return None
    checkpoints = (file.name.partition(".")[0] for file in log.glob("*.checkpoint*.parquet"))
    since = max((int(number) for number in checkpoints if number.isdigit()), default=-1) + 1
    newest = max(commits)
    for number in range(since, newest + 1):
        if number not in commits:
            return f"{number:020}.json is missing"
    for number in range(since if every else newest, newest + 1):
        if not _whole(commits[number].read_bytes()):
            return f"{number:020}.json cannot be read"
    return None


def _whole(commit: bytes) -> bool:
    lines = [line for line in commit.splitlines() if line.strip()]
    try:
        return bool(lines) and all(isinstance(orjson.loads(line), dict) for line in lines)
    except orjson.JSONDecodeError:
        return False


_HARMLESS: Final = frozenset({"timestampNtz"})
"""Features that do not affect how files are read."""


def plain(table: DeltaTable) -> bool:
    """Returns whether a version of a table is plain."""
    mapped = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    return bool(mapped == "none") and set(table.protocol().reader_features or ()) <= _HARMLESS
