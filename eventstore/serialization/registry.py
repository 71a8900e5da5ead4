"""EventTypes: the declared event types, each with name, version and class.

    @event("order.placed", version=2, tags=lambda placed: [f"customer:{placed.customer_id}"])
    class OrderPlaced:
        order_id: str
        customer_id: str
        total: Decimal

If the class is not a dataclass, it becomes a frozen one. Declare an event in the module that
defines its class; the types of its fields must be defined before it.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, ClassVar, Final, TypeVar, dataclass_transform

import msgspec

from eventstore.errors import UndeclaredError, WrongKindError
from eventstore.model.callables import check_function
from eventstore.model.names import check_type
from eventstore.privacy.personal import personal_types
from eventstore.privacy.personal_tags import PersonalTag
from eventstore.serialization.upcasting import Upcast, Upcaster

VERSION_MAX: Final = 2**15 - 1
"""Largest value of the database column."""

Tags = Callable[[Any], Iterable[str | PersonalTag]]
_C = TypeVar("_C")
_F = TypeVar("_F", bound=Upcast)


@dataclass(frozen=True, slots=True)
class EventData:
    """An event without a class: its payload is a dict of JSON values.

    Attributes:
        type: Name of its type.
        data: Payload.
        version: Version of the type that the payload is in.
    """

    type: str
    data: dict[str, Any]
    version: int = 1


@dataclass(frozen=True, slots=True)
class EventType:
    """A declared event type.

    Attributes:
        name: Name, such as `order.placed`.
        version: Latest version, with which events are written.
        cls: Class of decoded events; `EventData` for a type without a class.
        subject: Field with the id of the person whose data the personal fields contain.
        tags: Returns the tags of an event.
        public: Whether its events are also published as integration events.
        fields: Type of each field.
        personal: `T` of each field that is `Personal[T]`.
    """

    name: str
    version: int
    cls: type
    subject: str | None = None
    tags: Tags | None = None
    public: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict, repr=False)
    personal: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def personal_fields(self) -> tuple[str, ...]:
        """Names of its personal fields."""
        return tuple(self.personal)


class EventTypes:
    """A registry of event types and upcasters.

    Threads: declare types while modules are imported; lookups are thread-safe.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, EventType] = {}
        self._by_class: dict[type, EventType] = {}
        self._upcasters: dict[tuple[str, int], Upcaster] = {}

    def __iter__(self) -> typing.Iterator[EventType]:
        return iter(tuple(self._by_name.values()))

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    @dataclass_transform(frozen_default=True)
    def event(
        self,
        name: str,
        *,
        version: int = 1,
        subject: str | None = None,
        tags: Tags | None = None,
        public: bool = False,
    ) -> Callable[[type[_C]], type[_C]]:
        """Declares a class as an event type.

        mypy recognizes a dataclass if the module function `event` is used. With this method, add
        `@dataclass(frozen=True)` below it.

        Args:
            name: Name, such as `order.placed`; it is stored and never changes.
            version: Increment it with each change of the payload that needs an upcaster.
            subject: Field with the id of the person whose data the personal fields contain.
            tags: Takes an event and returns its tags. Tags are never encrypted: use `personal_tag`
                for a personal value.
            public: Whether its events are also published as integration events.

        Raises:
            NameRefusedError: The name is invalid.
            UndeclaredError: The declaration contradicts itself or another one, the class cannot be
                a dataclass, or it has fields whose types JSON cannot distinguish.
        """

        def declare(cls: type[_C]) -> type[_C]:
            made = _as_dataclass(name, cls)
            fields = _fields_of(name, made, sys._getframe(1).f_locals)  # noqa: SLF001
            personal = MappingProxyType(personal_types(name, fields))
            _check_subject(name, subject, fields, personal)
            _check_storable(name, {**fields, **personal})
            self._add(EventType(name, version, made, subject, tags, public, fields, personal))
            if "upcast" not in fields:
                made.upcast = _upcast_of(self, made)  # type: ignore[attr-defined]
            return made

        _check_version(check_type(name), version)
        if tags is not None:
            check_function(f"tags of event {name}", tags)
        return declare

    def untyped(self, name: str, *, version: int = 1, public: bool = False) -> EventType:
        """Declares an event type without a class, written and read as `EventData`.

        Raises:
            NameRefusedError: The name is invalid.
            UndeclaredError: The name is already declared.
        """
        _check_version(check_type(name), version)
        return self._add(EventType(name, version, EventData, public=public))

    def upcaster(
        self, name: str, from_version: int, *, personal: Iterable[str] | None = None
    ) -> Callable[[_F], _F]:
        """Declares the upcaster from one version of a type to the next.

        Args:
            name: The event type.
            from_version: The version that the function takes; it returns the next.
            personal: Sealed fields of `from_version`, if they differ from those of the next
                version.

        Raises:
            UndeclaredError: An upcaster from this version is already declared.
            WrongKindError: The function is async, or the fields are one str.
        """
        _check_version(check_type(name), from_version)
        sealed = None if personal is None else _field_names(name, personal)

        def declare(function: _F) -> _F:
            check_function(f"the upcaster from version {from_version} of {name}", function)
            if (name, from_version) in self._upcasters:
                raise UndeclaredError(
                    f"two upcasters convert version {from_version} of {name}",
                    hint="versions form one chain: 1 to 2, 2 to 3",
                )
            self._upcasters[name, from_version] = Upcaster(name, from_version, function, sealed)
            return function

        return declare

    def of(self, event: object) -> EventType:
        """Returns the type of an event, or of a class of events.

        Raises:
            UndeclaredError: Its class is not declared. A subclass of a declared class does not
                count as declared.
        """
        cls = event if isinstance(event, type) else type(event)
        found = self._by_class.get(cls)
        if found is None:
            raise UndeclaredError(
                f"class {cls.__qualname__} is not a declared event",
                hint=('declare the class with @event("name"), in the registry that the store uses'),
            )
        return found

    def named(self, name: str) -> EventType:
        """Returns the type with a name.

        Raises:
            UndeclaredError: The name is unknown.
        """
        found = self._by_name.get(name)
        if found is None:
            raise UndeclaredError(
                f"unknown type {name:.128}",
                hint="import the module that declares it, or declare it with types.untyped",
            )
        return found

    def readable(self, name: str, version: int) -> EventType:
        """Returns the type for a stored event.

        Raises:
            UndeclaredError: The type is unknown, or this program declares an older version.
        """
        found = self.named(name)
        if version > found.version:
            raise UndeclaredError(
                f"version {version} of {name} is newer than this program's {found.version}",
                hint="a newer program wrote the event; deploy that program here as well",
            )
        return found

    def path(self, name: str, version: int) -> tuple[Upcaster, ...]:
        """Returns the upcasters from a version to the latest, oldest first.

        Raises:
            UndeclaredError: See `readable`; or an upcaster is missing.
        """
        latest = self.readable(name, version).version
        missing = [v for v in range(version, latest) if (name, v) not in self._upcasters]
        if missing:
            raise UndeclaredError(
                f"no upcaster converts version {missing[0]} of {name}",
                detail=f"the latest version is {latest}",
                hint=f'@types.upcaster("{name}", {missing[0]})',
            )
        return tuple(self._upcasters[name, v] for v in range(version, latest))

    def sealed_fields(self, name: str, version: int) -> tuple[str, ...]:
        """Returns the fields that are encrypted in events of this version."""
        for upcaster in self.path(name, version):
            if upcaster.personal is not None:
                return upcaster.personal
        return self.named(name).personal_fields

    def check(self) -> list[str]:
        """Returns the missing or superfluous upcasters, one sentence each."""
        wrong = [
            f"no upcaster converts version {version} of {declared.name}"
            for declared in self
            for version in range(1, declared.version)
            if (declared.name, version) not in self._upcasters
        ]
        for name, version in self._upcasters:
            known = self._by_name.get(name)
            if known is None:
                wrong.append(f"an upcaster converts version {version} of {name}, which is unknown")
            elif version >= known.version:
                wrong.append(
                    f"an upcaster converts version {version} of {name}, latest is {known.version}"
                )
        return sorted(wrong)

    def _add(self, declared: EventType) -> EventType:
        if declared.name in self._by_name:
            raise UndeclaredError(
                f"event type {declared.name} is declared twice",
                detail=f"by {self._by_name[declared.name].cls.__qualname__} "
                f"and by {declared.cls.__qualname__}",
                hint="keep one class per type: increase its version and add an upcaster",
            )
        if declared.cls in self._by_class:
            raise UndeclaredError(
                f"class {declared.cls.__qualname__} is declared as two event types",
                detail=f"{self._by_class[declared.cls].name} and {declared.name}",
                hint="declare a class for each event type",
            )
        if declared.cls is not EventData:
            self._by_class[declared.cls] = declared
        self._by_name[declared.name] = declared
        return declared


