"""Personal tags: tags are not encrypted, so they may contain a personal value only as a keyed hash.

    @event("user.registered", subject="user", tags=lambda e: [personal_tag("email", e.email)])
    class Registered:
        user: str
        email: Personal[str]

    store.handle(command, boundary=tagged(store.personal_tag("email", command.email)))

The hash is an HMAC under a key of the tenant in the key ring, not under the person's key, because a
search for an address does not know the person yet. Without the key, no guess of a value can be
confirmed. The hash remains when the person is forgotten, as the stream name does. Shredding the
tenant's key (`TAGS_SUBJECT`) makes all hashes of the tenant meaningless.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import hmac
from datetime import date, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from eventstore.errors import EventRefusedError, SubjectKeyError
from eventstore.privacy.personal import Redacted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from eventstore.privacy.keyring import KeyRing

TAGS_SUBJECT: Final = "headwater tags"
"""Subject of the key for personal tags; each tenant has one."""

_HASH_DIGITS: Final = 32
_CHARACTERS_MIN: Final = 6
"""Minimum length of a personal text that is searched within tags; shorter ones occur by chance."""


class _Declared(Protocol):
    """The attributes of an event type that this module uses."""

    @property
    def name(self) -> str: ...
    @property
    def personal(self) -> Mapping[str, Any]: ...
    @property
    def tags(self) -> Callable[[Any], Iterable[Any]] | None: ...


class PersonalTag(NamedTuple):
    """A tag that is stored as a keyed hash of a personal value.

    Attributes:
        name: Name of the value, such as `email`; it remains readable.
        value: The value; normalize it first, because the hash depends on its exact spelling.
    """

    name: str
    value: str | Redacted


def personal_tag(name: str, value: str | Redacted) -> PersonalTag:
    """Returns a tag for a personal value, for `tags` of an event; see the module docstring."""
    return PersonalTag(name, value)


def hashed(tag: PersonalTag, tenant: str, keyring: KeyRing | None) -> str:
    """Returns the stored form of a personal tag.

    Raises:
        EventRefusedError: Its value is not a str, or is redacted.
        SubjectKeyError: There is no key ring, or the tenant's key for tags is shredded.
    """
    if type(tag.value) is not str:
        raise EventRefusedError(
            f"the value of personal tag {tag.name} must be a str",
            detail=f"of type {type(tag.value).__qualname__}",
        )
    key = None if keyring is None else keyring.key_of(tenant, TAGS_SUBJECT, create=True)
    if key is None:
        raise SubjectKeyError(
            f"personal tag {tag.name} needs a key ring with the tenant's key for tags",
            hint="pass a keyring to the store, such as PostgresKeyRing",
        )
    text = f"{len(tag.name)}:{tag.name}{tag.value}".encode()
    return f"{tag.name}:~{hmac.new(key.secret, text, hashlib.sha256).hexdigest()[:_HASH_DIGITS]}"


def check_tags(
    declared: _Declared, event: object, own: Iterable[Any], given: Iterable[Any]
) -> None:
    """Checks that no tag of an event contains a personal value in plain text.

    Args:
        declared: The event's type, which has personal fields.
        event: The event.
        own: Tags from the declaration of its type.
        given: Further tags from the caller.

    Raises:
        EventRefusedError: A tag depends on a personal value, or contains its text.
    """
    plain = [tag for tag in own if not isinstance(tag, PersonalTag)]
    others = _of_another_person(declared, event) if plain else plain
    # declared tags that do not depend on personal values need no further check
    unknown = [tag for tag in given if not isinstance(tag, PersonalTag)]
    unknown += plain if others is None else []
    dependent = set() if others is None else set(plain) - set(others)
    if dependent or any(_has_text(tag, declared, event) for tag in unknown):
        raise EventRefusedError(
            f"a tag of event {declared.name} contains a personal value",
            detail="tags are not encrypted, and remain when the subject's key is destroyed",
            hint="use personal_tag(name, value), or an id of the person",
        )


def _of_another_person(declared: _Declared, event: object) -> list[Any] | None:
    """Returns the event's tags with other personal values: the tags that differ depend on them."""
    other = copy.copy(event)
    for name in declared.personal:
        object.__setattr__(other, name, _another(getattr(event, name)))
    try:
        return list(declared.tags(other)) if declared.tags else []
    except Exception:  # noqa: BLE001  # it refuses the other value, so it depends on it
        return None


def _has_text(tag: Any, declared: _Declared, event: object) -> bool:
    """Whether a tag equals the text of a personal value, or contains a long one."""
    whole = str(tag).casefold()
    public = {str(getattr(event, name)).casefold() for name in _public(declared, event)}
    texts = {text.casefold() for name in declared.personal for text in _texts(getattr(event, name))}
    return any(
        text in (whole, whole.partition(":")[2]) or (len(text) >= _CHARACTERS_MIN and text in whole)
        for text in texts - public
    )


def _public(declared: _Declared, event: Any) -> list[str]:
    return [f.name for f in dataclasses.fields(event) if f.name not in declared.personal]


def _another(value: Any) -> Any:
    """Returns another value of the same form: it replaces letters and digits only."""
    if isinstance(value, str):
        return "".join(map(_next_character, value))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float | Decimal):
        return value + 1
    if isinstance(value, date):
        return value + timedelta(days=-1 if value.year > date.min.year else 1)
    return _of_others(value)


def _of_others(value: Any) -> Any:
    if isinstance(value, list | set | frozenset) or type(value) is tuple:
        return type(value)(map(_another, value))
    if isinstance(value, dict):
        return {_another(key): _another(inner) for key, inner in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, Redacted):
        other = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(other, field.name, _another(getattr(value, field.name)))
        return other
    return value


def _next_character(character: str) -> str:
    for first, last in (("a", "z"), ("A", "Z"), ("0", "9")):
        if first <= character <= last:
            return first if character == last else chr(ord(character) + 1)
    return "x" if character.isalnum() else character  # digits of other scripts and fractions too


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if value:
            yield value
    elif isinstance(value, dict):
        for pair in value.items():
            yield from _texts(list(pair))
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _texts(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, Redacted):
        for field in dataclasses.fields(value):
            yield from _texts(getattr(value, field.name))
