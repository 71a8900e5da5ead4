"""StableTable: one path for a view's rows, independent of its versions, for readers of Delta.

A view's table is written batch by batch, so its newest version may contain half a transaction, and
a later version of the view has another table. Readers that know neither use a Delta table whose log
is written here: each of its commits makes it equal to a published version of the active version's
table. A commit is atomic, so a cutover is one step, and a caller keeps reading the version that it
opened.

Its data files are hard links to those of the view's tables. No other way in which a log can name
files elsewhere works with all readers. DataFusion reads an absolute path and one that begins with
`..`; pyarrow, pandas and Polars look for them below the table's own folder and fail. An absolute
path would also depend on the folder's name: a home folder that is moved, or mounted elsewhere in a
container, keeps its links. A link costs no space and some microseconds, and a file stays for
present readers after the view's table has removed it. On a filesystem without links, files are
copied.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import time
import uuid
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import msgspec
import orjson
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from projections.common.delta_log import LogState, TableLog, file_key, files_of, parsed
from projections.common.file_lock import WriterLock
from projections.errors import LogUnreadableError, LogWrittenError, StableTableError
from projections.publishing.published_content import StableData
from projections.publishing.published_versions import KEPT_HOURS, stable_path

if TYPE_CHECKING:
    from collections.abc import Iterable

    from projections.common.delta_log import Action, FileKey
    from projections.publishing.published_content import TableVersion
    from projections.publishing.published_versions import Published

COMMITS_PER_CHECKPOINT: Final = 25
"""Most commits that a reader reads to open the table; a checkpoint costs as much as ten.
"""

CHECKPOINTS_PER_CLEANING: Final = 4

_OPERATION: Final = "PUBLISH"
_ATTEMPTS: Final = 3
_TAKEN_OVER: Final = ("delta.columnMapping.", "delta.dataSkippingStatsColumns")
"""Properties that say how files and their statistics are read."""

_CONFIGURATION: Final = {
    "delta.checkpointInterval": str(COMMITS_PER_CHECKPOINT),
    "delta.deletedFileRetentionDuration": f"interval {KEPT_HOURS} hour",
    "delta.logRetentionDuration": f"interval {KEPT_HOURS} hour",
}
_NO_LINKS: Final = frozenset({errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS})
_MS_PER_HOUR: Final = 3_600_000
logger = logging.getLogger(__name__)


class _Newest(msgspec.Struct, frozen=True):
    """The newest commit of the stable table.

    Attributes:
        number: Its number; -1 for a table without any.
        data: The content that the newest commit of this program publishes; None if there is none.
        ours: Whether that commit is the newest one.
        torn: Whether the file of the next commit exists and cannot be read.
    """

    number: int = -1
    data: StableData | None = None
    ours: bool = False
    torn: bool = False

    @property
    def whole(self) -> bool:
        """Returns whether the table is as the newest commit of this program states."""
        return self.ours and not self.torn


class StableTable:
    """The stable table of a view.

    Several processes may write it: each commit is made under a lock, and determines its content
    under that lock. A process that is killed during a commit leaves unused links, which the next
    cleaning removes.
    """

    def __init__(self, tables: Path, view: str) -> None:
        self.path = stable_path(tables, view)
        self._tables = tables
        self._view = view
        self._log = TableLog(self.path)
        self._lock = WriterLock(self.path.with_name(f".{view}.lock"), wait=True)
        self._draft_path = self.path / ".draft"
        self._newest: _Newest | None = None

    def content(self) -> StableData | None:
        """Returns the table's content; None if it has none yet.

        Raises:
            LogUnreadableError: Its log is damaged.
        """
        return self._look().data

    def follow(self, published: Published, *, backwards: bool = False) -> StableData | None:
        """Publishes the active version of the view.

        Version and physical name are read under the table's lock: after a cutover, no later commit
        shows the former version.

        Args:
            published: The published versions of its source.
            backwards: Whether its boundary may be earlier than the present one.

        Returns:
            The new content.

        Raises:
            StableTableError: It cannot be published.
            OSError: A file cannot be read or written.
        """
        with self._lock:
            for attempt in range(1, _ATTEMPTS + 1):
                latest, places = published.latest(), published.current()
                active = None if latest is None else latest.by_view(places).get(self._view)
                if latest is None or active is None:
                    return self.content()
                try:
                    return self._publish(*active, latest.number, backwards=backwards)
                except FileNotFoundError as error:
                    # the published version may have been removed; its successor exists
                    if attempt == _ATTEMPTS:
                        raise StableTableError(
                            f"view {self._view}: a file of its published table is missing",
                            detail=f"{active[0]}, version {active[1].version}",
                            hint="headwater view verify shows whether rows are missing",
                        ) from error
        raise AssertionError  # the loop returns or raises

    def publish(
        self, place: str, table: TableVersion, number: int, *, backwards: bool = False
    ) -> StableData | None:
        """Makes the table equal to a published version of a view's table, in one commit.

        Args:
            place: Name of that table.
            table: Its version and boundary.
            number: Number of the published version.
            backwards: Whether its boundary may be earlier than the present one.

        Returns:
            The content afterwards: unchanged if it was at a later boundary.

        Raises:
            StableTableError: It cannot be published.
            OSError: A file cannot be read or written.
        """
        with self._lock:
            return self._publish(place, table, number, backwards=backwards)

    def clean(self, kept_hours: float = KEPT_HOURS) -> None:
        """Removes commits and files that are no longer read.

        Args:
            kept_hours: Minimum age of replaced files; with 0, only the present content stays, as
                forgetting requires. Readers that have opened an older state then fail.

        Raises:
            StableTableError: The log cannot be read.
            OSError: A file cannot be removed.
        """
        with self._lock:
            if self._look().number >= 0:
                self._checkpoint()
                self._clean(kept_hours)

    def remove(self) -> None:
        """Removes the table of a view that is no longer published.

        Raises:
            OSError: A file cannot be removed.
        """
        with self._lock:
            self._newest = None
            if self.path.is_dir():
                shutil.rmtree(self.path)

    def _publish(
        self, place: str, table: TableVersion, number: int, *, backwards: bool
    ) -> StableData:
        for attempt in range(1, _ATTEMPTS + 1):
            newest, mark = self._look(), self._mark(place, table.version)
            before = newest.data
            if before is not None:
                if (table.epoch, table.lsn) < (before.epoch, before.lsn) and not backwards:
                    return before
                same = (place, table.version) == (before.place, before.version)
                if newest.whole and same and mark in {"", before.mark}:
                    return before
            data = StableData(place, table.version, number, table.epoch, table.lsn, mark)
            actions = self._incremental_difference(newest, data)
            if actions is None:
                actions = self._full_difference(newest, data)
            self._link(place, actions)
            try:
                self._commit(newest, data, actions)
            except FileExistsError:
                self._newest = None
                if attempt == _ATTEMPTS:
                    raise LogWrittenError(
                        f"another process writes to the stable path of view {self._view}",
                        detail=str(self.path),
                        hint="do not write to the path; use tables of your own",
                    ) from None
                continue
            return data
        raise AssertionError  # the loop returns or raises

    def _mark(self, place: str, version: int) -> str:
        """Distinguishes a commit from one with the same number in a recreated table."""
        try:
            content = TableLog(self._tables / place).commit(version).read_bytes()
        except FileNotFoundError:
            return ""
        return hashlib.sha256(content).hexdigest()[:16]

    def _incremental_difference(self, newest: _Newest, data: StableData) -> list[Action] | None:
        """Returns the actions since then in the same table; None if they do not suffice."""
        before = newest.data
        if before is None or not newest.whole or before.place != data.place:
            return None
        known = before.version < data.version and before.mark
        if not known or before.mark != self._mark(before.place, before.version):
            return None
        log = TableLog(self._tables / data.place)
        added: dict[FileKey, Action] = {}
        removed: dict[FileKey, Action] = {}
        changed = False
        for number in range(before.version + 1, data.version + 1):
            try:
                lines = log.lines(number)
            except LogUnreadableError:
                return None  # the commit is gone; a checkpoint may contain it
            for line in lines:
                if "metaData" in line or "protocol" in line:
                    return None
                for action in (line.get("add"), line.get("remove")):
                    changed |= action is not None and bool(action.get("dataChange", True))
                if (add := line.get("add")) is not None:
                    added[file_key(add)] = add
                    removed.pop(file_key(add), None)
                elif (remove := line.get("remove")) is not None:
                    added.pop(file_key(remove), None)
                    removed[file_key(remove)] = remove
        return _file_actions(data.place, added.values(), removed.values(), changed=changed)

    def _full_difference(self, newest: _Newest, data: StableData) -> list[Action]:
        """Returns all differences between the two tables."""
        wanted = TableLog(self._tables / data.place).state(data.version)
        if not wanted.metadata:
            raise LogUnreadableError(
                "the log of a table cannot be read", detail=f"{data.place}: it has no columns"
            )
        stored = self._log.state(newest.number) if newest.number >= 0 else LogState()
        form = _form(wanted.metadata, stored.metadata)
        lines: list[Action] = []
        if wanted.protocol != stored.protocol:
            lines.append({"protocol": wanted.protocol})
        if form != stored.metadata:
            lines.append({"metaData": form})
        theirs = {file_key(_with_path(data.place, add)): add for add in wanted.files.values()}
        added = [add for key, add in theirs.items() if key not in stored.files]
        gone = [add for key, add in stored.files.items() if key not in theirs]
        lines += [_remove_action(add, changed=True) for add in gone]
        return lines + _file_actions(data.place, added, (), changed=True)

    def _link(self, place: str, actions: Iterable[Action]) -> None:
        for action in actions:
            if (add := action.get("add")) is None:
                continue
            own, *vectors = files_of(add)
            self._link_file(self._tables / own, self.path / own)
            for name in vectors:
                self._link_file(self._tables / place / name, self.path / name)

    def _link_file(self, source: Path, target: Path) -> None:
        if target.exists():  # each file is written once, under a unique name
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            shutil.copyfile(source, self._draft())
            self._draft_path.replace(target)

    def _draft(self) -> Path:
        """Returns the path at which a file is written before it gets its name.

        A leftover file may be a commit under a second name, so it is not overwritten.
        """
        self._draft_path.unlink(missing_ok=True)
        return self._draft_path

    def _commit(self, newest: _Newest, data: StableData, actions: list[Action]) -> None:
        now_ms = time.time_ns() // 1_000_000
        info = {
            "timestamp": now_ms,
            "operation": _OPERATION,
            "operationParameters": data.parameters(),
            "isBlindAppend": False,
            "engineInfo": "headwater",
        }
        for action in actions:
            if "remove" in action:
                action["remove"]["deletionTimestamp"] = now_ms
        number = newest.number + 1
        target = self._log.commit(number)
        self._log.folder.mkdir(parents=True, exist_ok=True)
        lines = [{"commitInfo": info}, *actions]
        self._draft().write_bytes(b"\n".join(map(orjson.dumps, lines)))
        if newest.torn:
            self._draft_path.replace(target)
        else:
            self._name(target)
        self._newest = _Newest(number, data, ours=True)
        if number and number % COMMITS_PER_CHECKPOINT == 0:
            self._tidy(number)

    def _name(self, target: Path) -> None:
        """Gives the draft its name, unless the name is taken."""
        try:
            os.link(self._draft_path, target)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if target.exists():
                raise FileExistsError(target) from None
            self._draft_path.replace(target)
        else:
            self._draft_path.unlink()

    def _look(self) -> _Newest:
        """Returns the newest commit; lists the folder only if there is another one."""
        known = self._newest
        if (
            known is not None
            and not self._log.commit(known.number + 1).exists()
            and self._log.commit(known.number).exists()
        ):
            return known
        self._newest = None
        numbers = self._log.commits()
        if not numbers:
            return _Newest()
        torn = False
        try:
            parsed(self._log.commit(numbers[-1]).read_bytes())
        except ValueError:
            torn = True  # after a power cut: no reader has seen anything later
            numbers.pop()
        for number in reversed(numbers):
            data = _published_data(self._log.lines(number))
            if data is not None:
                newest = _Newest(numbers[-1], data, number == numbers[-1], torn)
                break
        else:
            newest = _Newest(numbers[-1] if numbers else -1, torn=torn)
        if newest.whole:
            self._newest = newest
        return newest

    def _tidy(self, number: int) -> None:
        try:
            self._checkpoint()
            if number % (COMMITS_PER_CHECKPOINT * CHECKPOINTS_PER_CLEANING) == 0:
                self._clean(KEPT_HOURS)
        except (DeltaError, StableTableError, OSError) as error:
            # readers read more commits until the next time
            logger.warning("stable path of %s: not tidied: %s", self._view, type(error).__name__)

    def _checkpoint(self) -> None:
        DeltaTable(str(self.path)).create_checkpoint()

    def _clean(self, kept_hours: float) -> None:
        before_ms = time.time_ns() // 1_000_000 - int(kept_hours * _MS_PER_HOUR)
        since = max(filter(partial(self._older, before_ms), self._log.checkpoints()), default=0)
        # the oldest first: the rest reaches back to a checkpoint without a gap
        with os.scandir(self._log.folder) as entries:
            names = sorted(entry.name for entry in entries)
        for name in names:
            number = name.partition(".")[0]
            if number.isdecimal() and int(number) < since:
                (self._log.folder / name).unlink(missing_ok=True)
        state = self._log.state(self._look().number)
        gone = (r for r in state.gone.values() if r.get("deletionTimestamp", 0) >= before_ms)
        kept = {name for action in (*state.files.values(), *gone) for name in files_of(action)}
        for folder, folders, files in os.walk(self.path, topdown=False):
            if folder == str(self._log.folder):
                continue
            inner = "" if folder == str(self.path) else f"{Path(folder).relative_to(self.path)}/"
            for name in files:
                if inner + name not in kept:
                    (self.path / (inner + name)).unlink(missing_ok=True)
            if inner and not folders:
                with suppress(OSError):  # not empty
                    (self.path / inner).rmdir()

    def _older(self, before_ms: int, checkpoint: int) -> bool:
        """Returns whether the commit of a checkpoint is older than a time."""
        try:
            return self._log.commit(checkpoint).stat().st_mtime_ns // 1_000_000 <= before_ms
        except FileNotFoundError:
            return True


def _published_data(lines: list[Action]) -> StableData | None:
    """Returns the content that a commit of this program publishes; None for another commit."""
    for line in lines:
        info = line.get("commitInfo")
        if info is not None and info.get("operation") == _OPERATION:
            with suppress(msgspec.ValidationError):
                return StableData.of_parameters(info.get("operationParameters"))
    return None


def _form(wanted: Action, stored: Action) -> Action:
    """Returns the table's schema under the stable table's own name and id."""
    taken_over = {
        name: value
        for name, value in wanted.get("configuration", {}).items()
        if name.startswith(_TAKEN_OVER)
    }
    return {
        "id": stored.get("id") or str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": wanted["schemaString"],
        "partitionColumns": wanted.get("partitionColumns", []),
        "configuration": _CONFIGURATION | taken_over,
        "createdTime": stored.get("createdTime") or time.time_ns() // 1_000_000,
    }


def _file_actions(
    place: str, added: Iterable[Action], removed: Iterable[Action], *, changed: bool
) -> list[Action]:
    """Returns the actions for the files of a version in the stable table's log."""
    lines = [_remove_action(_with_path(place, remove), changed=changed) for remove in removed]
    return lines + [{"add": {**_with_path(place, add), "dataChange": changed}} for add in added]


def _with_path(place: str, action: Action) -> Action:
    return {**action, "path": f"{quote(place)}/{action['path']}"}


def _remove_action(action: Action, *, changed: bool) -> Action:
    names = ("path", "partitionValues", "size", "deletionVector")
    kept = {name: action[name] for name in names if action.get(name) is not None}
    full = "partitionValues" in kept and "size" in kept
    return {"remove": {**kept, "dataChange": changed, "extendedFileMetadata": full}}
