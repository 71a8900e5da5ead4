"""Published versions: which version of each view's table belongs to which boundary.

A table's newest version may have half a transaction. Which versions of a source's tables make one
state of it is written beside them, a file for each boundary: whoever reads the tables at those
versions sees whole transactions, of all views at the same position. A file appears whole or not at
all, is changed once at most, when views that are made from others have come there, and goes when
the tables no longer keep what it names.
"""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import structs

from cdc.lsn import Lsn
from projections.boundary import Ahead
from projections.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from projections.boundary import Run

KEPT_HOURS: Final = 1
"""How long a published version can be read, and so a replaced file stays."""

_FOLDER: Final = ".published"
_BEYOND: Final = "beyond.msgpack"
_DIGITS: Final = 12
_VERSION: Final = re.compile(rf"[0-9]{{{_DIGITS}}}\.json")
_US_PER_HOUR: Final = 3_600_000_000


class TableVersion(msgspec.Struct, frozen=True):
    """A view's table at a boundary.

    Attributes:
        version: Version of its Delta table.
        epoch: Incarnation of the source.
        lsn: The boundary at which the table stands, in bytes: the published one's own, or an
            earlier one while the view's table is being read again.
        made_from: Of a view that is made from others, the versions of their tables.
        query: Of such a view, what tells its query from another.
    """

    version: int
    epoch: int
    lsn: int
    made_from: dict[str, int] = {}
    query: str = ""

    @property
    def applied_through(self) -> Lsn:
        """Everything committed up to here is in the table, and nothing that was later."""
        return Lsn(self.lsn)


class PublishedVersion(msgspec.Struct, frozen=True):
    """The tables of a source's views at one boundary.

    Attributes:
        number: Its number, from 1.
        epoch: Incarnation of the source.
        lsn: The boundary, in bytes.
        published_at_us: When the tables had come there, microseconds since 1970, UTC.
        views: Their versions, by view.
        complete: Whether the views that are made from others are there, too.
    """

    number: int
    epoch: int
    lsn: int
    published_at_us: int
    views: dict[str, TableVersion]
    complete: bool = True

    @property
    def applied_through(self) -> Lsn:
        """The boundary."""
        return Lsn(self.lsn)


class Beyond(msgspec.Struct, frozen=True):
    """What lies beyond a boundary.

    Attributes:
        ahead: What the tables have of it.
        waiting: Records that wait for a later boundary, by topic.
    """

    ahead: Ahead = Ahead()
    waiting: list[tuple[str, list[Record]]] = []


def sources(tables: Path) -> list[Published]:
    """Returns the published versions of each source that has begun to publish any.

    Args:
        tables: Folder of the tables.
    """
    folders = sorted((tables / _FOLDER).glob("*")) if tables.is_dir() else []
    return [Published(tables, folder.name) for folder in folders if folder.is_dir()]


def promised(tables: Path, view: str) -> list[int]:
    """Returns the versions of a view's table that have to stay readable, however old they are.

    Those are what readers get now, what is about to be made readable, and what the views that are
    made from this one compare with next.

    Args:
        tables: Folder of the tables.
        view: Name of the view.
    """
    found: set[int] = set()
    for group in sources(tables):
        for version in (group.latest(), group.newest()):
            if version is None:
                continue
            if view in version.views:
                found.add(version.views[view].version)
            made = (table.made_from.get(view) for table in version.views.values())
            found.update(number for number in made if number is not None)
    return sorted(found)


class Published:
    """The published versions of one source.

    Args:
        tables: Folder of the tables.
        source: Name of the source.
    """

    def __init__(self, tables: Path, source: str) -> None:
        self._folder = tables / _FOLDER / source

    @property
    def folder(self) -> Path:
        """Where the versions are."""
        return self._folder

    def begin(self) -> None:
        """Says that the tables are to be read by published versions only, also before the first."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def latest(self) -> PublishedVersion | None:
        """Returns the newest complete one; None if nothing was ever published."""
        found = (_read(self._folder / name) for name in reversed(self._names()))
        return next((version for version in found if version.complete), None)

    def newest(self) -> PublishedVersion | None:
        """Returns the newest one, complete or not."""
        names = self._names()
        return _read(self._folder / names[-1]) if names else None

    def all(self) -> list[PublishedVersion]:
        """Returns those that can be read, the oldest first."""
        found = (_read(self._folder / name) for name in self._names())
        return [version for version in found if version.complete]

    def complete(self, version: PublishedVersion, derived: Mapping[str, TableVersion]) -> None:
        """Makes a version readable, with the views that are made from its own.

        Args:
            version: A version that was not.
            derived: Those views' tables.
        """
        made = structs.replace(version, views=version.views | dict(derived), complete=True)
        _write(self._path(version.number), msgspec.json.encode(made))

    def publish(
        self, epoch: int, lsn: int, versions: Mapping[str, int], *, complete: bool = True
    ) -> PublishedVersion | None:
        """Publishes a boundary; one that is not after the newest changes nothing.

        Args:
            epoch: Incarnation of the source.
            lsn: The boundary, in bytes.
            versions: Of each view that is whole there, the version of its table; those of others
                stay as they were published last.
            complete: Whether it can be read at once; else views are to be made from its own.

        Returns:
            It; None if it is not after the newest.
        """
        before = self.newest()
        there = {view: TableVersion(version, epoch, lsn) for view, version in versions.items()}
        views, number = there, 1
        if before is not None:
            if (epoch, lsn) <= (before.epoch, before.lsn):
                return None
            views, number = before.views | there, before.number + 1
        made = PublishedVersion(number, epoch, lsn, time.time_ns() // 1000, views, complete)
        _write(self._path(number), msgspec.json.encode(made))
        self._forget(made.published_at_us - KEPT_HOURS * _US_PER_HOUR)
        return made

    def beyond(self) -> Beyond:
        """Returns what lies beyond the newest boundary."""
        path = self._folder / _BEYOND
        return (
            msgspec.msgpack.decode(path.read_bytes(), type=Beyond) if path.is_file() else Beyond()
        )

    def keep_beyond(self, ahead: Ahead, waiting: Iterable[Run] = ()) -> None:
        """Keeps what lies beyond the boundary, whole or not at all.

        Args:
            ahead: What the tables have beyond it, or are about to have.
            waiting: Records that they are to have later.
        """
        runs = [(topic, [Record._make(each) for each in records]) for topic, records in waiting]
        kept = Beyond(ahead, [(topic, records) for topic, records in runs if records])
        _write(self._folder / _BEYOND, msgspec.msgpack.encode(kept))

    def _names(self) -> list[str]:
        """Names of the versions' files, the oldest first; asked for ten times a second."""
        try:
            with os.scandir(self._folder) as found:
                names = [each.name for each in found]
        except FileNotFoundError:
            return []
        return sorted(filter(_VERSION.fullmatch, names))

    def _forget(self, before_us: int) -> None:
        """Removes what nobody can read any more; never the newest, nor the newest complete one."""
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
    return msgspec.json.decode(path.read_bytes(), type=PublishedVersion)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_bytes(content)
    draft.replace(path)
