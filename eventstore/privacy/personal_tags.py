"""Personal tags: tags stay readable, so a personal value gets into one as a keyed hash only.

    @event("user.registered", subject="user", tags=lambda e: [personal_tag("email", e.email)])
    class Registered:
        user: str
        email: Personal[str]

    store.handle(command, boundary=tagged(store.personal_tag("email", command.email)))

The hash is an HMAC under a key of the tenant's own in the key ring, not under the person's: who
looks for an address does not know yet whose it is. Without the ring it confirms no guess. It stays
when the person is forgotten, as the name of the stream does; shredding the tenant's key
(`TAGS_SUBJECT`) takes its meaning from all of them at once.
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
"""Subject of the key for personal tags, one in each tenant."""

_HASH_DIGITS: Final = 32
_CHARACTERS_MIN: Final = 6
"""Of a personal text that is looked for inside of tags: shorter ones are in many by chance."""


class _Declared(Protocol):
    """What is needed of an event's type."""

    @property
    def name(self) -> str: ...
    @property
    def personal(self) -> Mapping[str, Any]: ...
    @property
    def tags(self) -> Callable[[Any], Iterable[Any]] | None: ...


class PersonalTag(NamedTuple):
    """A tag that is stored as a keyed hash of a personal value.

    Attributes:
        name: What the value is, such as `email`; it stays readable.
        value: The value; how it is written is part of it, so bring it into one form first.
    """

    name: str
    value: str | Redacted


def personal_tag(name: str, value: str | Redacted) -> PersonalTag:
    """Returns a tag for a personal value, for `tags` of an event; see the module's text."""
    return PersonalTag(name, value)


def hashed(tag: PersonalTag, tenant: str, keyring: KeyRing | None) -> str:
    """Returns a personal tag as it is stored.

    Raises:
        EventRefusedError: Its value is no text, or redacted.
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
    """Checks that no personal value of an event gets into a tag in clear.

    Args:
        declared: The event's type, which has personal fields.
        event: The event.
        own: Tags that its type gives it.
        given: Tags that it was given besides.

    Raises:
        EventRefusedError: One depends on a personal value, or has its text in it.
    """
    plain = [tag for tag in own if not isinstance(tag, PersonalTag)]
    others = _of_another_person(declared, event) if plain else plain
    # what its type gives it without looking at the person is no more looked at
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
    """The tags of the same event about someone else: what differs is made of personal values."""
    other = copy.copy(event)
    for name in declared.personal:
        object.__setattr__(other, name, _another(getattr(event, name)))
    try:
        return list(declared.tags(other)) if declared.tags else []
    except Exception:  # noqa: BLE001  # it takes no such value, so it looks at it
        return None


def _has_text(tag: Any, declared: _Declared, event: object) -> bool:
    """Whether a tag is the text of a personal value, or has a long one in it."""
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
    """Another value of the same form: letters and digits are others, all else is as it was."""
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
