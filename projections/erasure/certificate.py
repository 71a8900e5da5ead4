"""Certificate: the erased data of a key by place, and how the result was checked."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from foundation.atomic_file import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

BEYOND_REACH: Final = (
    "the source's own files: dead rows until VACUUM, its write-ahead log until it is recycled",
    "backups and copies of the source, of topics and of stores",
    "copies that consumers of topics keep in their own stores",
)
"""Copies that the erasure cannot reach; their owners must erase them."""

_UNFIT: Final = re.compile(r"[^A-Za-z0-9_.@-]")
_NAME_MAX: Final = 100


class Erased(msgspec.Struct, frozen=True):
    """The result for one place.

    Attributes:
        place: The place: archive, topic, a view in a store, and so on.
        what: The erased items, such as `records`.
        count: Number of erased items.
        complete: Whether nothing is left on disk, as far as the place reports that.
    """

    place: str
    what: str
    count: int
    complete: bool = True


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a completed erasure.

    Attributes:
        source: Name of the source.
        subject: The table of the keys, or the person of the event store.
        keys: The named keys.
        former_keys: Number of other keys that their rows had before.
        through: Log position; later changes stay.
        begun_at: When it was requested, ISO 8601, UTC.
        ended_at: When it was completed.
        erased: The result for each place.
        values_searched: Number of values that only the erased records had, searched for afterwards.
        files_searched: Number of files searched.
        bytes_searched: Size of those files.
        found_in: Files that still have one of the values, below the home folder.
        beyond_reach: Copies that the erasure cannot reach.
        searched_in: The places searched.
    """

    source: str
    subject: str
    keys: list[str]
    former_keys: int
    through: str
    begun_at: str
    ended_at: str
    erased: list[Erased]
    values_searched: int
    files_searched: int
    bytes_searched: int
    found_in: list[str]
    beyond_reach: tuple[str, ...] = BEYOND_REACH
    searched_in: tuple[str, ...] = ("files of the home, but those of a local source",)

    @property
    def complete(self) -> bool:
        """Returns whether every place is complete and the search matched no value."""
        return not self.found_in and all(each.complete for each in self.erased)


def now() -> str:
    """Returns the time in the form of a certificate."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def keep(certificate: Certificate, folder: Path) -> Path:
    """Writes a certificate to its own file; returns the path."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    time = certificate.ended_at.replace(":", "").replace("-", "").partition("+")[0]
    # a person's name can be any text, a file name cannot
    name = f"{time}-{_UNFIT.sub('_', certificate.subject)[:_NAME_MAX]}"
    path = folder / f"{name}.json"
    number = 1
    while path.exists():
        number += 1
        path = folder / f"{name}-{number}.json"
    write_atomically(
        path, msgspec.json.format(msgspec.json.encode(certificate), indent=2), mode=0o600
    )
    return path
