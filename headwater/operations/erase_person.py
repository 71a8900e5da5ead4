"""Shredding: a person's key goes, and a certificate stays, with a search for what only it had.

Before the key goes, the log is read for values that only this person's fields have; they are in
memory until the search is done, and nowhere else. Then all files of the home are looked through for
them, and the log itself: a program may have written them where nothing is sealed.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
import psycopg

from eventstore.errors import EventStoreError
from eventstore.postgres.log import PostgresEventLog
from eventstore.privacy.sealing import EventAddress, open_field
from headwater.operations.events import open_ring
from projections.common.scratch_dir import remove_abandoned
from projections.erasure.canaries import COUNT_MAX, LENGTH_MIN
from projections.erasure.certificate import Certificate, Erased, keep, now
from projections.erasure.file_search import Searched, search_files

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from eventstore.model.event import StoredEvent
    from eventstore.privacy.keyring import KeyRing
    from headwater.platform.database import Database

BEYOND_REACH: Final = (
    "the write-ahead log of the keys' database until it is recycled, and backups of it",
    "memory of other processes, for a minute",
    "what readers of events keep in stores of their own",
)
"""What the destruction of a key does not reach; whoever keeps it has to see to it."""

_SEALED: Final = b'"$sealed"'
_EVENTS_NAMED: Final = 20
_STATES: Final = (
    "SELECT count(*) FROM eventstore.snapshots WHERE tenant = %s AND %s = ANY (subjects)"
)
_decode_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_any: Final = msgspec.json.decode


class _FieldSubject(msgspec.Struct):
    """The subject of an encrypted field."""

    subject: str


_decode_subject: Final = msgspec.json.Decoder(_FieldSubject).decode


@dataclass(slots=True)
class PersonFindings:
    """What the log knows of a person.

    Attributes:
        fields: How many fields are sealed by keys of the person's.
        texts: Values that only these fields have.
        events: Events that have one of them where nothing is sealed, by their global positions.
        unread: Why the log, or some of it, could not be looked at; empty where all of it was.
    """

    fields: int = 0
    texts: frozenset[str] = frozenset()
    events: list[int] = field(default_factory=list)
    unread: str = ""


@dataclass(frozen=True, slots=True)
class ShreddedKey:
    """What became of a person's key.

    Attributes:
        had_key: Whether there was one.
        certificate: What was erased, and what was found afterwards.
        path: Where the certificate is kept.
    """

    had_key: bool
    certificate: Certificate
    path: Path


def shred(
    database: Database, tenant: str, subject: str, home: Path, texts: Collection[str] = ()
) -> ShreddedKey:
    """Destroys a person's key and looks for what was sealed by it.

    After a kill, run it again; then no values are known to search for.

    Args:
        database: The event store, and where keys are.
        tenant: Whose person.
        subject: The person.
        home: Folder whose files are searched; it need not be there.
        texts: What no file may have, besides values of the person's own fields.

    Raises:
        EventStoreError: The key cannot be destroyed.
    """
    begun_at = now()
    with open_ring(database) as ring:
        master = database.settings.master_key_file is not None
        known = _known(database, _Person(tenant, subject, ring if master else None))
        states = _states(database, tenant, subject)
        had = ring.shred(tenant, subject)
        vacuumed = ring.vacuum()
    left = _states(database, tenant, subject)
    erased = [
        Erased("key ring", "keys", int(had)),
        Erased("key ring", "dead rows", 0, complete=vacuumed),
        Erased("events", "fields sealed by a key that is gone", known.fields),
    ]
    if states is not None and left is not None:
        erased.append(Erased("saved states", "states sealed by it", states - left))
    remove_abandoned()
    wanted = sorted({*texts, *known.texts})
    searched = search_files(home, wanted) if wanted else Searched()
    certificate = Certificate(
        source="events",
        subject=subject,
        keys=[],
        former_keys=0,
        through="",
        begun_at=begun_at,
        ended_at=now(),
        erased=erased,
        values_searched=len(wanted),
        files_searched=searched.files,
        bytes_searched=searched.size_bytes,
        found_in=[*searched.matching_files, *(f"event {number}" for number in known.events)],
        beyond_reach=(*BEYOND_REACH, *_not_searched(known, searched, wanted, master=master)),
        searched_in=_searched_in(home, known, wanted),
    )
    return ShreddedKey(had, certificate, keep(certificate, home / "certificates"))


def _searched_in(home: Path, known: PersonFindings, wanted: list[str]) -> tuple[str, ...]:
    log = ("the log of events, where nothing is sealed",) if known.texts else ()
    return (*log, f"files of {home}") if wanted and home.is_dir() else log


def _not_searched(
    known: PersonFindings, searched: Searched, wanted: list[str], *, master: bool
) -> Iterator[str]:
    if known.unread:
        yield f"the log of events was not read: {known.unread}"
    if not master:
        yield "values of the person: no master key is named that opens them, so none was looked for"
    elif not wanted:
        yield "values of the person: none is the person's alone, so none was looked for"
    if searched.unread:
        yield f"columns of {searched.unread} Parquet files, whose reader is not installed"


def _states(database: Database, tenant: str, subject: str) -> int | None:
    """How many saved states a person's key has sealed; None for a role that may not see them."""
    try:
        with psycopg.connect(database.dsn) as connection:  # one transaction, as a pooler needs it
            connection.execute("SELECT set_config('eventstore.tenant', %s, true)", (tenant,))
            row = connection.execute(_STATES, (tenant, subject)).fetchone()
    except psycopg.Error:
        return None
    return None if row is None else int(row[0])


