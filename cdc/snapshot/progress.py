"""Progress of a snapshot in each key range, as stored in the source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class KeyRange:
    """A range of keys, and how far it has been read; keys are texts that Postgres parses.

    Attributes:
        above: Exclusive lower bound; None for none.
        through: Inclusive upper bound; None for none.
        at: The last key whose row is in the topic; None before the first. For a list of keys: the
            number of keys read, as text.
        done: Whether all of its rows are in the topic.
    """

    above: tuple[str, ...] | None = None
    through: tuple[str, ...] | None = None
    at: tuple[str, ...] | None = None
    done: bool = False

    def reached(self, at: tuple[str, ...] | None, *, done: bool) -> KeyRange:
        """Returns the range with more progress."""
        return replace(self, at=at or self.at, done=done)

    def to_json(self) -> dict[str, Any]:
        """Returns the form in which it is kept."""
        return {"above": self.above, "through": self.through, "at": self.at, "done": self.done}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> KeyRange:
        """Reads the form in which it is kept."""
        above, through, at = (_key(kept[name]) for name in ("above", "through", "at"))
        return cls(above, through, at, bool(kept["done"]))


@dataclass(frozen=True, slots=True)
class SnapshotProgress:
    """The progress of a snapshot.

    Attributes:
        identity: Identity of the table when the snapshot began; see `TableFacts`.
        shape: Name and type of the columns to read.
        ranges: Its ranges.
    """

    identity: str
    shape: tuple[tuple[str, str], ...]
    ranges: tuple[KeyRange, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the form in which it is kept."""
        ranges = [part.to_json() for part in self.ranges]
        return {"identity": self.identity, "shape": self.shape, "ranges": ranges}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> SnapshotProgress:
        """Reads the form in which it is kept."""
        shape = tuple((name, type_name) for name, type_name in kept["shape"])
        return cls(kept["identity"], shape, tuple(map(KeyRange.from_json, kept["ranges"])))


def _key(kept: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if kept is None else tuple(kept)
