"""Whether this program can read the whole log: every upcaster and every class, on every event."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from eventstore.errors import EventStoreError, StoreUnavailableError, UndeclaredError

if TYPE_CHECKING:
    from eventstore.log import EventLog
    from eventstore.model.event import StoredEvent
    from eventstore.serialization.codec import Codec

FIRST_MAX: Final = 10
"""Positions that are named for each type and version; the count goes on."""


class Verdict(StrEnum):
    """What can be said of the events of one type and version.

    | verdict | meaning |
    |---|---|
    | readable | every one was read |
    | failing | some were not |
    | unknown | the type is not declared |
    | newer | the version is newer than this program's |
    """

    READABLE = "readable"
    FAILING = "failing"
    UNKNOWN = "unknown"
    NEWER = "newer"


@dataclass(slots=True)
class VersionReport:
    """What was found in the events of one type and version.

    Attributes:
        type: Name of the event type.
        version: Version that they are stored in.
        events: How many there are.
        failures: How many of them could not be read.
        first_failed: Global positions of the first of these.
        codes: How often each error came, by its code.
        verdict: What can be said of them.
        example: The first error's own words; never a payload.
    """

    type: str
    version: int
    events: int = 0
    failures: int = 0
    first_failed: list[int] = field(default_factory=list)
    codes: Counter[str] = field(default_factory=Counter)
    verdict: Verdict = Verdict.READABLE
    example: str = ""


@dataclass(frozen=True, slots=True)
class UpcastReport:
    """What a check of the log found.

    Attributes:
        versions: For each type and version in the log, by name.
        undeclared: What is wrong with the declarations themselves; see `EventTypes.check`.
        events: How many events were read.
        through: Global position of the last one; 0 if there is none.
    """

    versions: tuple[VersionReport, ...]
    undeclared: tuple[str, ...]
    events: int
    through: int

    @property
    def ok(self) -> bool:
        """Whether every event of the log can be read."""
        return all(found.verdict is Verdict.READABLE for found in self.versions)


def check_log(log: EventLog, codec: Codec, tenant: str | None = None) -> UpcastReport:
    """Reads every original event of a log as its class, and goes on where one fails.

    Args:
        log: The log.
        codec: Reads the events; with the key ring, if some have personal fields.
        tenant: Whose events; None for all, where the role may see them.

    Raises:
        StoreUnavailableError: The log or the key ring did not answer.
    """
    found: dict[tuple[str, int], VersionReport] = {}
    events = through = 0
    for stored in log.read_log(tenant):
        if stored.system:
            continue
        events += 1
        through = stored.global_position
        kind = stored.type, stored.schema_version
        if kind not in found:
            found[kind] = VersionReport(*kind)
        _look_at(stored, codec, found[kind])
    versions = tuple(found[kind] for kind in sorted(found))
    return UpcastReport(versions, tuple(codec.types.check()), events, through)


def _look_at(stored: StoredEvent, codec: Codec, report: VersionReport) -> None:
    report.events += 1
    try:
        codec.decode(stored)
    except StoreUnavailableError:
        raise  # of the key ring: it says nothing about the event
    except EventStoreError as error:
        report.failures += 1
        report.codes[error.code] += 1
        report.verdict = _verdict(error, stored, codec)
        if len(report.first_failed) < FIRST_MAX:
            report.first_failed.append(stored.global_position)
        if not report.example:
            report.example = "; ".join(filter(None, (error.message, error.detail)))


def _verdict(error: EventStoreError, stored: StoredEvent, codec: Codec) -> Verdict:
    if not isinstance(error, UndeclaredError):
        return Verdict.FAILING
    if stored.type not in codec.types:
        return Verdict.UNKNOWN
    newer = stored.schema_version > codec.types.named(stored.type).version
    return Verdict.NEWER if newer else Verdict.FAILING