def _known(database: Database, person: _Person) -> PersonFindings:
    """Reads the log for what it has of a person."""
    known = PersonFindings()
    log = PostgresEventLog(database.dsn)
    try:
        own: set[str] = set()
        for stored in log.read_log(person.tenant):
            for values in person.sealed(stored, others=False):
                known.fields += 1
                own.update(values)
        own = {each for each in own if len(each) >= LENGTH_MIN and each not in person.subject}
        if own:
            _apart(log, person, known, _longest(own, 4 * COUNT_MAX))
    except EventStoreError as error:
        # a role may destroy keys without seeing events
        known.unread = error.code
    finally:
        log.close()
    return known


def _apart(log: PostgresEventLog, person: _Person, known: PersonFindings, left: set[str]) -> None:
    """Keeps the values that no event about others has, and names events that tell one."""
    told = defaultdict[str, list[int]](list)
    for stored in log.read_log(person.tenant):
        plain = list(_plain(stored))
        theirs = [each for values in person.sealed(stored, others=True) for each in values]
        if theirs:
            left -= {each for each in left if any(each in value for value in (*theirs, *plain))}
            continue
        for each in left:
            if any(each in value for value in plain):
                told[each].append(stored.global_position)
    known.texts = frozenset(_longest(left, COUNT_MAX))
    named = {number for each in known.texts for number in told[each]}
    known.events = sorted(named)[:_EVENTS_NAMED]


def _longest(texts: set[str], count: int) -> set[str]:
    return set(sorted(texts, key=lambda each: (-len(each), each))[:count])


@dataclass(frozen=True, slots=True)
class _Person:
    """A subject, and the keys; without a key ring, no field is decrypted."""

    tenant: str
    subject: str
    ring: KeyRing | None

    def sealed(self, stored: StoredEvent, *, others: bool) -> Iterator[list[str]]:
        """Yields the texts of each field that is sealed by a key of the person's, or of others'."""
        if _SEALED not in stored.data:
            return
        place = EventAddress(stored.tenant, stored.stream, stored.stream_position, stored.type)
        for name, raw in _fields(stored).items():
            whose = _whose(bytes(raw))
            if whose is not None and (whose != self.subject) is others:
                yield list(_texts(self._opened(bytes(raw), place, name)))

    def _opened(self, box: bytes, place: EventAddress, name: str) -> Any:
        if self.ring is None:
            return None
        try:
            opened = open_field(box, self.ring, place, name)
        except EventStoreError:  # altered, or by a key that nobody has: it opens nowhere
            return None
        return _decode_any(opened) if isinstance(opened, bytes) else None


def _plain(stored: StoredEvent) -> Iterator[str]:
    """Yields the texts of an event that are not sealed."""
    for raw in _fields(stored).values():
        if _whose(bytes(raw)) is None:
            yield from _texts(_decode_any(raw))
    if stored.metadata is not None:
        yield from _texts(_decode_any(stored.metadata))


def _fields(stored: StoredEvent) -> dict[str, msgspec.Raw]:
    try:
        return _decode_fields(stored.data)
    except msgspec.DecodeError:
        return {}


def _whose(box: bytes) -> str | None:
    """The person whom a sealed field is about; None of one that is not sealed."""
    if _SEALED not in box:
        return None
    try:
        return _decode_subject(box).subject
    except msgspec.DecodeError:
        return None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
