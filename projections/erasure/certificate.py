"""Certificate: what was erased of a key and where, and how it was looked for afterwards."""

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
    "what consumers of topics keep in stores of their own",
)
"""What no erasure from here reaches; whoever keeps it has to see to it."""

_UNFIT: Final = re.compile(r"[^A-Za-z0-9_.@-]")
_NAME_MAX: Final = 100


class Erased(msgspec.Struct, frozen=True):
    """What became of one place.

    Attributes:
        place: The place: archive, topic, a view in a store, and so on.
        what: What was erased there.
        count: How many of it there were.
        complete: Whether nothing of it is left on disk, as far as the place tells.
    """

    place: str
    what: str
    count: int
    complete: bool = True


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an erasure.

    Attributes:
        source: Name of the source.
        subject: What was forgotten: the table, or the person of the event store.
        keys: Keys that were named.
        former_keys: How many other keys their rows had before.
        through: Position in the source's log: what it has written since stays.
        begun_at: When it was asked, ISO 8601, UTC.
        ended_at: When it was done.
        erased: What was erased where.
        values_searched: Values that only the erased records had, looked for afterwards.
        files_searched: Files that were looked through.
        bytes_searched: Their bytes.
        found_in: Files that still have one of the values, below the home folder.
        beyond_reach: What an erasure cannot reach.
        searched_in: Where the values were looked for.
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
        """Whether every place is done and no value was found again."""
        return not self.found_in and all(each.complete for each in self.erased)


def now() -> str:
    """Returns the time as a certificate tells it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def keep(certificate: Certificate, folder: Path) -> Path:
    """Writes a certificate to a file of its own; returns which."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    time = certificate.ended_at.replace(":", "").replace("-", "").partition("+")[0]
    # a person may be named by any text, a file may not
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
