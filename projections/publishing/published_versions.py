"""Published versions: which version of each view's table belongs to which boundary.

A table's newest version may contain half a transaction. The versions of a source's tables that form
one state are therefore recorded beside them, one file for each boundary: a caller that reads the
tables at those versions sees whole transactions, of all views at the same position. A file is
written atomically, changes at most once, when derived views have reached the boundary, and is
removed when the tables no longer keep the versions that it names.

A view can have several tables with different physical names: the first has the name of the view,
those of later versions have a dot in their names. One file beside the boundaries records the active
physical name of every view of the source, so that several views are switched in one step.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import structs

from foundation import file_lock
from foundation.atomic_file import write_atomically
from projections.changes.record import Record
from projections.errors import PlaceBehindError, PlaceUnpublishedError
from projections.publishing.published_content import (
    Current,
    PendingRecords,
    PublishedVersion,
    SourcePosition,
    Switch,
    TableVersion,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from projections.common.offsets import Offsets
    from projections.publishing.boundary import Run, UnpublishedProgress

KEPT_HOURS: Final = 1
"""How long a published version can be read, and therefore how long a replaced file stays."""

_FOLDER: Final = ".published"
_BEYOND: Final = "beyond.msgpack"
_CURRENT: Final = "current.json"
_CURRENT_LOCK: Final = ".current.lock"
_CURRENT_FILE: Final = msgspec.json.Decoder(Current)
_PENDING: Final = msgspec.msgpack.Decoder(PendingRecords)
_VERSIONS: Final = msgspec.json.Decoder(PublishedVersion)
_DIGITS: Final = 12
_VERSION: Final = re.compile(rf"[0-9]{{{_DIGITS}}}\.json")
_US_PER_HOUR: Final = 3_600_000_000
_NO_PLACE: Final = ""


def stable_path(tables: Path, view: str) -> Path:
    """Returns the path under which a view can always be read.

    Args:
        tables: Folder of the views' tables; the folder of stable tables is beside it.
        view: Name of the view.
    """
    return tables.parent / "views" / view


def sources(tables: Path) -> list[Published]:
    """Returns the published versions of each source that has begun to publish."""
    folders = sorted((tables / _FOLDER).glob("*")) if tables.is_dir() else []
    return [Published(tables, folder.name) for folder in folders if folder.is_dir()]


def names_of_others(tables: Path, source: str) -> frozenset[str]:
    """Returns the physical names of views that other sources have published.

    Args:
        tables: Folder of the tables.
        source: The source that is left out.
    """
    physical_names: set[str] = set()
    for group in sources(tables):
        newest = None if group.folder.name == source else group.newest()
        physical_names.update(() if newest is None else newest.views)
    return frozenset(physical_names)


def promised(tables: Path, view: str) -> list[int]:
    """Returns the versions of a view's table that must stay readable, regardless of age.

    These are the version that readers use, the one about to be published, and those with which the
    views derived from this one compare next.
    """
    promised_versions: set[int] = set()
    for group in sources(tables):
        for version in (group.latest(), group.newest()):
            if version is None:
                continue
            if view in version.views:
                promised_versions.add(version.views[view].version)
            made = (table.made_from.get(view) for table in version.views.values())
            promised_versions.update(number for number in made if number is not None)
    return sorted(promised_versions)


class Published:
    """The published versions of one source."""

    def __init__(self, tables: Path, source: str) -> None:
        self._folder = tables / _FOLDER / source

    @property
    def folder(self) -> Path:
        """Returns the folder of the versions."""
        return self._folder

    def begin(self) -> None:
        """Restricts reads of the tables to published versions, even before the first one."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def latest(self) -> PublishedVersion | None:
        """Returns the newest complete version; None if nothing was ever published."""
        versions = (_read(self._folder / name) for name in reversed(self._names()))
        return next((version for version in versions if version.complete), None)

    def newest(self) -> PublishedVersion | None:
        """Returns the newest version, complete or not."""
        names = self._names()
        return _read(self._folder / names[-1]) if names else None

    def all(self) -> list[PublishedVersion]:
        """Returns the readable versions, the oldest first."""
        versions = (_read(self._folder / name) for name in self._names())
        return [version for version in versions if version.complete]

    def complete(
        self,
        version: PublishedVersion,
        derived: Mapping[str, TableVersion],
        others: Mapping[str, SourcePosition] | None = None,
    ) -> None:
        """Makes a version readable, together with its derived views.

        Args:
            version: An incomplete version.
            derived: The derived views' tables.
            others: Boundaries of other sources at which they were computed.
        """
        views = version.views | dict(derived)
        made = structs.replace(version, views=views, complete=True, others=dict(others or {}))
        _write(self._path(version.number), msgspec.json.encode(made))

    def publish(
        self, epoch: int, lsn: int, versions: Mapping[str, int], *, complete: bool = True
    ) -> PublishedVersion | None:
        """Publishes a boundary; one that is not after the newest changes nothing.

        Args:
            epoch: Incarnation of the source.
            lsn: The boundary, in bytes.
            versions: Table version of each view that is complete at the boundary; others keep their
                last published version.
            complete: Whether it can be read at once; otherwise derived views must be computed
                first.

        Returns:
            The version; None if the boundary is not after the newest.
        """
        before = self.newest()
        there = {view: TableVersion(version, epoch, lsn) for view, version in versions.items()}
        views, number = there, 1
        if before is not None:
            if (epoch, lsn) <= (before.epoch, before.lsn):
                return None
            # an earlier version may have been completed since the last one began
            latest = None if before.complete else self.latest()
            known = {} if latest is None else latest.views
            derived = {view: table for view, table in known.items() if table.made_from}
            views, number = before.views | derived | there, before.number + 1
        made = PublishedVersion(number, epoch, lsn, time.time_ns() // 1000, views, complete)
        _write(self._path(number), msgspec.json.encode(made))
        self._forget(made.published_at_us - KEPT_HOURS * _US_PER_HOUR)
        return made

    def behind(self, physical_names: Iterable[str], epoch: int, lsn: int) -> list[str]:
        """Returns the physical names whose active or next version is at an earlier boundary.

        Args:
            physical_names: Names of versions, such as `orders.v2`.
            epoch: Incarnation of the source.
            lsn: The boundary, in bytes.
        """
        versions = [version for version in (self.latest(), self.newest()) if version is not None]
        return sorted(
            physical_name
            for physical_name in physical_names
            if any(
                physical_name in version.views
                and (version.views[physical_name].epoch, version.views[physical_name].lsn)
                < (epoch, lsn)
                for version in versions
            )
        )

    def forget_former(self) -> None:
        """Removes all versions except the newest complete one and later ones."""
        if self._names():
            self._forget(time.time_ns() // 1000)

    def current(self, at_us: int | None = None) -> dict[str, str]:
        """Returns the physical names that differ from the view's name.

        Args:
            at_us: Time, microseconds since 1970, UTC; None for now.
        """
        current = self._current()
        return current.places if at_us is None else current.at(at_us)

    def switch(self, physical_names: Mapping[str, str], *, backwards: bool = False) -> None:
        """Changes the physical names of views, all in one step.

        A caller that reads before it sees all former versions, and a caller that reads after it all
        new ones. If the process is killed, either all or none have changed.

        Args:
            physical_names: Names of the versions, by view.
            backwards: Whether a version may be at an earlier boundary than the one that it
                replaces.

        Raises:
            PlaceUnpublishedError: A physical name has no published version.
            PlaceBehindError: Readers of a view would see an earlier state.
        """
        if self.latest() is None:  # the source may be another project's
            raise PlaceUnpublishedError(
                "no view can be switched: nothing is published yet",
                detail=", ".join(sorted(physical_names.values())),
                hint="retry when its table has reached a boundary: headwater view versions",
            )
        with self._switching():
            current = self._current()
            moved = {
                view: physical_name
                for view, physical_name in physical_names.items()
                if current.places.get(view, view) != physical_name
            }
            if not moved:
                return
            was = {view: current.places.get(view, view) for view in moved}
            self._require_readable(moved, was, backwards=backwards)
            last_us = current.switches[-1].at_us if current.switches else 0
            switch = Switch(max(time.time_ns() // 1000, last_us + 1), was)
            oldest_us = min((each.published_at_us for each in self.all()), default=0)
            known = [each for each in current.switches if each.at_us >= oldest_us]
            made = Current(current.places | moved, [*known, switch])
            _write(self._folder / _CURRENT, msgspec.json.encode(made))

    def withdraw(self, view: str) -> None:
        """Makes a view unreadable, at all times: its tables are about to be deleted.

        Args:
            view: The view; a cutover can activate it again.
        """
        if not self._names():
            return
        with self._switching():
            current = self._current()
            switches = [
                Switch(each.at_us, {name: at for name, at in each.was.items() if name != view})
                for each in current.switches
            ]
            made = Current(current.places | {view: _NO_PLACE}, switches)
            _write(self._folder / _CURRENT, msgspec.json.encode(made))

    def refuse_behind(self, physical_names: Mapping[str, str]) -> None:
        """Raises the errors that `switch` would raise; changes nothing.

        Raises:
            PlaceUnpublishedError: A physical name has no published version.
            PlaceBehindError: Readers of a view would see an earlier state.
        """
        current = self.current()
        was = {view: current.get(view, view) for view in physical_names}
        self._require_readable(physical_names, was, backwards=False)

    def _current(self) -> Current:
        try:
            content = (self._folder / _CURRENT).read_bytes()
        except FileNotFoundError:
            return Current()
        return _CURRENT_FILE.decode(content)

    @contextmanager
    def _switching(self) -> Iterator[None]:
        """Takes the lock under which one process at a time switches physical names."""
        with file_lock.opened(self._folder / _CURRENT_LOCK) as handle:
            file_lock.lock(handle)
            yield

    def _require_readable(
        self, physical_names: Mapping[str, str], was: Mapping[str, str], *, backwards: bool
    ) -> None:
        latest, newest = self.latest(), self.newest()
        for view, physical_name in physical_names.items():
            if latest is None or physical_name not in latest.views:
                raise PlaceUnpublishedError(
                    f"view {view} cannot be switched: the version has no published table",
                    detail=physical_name,
                    hint=("retry when its table has reached a boundary: headwater view versions"),
                )
            # readers of mirrors use the newest version, even before its derived views exist
            for version in filter(None, (latest, newest)):
                old, new = version.views.get(was[view]), version.views.get(physical_name)
                if backwards or old is None or new is None:
                    continue
                if (old.epoch, old.lsn) > (new.epoch, new.lsn):
                    raise PlaceBehindError(
                        f"view {view} would go back to an earlier boundary",
                        detail=f"{was[view]} is at {old.applied_through},"
                        f" {physical_name} at {new.applied_through}",
                        hint="wait until the version has caught up: headwater view status",
                    )

    def beyond(self) -> PendingRecords:
        """Returns the records beyond the newest boundary."""
        path = self._folder / _BEYOND
        content = path.read_bytes() if path.is_file() else None
        return PendingRecords() if content is None else _PENDING.decode(content)

    def waiting_from(self) -> Offsets:
        """Returns the offset of the first waiting record of each partition."""
        first: Offsets = {}
        for topic, records in self.beyond().waiting:
            for record in records:
                partition = topic, record.partition
                first[partition] = min(record.offset, first.get(partition, record.offset))
        return first

    def keep_beyond(self, ahead: UnpublishedProgress, waiting: Iterable[Run] = ()) -> None:
        """Stores the records beyond the boundary, atomically.

        Args:
            ahead: Records that the tables have beyond it, or are about to have.
            waiting: Records that a later batch writes.
        """
        runs = [(topic, [Record._make(each) for each in records]) for topic, records in waiting]
        kept = PendingRecords(ahead, [(topic, records) for topic, records in runs if records])
        _write(self._folder / _BEYOND, msgspec.msgpack.encode(kept))

    def _names(self) -> list[str]:
        """Returns the file names of the versions, the oldest first; called ten times a second."""
        try:
            with os.scandir(self._folder) as entries:
                names = [each.name for each in entries]
        except FileNotFoundError:
            return []
        return sorted(filter(_VERSION.fullmatch, names))

    def _forget(self, before_us: int) -> None:
        """Removes unreadable versions; never the newest, nor the newest complete one."""
        *older, _ = self._names()
        latest = self.latest()
        for path in (self._folder / name for name in older):
            kept = latest is not None and path == self._path(latest.number)
            if kept or _read(path).published_at_us >= before_us:
                return
            path.unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:0{_DIGITS}d}.json"


def _read(path: Path) -> PublishedVersion:
    """Reads a version, with a cache: callers request it once for each of its views."""
    stat = path.stat()
    return _decoded(path, stat.st_ino, stat.st_mtime_ns)


@lru_cache(maxsize=4)
def _decoded(path: Path, inode: int, changed_at_ns: int) -> PublishedVersion:  # noqa: ARG001
    return _VERSIONS.decode(path.read_bytes())


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # several writes a second, about tables whose own files are not synced either
    write_atomically(path, content, durable=False)
