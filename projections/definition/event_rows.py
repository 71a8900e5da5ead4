"""EventForm: domain events as typed rows.

Each row is one event: the columns common to all events, then one column for each field of its
class, in the latest version. Fields of several types share a column if they share name and kind. A
field named like a common column gets the prefix `data_`.

A view of an older definition keeps the columns of that definition: a removed field is NULL, and new
fields are excluded.

A personal field has a column that is always NULL: stores of views have no keys and must not contain
data of a forgotten person. Nothing is decrypted here.
"""

from __future__ import annotations

import types
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    NewType,
    Union,
    get_args,
    get_origin,
)
from uuid import UUID

from cdc.table import Column, ColumnKind
from eventstore.errors import EventStoreError, UndeclaredError
from eventstore.model.event import StoredEvent
from eventstore.privacy.personal import Redacted
from eventstore.serialization.registry import EventData, EventTypes
from projections.definition.event_code import digest_of
from projections.errors import EventUnreadableError, PlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from eventstore.serialization.codec import Codec
    from eventstore.serialization.registry import EventType
    from eventstore.serialization.upcasting import Upcaster

ENVELOPE: Final = (
    Column("global_position", ColumnKind.INTEGER, "bigint", nullable=False),
    Column("tenant", ColumnKind.TEXT, "text", nullable=False),
    Column("stream", ColumnKind.TEXT, "text", nullable=False),
    Column("stream_position", ColumnKind.INTEGER, "bigint", nullable=False),
    Column("type", ColumnKind.TEXT, "text", nullable=False),
    Column("event_id", ColumnKind.UUID, "uuid", nullable=False),
    Column("occurred_at", ColumnKind.TIMESTAMPTZ, "timestamp with time zone", nullable=False),
    Column("recorded_at", ColumnKind.TIMESTAMPTZ, "timestamp with time zone", nullable=False),
    Column("correlation_id", ColumnKind.TEXT, "text"),
    Column("causation_id", ColumnKind.TEXT, "text"),
    Column("actor", ColumnKind.TEXT, "text"),
)
"""Columns common to all events, named as in the log."""

STORED: Final = (*(column.name for column in ENVELOPE), "schema_version", "data")
"""Columns of the log that a row is built from."""

KEY: Final = "global_position"
_DATA: Final = "data"
_TAKEN: Final = frozenset(column.name for column in ENVELOPE)

_KINDS: Final[dict[type, tuple[ColumnKind, str]]] = {
    bool: (ColumnKind.BOOLEAN, "boolean"),
    int: (ColumnKind.INTEGER, "bigint"),
    float: (ColumnKind.FLOAT, "double precision"),
    str: (ColumnKind.TEXT, "text"),
    Decimal: (ColumnKind.NUMERIC, "numeric"),  # without declared digits: stored exactly, as text
    datetime: (ColumnKind.TIMESTAMPTZ, "timestamp with time zone"),
    date: (ColumnKind.DATE, "date"),
    time: (ColumnKind.TIME, "time"),
    UUID: (ColumnKind.UUID, "uuid"),
    bytes: (ColumnKind.BYTES, "bytea"),
}
_JSON: Final = (ColumnKind.JSON, "json")


class EventForm:
    """Converts events of some types to rows.

    It is picklable together with classes and upcasters, by reference if their module can be
    imported in the other process.

    Args:
        registry: Where the types are declared.
        names: Names of the types.
        kept: Columns of an older definition, beside the common ones; None for the current columns.

    Raises:
        PlanError: A type is unknown, or two of them disagree on a column.
    """

    def __init__(
        self,
        registry: EventTypes,
        names: Sequence[str],
        kept: Sequence[Column] | None = None,
    ) -> None:
        self.names = frozenset(names)
        self._registry = registry
        try:
            declared = [registry.named(name) for name in names]
        except UndeclaredError as error:
            raise PlanError(error.message, hint=error.hint) from None
        self._fields = {each.name: _columns_of(each) for each in declared}
        own = _merged(self._fields)
        self._kept = None if kept is None or list(kept) == own else tuple(kept)
        self._same = frozenset(column.name for column in kept or () if column in own)
        self.columns = (*ENVELOPE, *(own if self._kept is None else self._kept))
        self._absent = dict.fromkeys(column.name for column in self.columns)
        self._codec: Codec | None = None

    @property
    def unmade(self) -> frozenset[str]:
        """Columns that only an older definition has; stored rows keep their values there."""
        kept = () if self._kept is None else self._kept
        return frozenset(column.name for column in kept) - self._same

    @property
    def code(self) -> str:
        """Returns a digest of the code that makes rows, as this process has imported it."""
        declared = [self._registry.named(name) for name in sorted(self.names)]
        upcasters = (one for each in declared for one in _upcasters(self._registry, each))
        return digest_of([each.cls for each in declared] + [one.function for one in upcasters])

    def __reduce__(self) -> tuple[object, ...]:
        declared = [self._registry.named(name) for name in sorted(self.names)]
        parts = [(each.name, each.version, each.cls, each.subject) for each in declared]
        upcasters = [_upcasters(self._registry, each) for each in declared]
        return _rebuilt, (parts, upcasters, self._kept)

    def row(self, stored: Mapping[str, Any]) -> dict[str, object]:
        """Returns the row of an event.

        Args:
            stored: The event's columns in the log, by name, as exact values; at least `STORED`.

        Raises:
            EventUnreadableError: The declarations of this program cannot read the event.
        """
        row: dict[str, object] = self._absent | {
            column.name: stored[column.name] for column in ENVELOPE
        }
        event = self._decoded(stored)
        if isinstance(event, EventData):
            self._put(row, _DATA, _json(event.data))
            return row
        for field, column, convert in self._fields[stored["type"]]:
            value = getattr(event, field)
            if value is not None and not isinstance(value, Redacted) and convert is not None:
                self._put(row, column.name, convert(value))
        return row

    def _put(self, row: dict[str, object], name: str, value: object) -> None:
        if self._kept is None or name in self._same:
            row[name] = value

    def _decoded(self, stored: Mapping[str, Any]) -> Any:
        if self._codec is None:
            from eventstore.serialization.codec import Codec  # noqa: PLC0415  # loads cryptography

            no_keys: Any = _NoKeys()  # decoding needs no other method of it
            self._codec = Codec(self._registry, no_keys)
        try:
            return self._codec.decode(_stored_event(stored))
        except EventStoreError as error:
            raise EventUnreadableError(
                error.message, detail=f"{error.code} {error.detail or ''}".strip(), hint=error.hint
            ) from None