declared: Final = EventTypes()
"""The default registry."""


@dataclass_transform(frozen_default=True)
def event(
    name: str,
    *,
    version: int = 1,
    subject: str | None = None,
    tags: Tags | None = None,
    public: bool = False,
) -> Callable[[type[_C]], type[_C]]:
    """Declares a class as an event type in the registry `declared`; see `EventTypes.event`."""
    return declared.event(name, version=version, subject=subject, tags=tags, public=public)


def upcast(
    cls: type, from_version: int, *, personal: Iterable[str] | None = None
) -> Callable[[_F], _F]:
    """Declares an upcaster for a class of the registry `declared`; see `EventTypes.upcaster`."""
    return declared.upcaster(declared.of(cls).name, from_version, personal=personal)


def _upcast_of(types: EventTypes, cls: type) -> staticmethod[..., Any]:
    def upcast_from(
        from_version: int, *, personal: Iterable[str] | None = None
    ) -> Callable[[_F], _F]:
        """Declares an upcaster for this event; see `EventTypes.upcaster`."""
        return types.upcaster(types.of(cls).name, from_version, personal=personal)

    return staticmethod(upcast_from)


def _as_dataclass(name: str, cls: type[_C]) -> type[_C]:
    kind = _other_kind(cls)
    if kind is not None:
        raise UndeclaredError(
            f"event {name} is not a dataclass",
            detail=f"{getattr(cls, '__qualname__', cls)} is {kind}",
            hint=("remove base classes and decorators; @event makes the class a frozen dataclass"),
        )
    if "__dataclass_params__" not in cls.__dict__:
        return dataclass(frozen=True, slots=True)(cls)
    if not cls.__dict__["__dataclass_params__"].frozen:
        raise UndeclaredError(
            f"event {name} is mutable",
            detail=f"class {cls.__qualname__} is a dataclass that is not frozen",
            hint="use @dataclass(frozen=True), or omit @dataclass",
        )
    return cls


