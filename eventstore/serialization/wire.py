"""Wire: the JSON form of one event class; refuses an event that would not read back equal.

Sets and the keys of dicts are sorted, so that equal events have equal bytes.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from typing import TYPE_CHECKING, Any, Final

import msgspec

from eventstore.errors import EventRefusedError, UndeclaredError
from eventstore.privacy.personal import Redacted
from eventstore.serialization.exactness import Inexactness, fault_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from eventstore.serialization.registry import EventType

_ordered: Final = msgspec.json.Encoder(order="deterministic").encode
# msgspec crashes if a thread uses a type that another one is describing for the first time
_DESCRIBING: Final = threading.Lock()
_decode_any: Final = msgspec.json.Decoder().decode
_decode_object: Final = msgspec.json.Decoder(dict[str, Any]).decode
_EXPECTATION: Final = re.compile(r"Expected `[^`]*`(?:, got `[^`]*`)?")
_MISSING: Final = re.compile(r"Object missing required field `[^`]*`")
_PLACE: Final = re.compile(r" - at (?:`key` in )?`\$([^`]*)`$")


def encoded(value: object) -> bytes:
    """Returns a value as JSON, with sorted sets and keys.

    Raises:
        TypeError: It has no JSON form.
        UnicodeEncodeError: A str has a lone surrogate.
        RecursionError: It is nested too deeply, or contains itself.
    """
    try:
        return _ordered(value)
    except TypeError:
        # keys that are not strings are sorted after their conversion to strings
        return _ordered(msgspec.to_builtins(value, str_keys=True, order="deterministic"))


def written(
    value: object, keeps: Callable[[dataclasses.Field[Any], object], bool] | None = None
) -> bytes:
    """Returns a value as JSON like `encoded`, from the declared fields of its dataclasses.

    An object that was decoded from JSON has its defaults only in its class; `encoded` omits them.

    Args:
        value: The value.
        keeps: Takes a field of a dataclass and its value; returns whether to write the field.

    Raises:
        TypeError: See `encoded`, also for the other errors.
    """
    kind = value.__class__
    if dataclasses.is_dataclass(kind):
        found = [(field, getattr(value, field.name)) for field in dataclasses.fields(kind)]
        kept = [(field, inner) for field, inner in found if keeps is None or keeps(field, inner)]
        pairs = [b'"%s":%s' % (field.name.encode(), written(inner, keeps)) for field, inner in kept]
        return b"{%s}" % b",".join(pairs)
    if isinstance(value, list | tuple):
        return b"[%s]" % b",".join([written(item, keeps) for item in value])
    if isinstance(value, dict) and all(key.__class__ is str for key in value):
        return encoded({key: msgspec.Raw(written(item, keeps)) for key, item in value.items()})
    return encoded(value)


def exactly(
    where: str, value: object, decode: Callable[[bytes], Any], *, path: str = ""
) -> tuple[bytes, Any]:
    """Returns a value as JSON, and the equal value that the JSON reads back as.

    Args:
        where: The event type, for the error.
        value: The value.
        decode: Decodes the JSON.
        path: Path of the value in the event, for the error.

    Raises:
        EventRefusedError: The value would not read back equal.
    """
    try:
        data = encoded(value)
        read = decode(data)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        fault = fault_of(value, value) or _unwritable(value, error)
        raise _refused(where, path, fault) from None
    found = fault_of(value, read)
    if found is not None:
        raise _refused(where, path, found)
    return data, read


def _unwritable(value: object, error: Exception) -> Inexactness:
    """Returns the fault of a coding error; finds the field that the encoder cannot write."""
    if not isinstance(error, msgspec.MsgspecError) and dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            try:
                encoded(getattr(value, field.name))
            except (TypeError, ValueError, RecursionError) as cause:
                return Inexactness(
                    f".{field.name}", f"cannot be written as JSON: {type(cause).__name__}"
                )
    return _fault_in(error)


def _fault_in(error: Exception) -> Inexactness:
    place, what = described(error)
    return Inexactness(place, f"does not fit its class: {what}")


def described(error: Exception) -> tuple[str, str]:
    """Returns the path of a decoding error and the expected type, without any value."""
    text = str(error)
    place = _PLACE.search(text)
    found = _EXPECTATION.search(text) or _MISSING.search(text)
    at = place[1] if place else ""
    return at, found[0].replace("`", "").lower() if found else type(error).__qualname__


def _refused(where: str, path: str, fault: Inexactness) -> EventRefusedError:
    at = f"{path}{fault.path}".removeprefix(".") or "the event"
    return EventRefusedError(
        f"event {where} would not read back unchanged",
        detail=f"{at} {fault.rule}",
        hint="use a value of the declared type that JSON can represent",
    )


class Wire:
    """The JSON form of an event class without personal fields."""

    def __init__(self, declared: EventType) -> None:
        self.declared = declared
        self.read: Final = decoder(declared.name, declared.cls)

    def write(self, event: object) -> bytes:
        """Returns an event as JSON.

        Raises:
            EventRefusedError: It would not read back equal.
        """
        return exactly(self.declared.name, event, self.read)[0]


class PersonalWire:
    """The JSON form of an event class with personal fields, which are JSON within it."""

    def __init__(self, declared: EventType) -> None:
        self.declared = declared
        self._struct = _struct_of(declared)
        self._decode = decoder(declared.name, self._struct)
        self._inner = {
            name: decoder(declared.name, hint) for name, hint in declared.personal.items()
        }

    def personal(self, event: object) -> dict[str, bytes]:
        """Returns each personal field of an event as JSON.

        Raises:
            EventRefusedError: One would not read back equal, or is redacted.
        """
        personal: dict[str, bytes] = {}
        for name, decode in self._inner.items():
            value, path = getattr(event, name), f".{name}"
            if isinstance(value, Redacted):
                raise _refused(
                    self.declared.name, path, Inexactness("", "is redacted: nothing is known")
                )
            personal[name] = exactly(self.declared.name, value, decode, path=path)[0]
        return personal

    def write(self, event: object, personal: Mapping[str, bytes]) -> bytes:
        """Returns an event as JSON.

        Args:
            event: The event.
            personal: JSON to write for each personal field.

        Raises:
            EventRefusedError: It would not read back equal.
        """
        fields: dict[str, Any] = {
            name: msgspec.Raw(personal[name]) if name in personal else getattr(event, name)
            for name in self.declared.fields
        }
        try:
            data = encoded(self._struct(**fields))
            read = self._decode(data)
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            cause = self._first_fault(event, event) or _fault_in(error)
            raise _refused(self.declared.name, "", cause) from None
        fault = self._first_fault(event, read)
        if fault is not None:
            raise _refused(self.declared.name, "", fault)
        return data

    def _first_fault(self, event: object, read: object) -> Inexactness | None:
        for name in self.declared.fields:
            if name not in self._inner:
                fault = fault_of(getattr(event, name), getattr(read, name))
                if fault is not None:
                    return Inexactness(f".{name}{fault.path}", fault.rule)
        return None

    def read(self, data: bytes, unseal: Callable[[str, bytes], bytes | Redacted]) -> object:
        """Returns the event.

        Args:
            data: The event as JSON.
            unseal: Takes name and JSON of a personal field; returns the JSON of its value.
        """
        found = self._decode(data)
        values: dict[str, Any] = {}
        for name in self.declared.fields:
            value = getattr(found, name)
            if value is msgspec.UNSET:
                continue  # the class has a default for the field
            if name in self._inner:
                plain = unseal(name, bytes(value))
                value = plain if isinstance(plain, Redacted) else self._inner[name](plain)
            values[name] = value
        return self.declared.cls(**values)


def decoder(name: str, kind: Any) -> Callable[[bytes], Any]:
    """Returns a decoder from JSON to a type.

    Raises:
        UndeclaredError: The type cannot be determined from JSON, such as a union of two classes.
    """
    try:
        with _DESCRIBING:
            return msgspec.json.Decoder(kind).decode
    except (TypeError, NameError) as error:
        raise UndeclaredError(
            f"the fields of {name} have types that JSON cannot distinguish",
            detail=str(error),
        ) from None


def decoded(data: bytes) -> Any:
    """Returns JSON as plain values."""
    return _decode_any(data)


def decoded_object(data: bytes) -> dict[str, Any]:
    """Returns a JSON object as plain values.

    Raises:
        msgspec.DecodeError: It is not a JSON object.
    """
    return _decode_object(data)


def _struct_of(declared: EventType) -> type[msgspec.Struct]:
    """Returns a class with the same fields, in which personal fields remain raw JSON."""
    defaults = {
        field.name
        for field in dataclasses.fields(declared.cls)
        if field.default is not dataclasses.MISSING
        or field.default_factory is not dataclasses.MISSING
    }
    fields: list[Any] = []
    for name, hint in declared.fields.items():
        kind = msgspec.Raw if name in declared.personal else hint
        if name in defaults:
            fields.append((name, kind | msgspec.UnsetType, msgspec.UNSET))
        else:
            fields.append((name, kind))
    return msgspec.defstruct(declared.cls.__name__, fields, kw_only=True)
