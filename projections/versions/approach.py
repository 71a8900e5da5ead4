"""Approach: how far the job is with a version that it takes over, for whoever waits for that.

What the job takes for a version alone, beside its batches, it writes down as it goes. Where its
queries go back for the version instead, their figures grow; and while the table of one that is
made from others is written, that does. A version that comes nearer in none of these ways, and to no
other store, stands still.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from projections.definition.views import Store

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from projections.planning.job_spec import JobSpec

LOOK_S: Final = 1.0
"""How often files are looked into, however often it is asked."""

_FILE: Final = "takeover.json"


class Taken(NamedTuple):
    """What a version has of its topics in one store.

    Attributes:
        offsets: The sum of the offsets up to which it has the partitions: greater with each record.
        left: About how many records it lacks, when that was looked at.
    """

    offsets: int
    left: int


def note(spec: JobSpec, place: str, taken: Mapping[Store, Taken]) -> None:
    """Writes down what a version has by now; there is one at a time."""
    path = _path(spec)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    stores = {str(store): list(each) for store, each in taken.items()}
    draft.write_bytes(orjson.dumps({"place": place, "stores": stores}))
    draft.replace(path)


def read(spec: JobSpec, place: str) -> dict[Store, Taken]:
    """Returns what was written down of a version last; nothing if that was another one."""
    said = _read(_path(spec))
    if said.get("place") != place:
        return {}
    return {Store(store): Taken(*each) for store, each in said["stores"].items()}


class Approach:
    """Watches one version come nearer.

    Args:
        spec: The job.
        place: The version's place.
    """

    def __init__(self, spec: JobSpec, place: str) -> None:
        self._spec = spec
        self._place = place
        self._moved_at = time.monotonic()
        self._look_at = 0.0
        self._best: dict[Store, int] = {}
        self._seen: object = None
        self._left: dict[Store, int] = {}

    @property
    def still_s(self) -> float:
        """For how long it has come no nearer, seconds."""
        return time.monotonic() - self._moved_at

    def look(self, there: Collection[Store]) -> None:
        """Looks whether it has come nearer.

        Args:
            there: Stores in which it claims a position. What is written to it there is what is
                written to every view, and brings it no nearer to the others.
        """
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_S
        taken = {s: each for s, each in read(self._spec, self._place).items() if s not in there}
        self._left = {store: each.left for store, each in taken.items()}
        moved = False
        for store, each in taken.items():
            # one that begins anew again and again comes no nearer by that
            if each.offsets > self._best.get(store, -1):
                self._best[store] = each.offsets
                moved = True
        seen = sorted(there), self._records(there), self._table_bytes(there)
        if moved or seen != self._seen:
            self._seen = seen
            self._moved_at = time.monotonic()

    def said(self) -> str:
        """What is known of what it lacks, in words; empty if nothing is."""
        return "".join(
            f"; about {left:,} records are left for {store}"
            for store, left in sorted(self._left.items())
            if left
        )

    def _records(self, there: Collection[Store]) -> dict[str, int]:
        """Records of it that the queries of other stores have had since the job started."""
        queries: Mapping[str, Any] = _read(self._spec.status_file).get("queries", {})
        return {
            store: query["views"][self._place]["records"]
            for store, query in queries.items()
            if store not in there and self._place in query.get("views", {})
        }

    def _table_bytes(self, there: Collection[Store]) -> int:
        if Store.TABLE in there:
            return 0
        files = (self._spec.addresses.tables / self._place).rglob("*.parquet")
        return sum(_size(path) for path in files)


def _path(spec: JobSpec) -> Path:
    return spec.home / "run" / _FILE


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # removed meanwhile
        return 0


def _read(path: Path) -> dict[str, Any]:
    try:
        said: dict[str, Any] = orjson.loads(path.read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        return {}
    return said