def _other_kind(cls: Any) -> str | None:
    """Returns the kind of a class that cannot be a dataclass; None for any other class."""
    if not isinstance(cls, type):
        return "no class"
    marks = {
        "__struct_fields__": "a msgspec Struct",
        "__attrs_attrs__": "a class of attrs",
        "__required_keys__": "a TypedDict",
    }
    if "__dataclass_params__" not in cls.__dict__:  # pydantic's dataclasses are dataclasses
        marks["__pydantic_fields__"] = "a pydantic model"
    bases = {tuple: "a tuple", Enum: "an enum", BaseException: "an exception"}
    found = [kind for mark, kind in marks.items() if hasattr(cls, mark)]
    found += [kind for base, kind in bases.items() if issubclass(cls, base)]
    return found[0] if found else None


def _fields_of(name: str, cls: type, names: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        hints = typing.get_type_hints(cls, localns=dict(names), include_extras=True)
    except NameError as error:
        raise UndeclaredError(
            f"a field of {name} has an undefined type",
            detail=f"{error.name}",
            hint="define or import the type above the event, also at run time",
        ) from None
    every: dict[str, Any] = cls.__dataclass_fields__  # type: ignore[attr-defined]
    for each in every.values():
        if hints.get(each.name) is ClassVar or typing.get_origin(hints.get(each.name)) is ClassVar:
            continue
        if not each.init or isinstance(hints.get(each.name), dataclasses.InitVar):
            raise UndeclaredError(
                f"a field of {name} is not a constructor argument",
                detail=f"field {each.name}",
                hint="use plain fields only, without InitVar and init=False",
            )
    fields = {each.name: hints[each.name] for each in dataclasses.fields(cls)}
    # resolved here, because names local to a function cannot be resolved later
    own = inspect.get_annotations(cls)
    cls.__annotations__ = own | {key: value for key, value in fields.items() if key in own}
    return MappingProxyType(fields)


def _check_storable(name: str, fields: Mapping[str, Any]) -> None:
    for field_name, hint in fields.items():
        try:
            msgspec.json.Decoder(hint)
        except (TypeError, NameError) as error:
            raise UndeclaredError(
                f"a field of {name} has types that JSON cannot distinguish",
                detail=f"field {field_name}: {error}",
                hint="a union may have one class; store the kind in a separate field",
            ) from None


def _field_names(name: str, fields: Iterable[str]) -> tuple[str, ...]:
    """Returns the names of sealed fields; a single str would count as its letters."""
    if isinstance(fields, str) or not isinstance(fields, Iterable):
        raise WrongKindError(
            f"the personal fields of an upcaster of {name} must be a collection of names",
            detail=f"an object of {type(fields).__qualname__}",
            hint='also for one field: personal=("email",)',
        )
    return tuple(fields)


def _check_subject(
    name: str, subject: str | None, fields: Mapping[str, Any], personal: Mapping[str, Any]
) -> None:
    if subject is None and personal:
        raise UndeclaredError(
            f"event {name} has personal fields and no subject",
            detail=", ".join(personal),
            hint='@event(..., subject="customer_id") names the field with the person\'s id',
        )
    if subject is not None and (subject not in fields or subject in personal):
        raise UndeclaredError(
            f"the subject of event {name} must be a field that is not personal",
            detail=f"subject {subject!r:.80}",
            hint=("name a field that is not personal; it selects the key of the personal fields"),
        )


def _check_version(name: str, version: int) -> None:
    if type(version) is not int or not 1 <= version <= VERSION_MAX:
        raise UndeclaredError(
            f"event type {name} has no such version",
            detail=f"{version!r:.80}",
            hint="versions start at 1",
        )