class _NoKeys:
    """A key ring without keys: personal fields are redacted, and never decrypted."""

    def key_of(
        self, tenant: str, subject: str, *, create: bool = False, generation: int = 1
    ) -> None:
        del tenant, subject, create, generation


def _rebuilt(
    parts: Iterable[tuple[str, int, type, str | None]],
    upcasters: Iterable[Iterable[Upcaster]],
    kept: Sequence[Column] | None,
) -> EventForm:
    registry, names = EventTypes(), []
    for name, version, cls, subject in parts:
        names.append(name)
        if cls is EventData:
            registry.untyped(name, version=version)
        else:
            registry.event(name, version=version, subject=subject)(cls)
    for of_type in upcasters:
        for one in of_type:
            registry.upcaster(one.type, one.from_version, personal=one.personal)(one.function)
    return EventForm(registry, names, kept)


def _upcasters(registry: EventTypes, declared: EventType) -> tuple[Upcaster, ...]:
    """Returns the longest chain of upcasters to the latest version; older events are refused."""
    longest: tuple[Upcaster, ...] = ()
    for version in range(declared.version - 1, 0, -1):
        try:
            longest = registry.path(declared.name, version)
        except UndeclaredError:
            break
    return longest


def _stored_event(stored: Mapping[str, Any]) -> StoredEvent:
    return StoredEvent(
        stored["global_position"],
        stored["tenant"],
        stored["stream"],
        stored["stream_position"],
        stored["type"],
        stored["schema_version"],
        UUID(stored["event_id"]),
        stored[_DATA].encode(),
        None,
        None,
        stored["correlation_id"],
        stored["causation_id"],
        stored["actor"],
        stored["occurred_at"],
        stored["recorded_at"],
    )


_Field = tuple[str, Column, Any]


def _columns_of(declared: EventType) -> tuple[_Field, ...]:
    if declared.cls is EventData:
        return ((_DATA, Column(_DATA, *_JSON), _json),)
    return tuple(_field(declared, name, hint) for name, hint in declared.fields.items())


def _field(declared: EventType, name: str, hint: Any) -> _Field:
    personal = name in declared.personal
    kind, type_name, convert = _kind_of(declared.personal[name] if personal else hint)
    column = Column(f"data_{name}" if name in _TAKEN else name, kind, type_name)
    return name, column, None if personal else convert


def _merged(fields: Mapping[str, Iterable[_Field]]) -> list[Column]:
    by_name: dict[str, tuple[str, Column]] = {}
    for type_name, columns in fields.items():
        for _, column, _ in columns:
            other, seen = by_name.setdefault(column.name, (type_name, column))
            if seen != column:
                raise PlanError(
                    (
                        f"event types {other} and {type_name} have different types for column "
                        f"{column.name}"
                    ),
                    detail=f"{seen.type_name} and {column.type_name}",
                    hint="declare a view for each of them",
                )
            if other == type_name and seen is not column:
                raise PlanError(f"event type {type_name} has two fields for column {column.name}")
    return [column for _, column in by_name.values()]


def _kind_of(hint: Any) -> tuple[ColumnKind, str, Callable[[Any], object]]:
    """Returns kind and type of a field's column, and the function that converts its values."""
    plain = _plain(hint)
    if get_origin(plain) is Literal and {str} == {type(value) for value in get_args(plain)}:
        plain = str
    if isinstance(plain, type) and issubclass(plain, Enum):
        members = {type(member.value) for member in plain}
        if len(members) == 1 and (value_type := members.pop()) in (str, int):
            return *_KINDS[value_type], lambda member: member.value
    if plain is datetime:
        return *_KINDS[datetime], lambda moment: moment.astimezone(UTC)
    if plain is timedelta:
        return ColumnKind.TEXT, "text", _text_of_json
    if plain is UUID:
        return *_KINDS[UUID], str
    if isinstance(plain, type) and plain in _KINDS:
        return *_KINDS[plain], _same
    return *_JSON, _json


def _plain(hint: Any) -> Any:
    """Returns a type hint without `Annotated`, `NewType` and `| None`."""
    while True:
        if get_origin(hint) is Annotated:
            hint = get_args(hint)[0]
        elif isinstance(hint, NewType):
            hint = hint.__supertype__
        elif get_origin(hint) in (Union, types.UnionType):
            members = [each for each in get_args(hint) if each is not type(None)]
            if len(members) != 1:
                return hint
            hint = members[0]
        else:
            return hint


def _same(value: object) -> object:
    return value


def _json(value: object) -> str:
    from eventstore.serialization.wire import encoded  # noqa: PLC0415

    return encoded(value).decode()


def _text_of_json(value: object) -> str:
    return _json(value).strip('"')
