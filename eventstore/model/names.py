"""Names of streams, categories, tenants, tags, types and keys: what each may be.

A stream is named `category-id` (`order-42`): the part before the first `-` is its category. Names
are compared byte by byte, so what could look like another name is refused: Unicode that is not in
its composed form (NFC), control and invisible characters, letters of scripts mixed that look alike.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Final

from eventstore.errors import NameRefusedError, WrongKindError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

DEFAULT_TENANT: Final = "default"
SYSTEM_PREFIX: Final = "$"
"""Names that start so belong to the store itself."""

STREAM_BYTES_MAX: Final = 255
"""A name is part of three indexes; longer ones belong into the event."""

_NAME_BYTES_MAX: Final = 128
_TENANT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_CATEGORY: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_TYPE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*([.-][A-Za-z0-9_]+)*")
_ALIKE: Final = frozenset({"LATIN", "CYRILLIC", "GREEK"})
# control, format, surrogate, private use, unassigned, line and paragraph separators
_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def category_of(stream: str) -> str:
    """Returns the part before the first `-`; the whole name if there is none."""
    return stream.partition("-")[0]


def check_stream(stream: str) -> str:
    """Returns a stream's name if an application may use it.

    Raises:
        NameRefusedError: It is empty, over-long, reserved, ambiguous or no `category-id`.
    """
    if type(stream) is str and stream in _known_streams:
        return stream
    _check_text("stream", stream, STREAM_BYTES_MAX)
    category, dash, identity = stream.partition("-")
    if not _CATEGORY.fullmatch(category) or (dash and not identity) or "/" in stream:
        raise NameRefusedError(
            "a stream name has the form category-id",
            detail=f"{stream!r:.100}",
            hint=(
                "use a name such as order-42: letters, digits and _ in the category, and no slash"
            ),
        )
    if len(_known_streams) >= _KNOWN_STREAMS_MAX:
        _known_streams.clear()
    _known_streams.add(stream)
    return stream


_KNOWN_STREAMS_MAX: Final = 50_000
_known_streams: set[str] = set()  # looking a name over costs more than finding it here


def check_category(category: str) -> str:
    """Returns a category's name if it is one.

    Raises:
        NameRefusedError: It is not.
    """
    _check_text("category", category, _NAME_BYTES_MAX)
    if not _CATEGORY.fullmatch(category):
        raise NameRefusedError(
            "a category has only letters, digits and _", detail=f"{category!r:.100}"
        )
    return category


def check_tenant(tenant: str) -> str:
    """Returns a tenant's name if it is one.

    Raises:
        NameRefusedError: It is not.
    """
    if type(tenant) is not str or not _TENANT.fullmatch(tenant):
        raise NameRefusedError(
            "a tenant name has only letters, digits, '_', '.' and '-'",
            detail=f"{tenant!r:.100}",
            hint="use at most 63 characters, starting with a letter or digit",
        )
    return tenant


def check_type(name: str) -> str:
    """Returns the name of an event type if it is one, such as `order.placed`.

    Raises:
        NameRefusedError: It is not.
    """
    _check_text("event type", name, _NAME_BYTES_MAX)
    if not _TYPE.fullmatch(name):
        raise NameRefusedError(
            "an event type has words joined by '.', '-' or '_'",
            detail=f"{name!r:.100}",
            hint="such as order.placed",
        )
    return name


def check_tag(tag: str) -> str:
    """Returns a tag if it is one, such as `customer:c1`.

    Raises:
        NameRefusedError: It is empty, over-long or has invisible characters.
    """
    return _check_text("tag", tag, STREAM_BYTES_MAX)


def check_key(key: str) -> str:
    """Returns an idempotency key if it is one.

    Raises:
        NameRefusedError: It is empty, over-long or has invisible characters.
    """
    return _check_text("idempotency key", key, STREAM_BYTES_MAX)


def check_label(what: str, label: str) -> str:
    """Returns a correlation id, causation id, actor or subject if it can be stored.

    Raises:
        NameRefusedError: It is empty, over-long or has invisible characters.
    """
    return _check_text(what, label, STREAM_BYTES_MAX)


def check_names(what: str, names: Iterable[str], check: Callable[[str], str]) -> frozenset[str]:
    """Returns several names as a set.

    Args:
        what: What they are, for the error: `the types of a query`.
        names: The names. A single str is refused, because it would count as its letters.
        check: Returns a name if it is valid.

    Raises:
        WrongKindError: They are a single str, or no collection.
        NameRefusedError: One of them is invalid.
    """
    if isinstance(names, str | bytes) or not hasattr(names, "__iter__"):
        raise WrongKindError(
            f"{what} must be a collection of names",
            detail=f"an object of {type(names).__qualname__}",
            hint='also for one name: frozenset({"order.placed"})',
        )
    return frozenset([check(name) for name in names])


def _one(what: str) -> str:
    return f"{'an' if what[0] in 'aeiou' else 'a'} {what}"


def _check_text(what: str, name: str, bytes_max: int) -> str:
    if type(name) is not str:
        raise NameRefusedError(f"{_one(what)} must be a str", detail=type(name).__name__)
    if not name or name != name.strip():
        raise NameRefusedError(
            f"{_one(what)} must not be empty or have surrounding spaces", detail=f"{name!r:.100}"
        )
    if name.startswith(SYSTEM_PREFIX):
        raise NameRefusedError(
            f"{_one(what)} that starts with $ is reserved for the store", detail=f"{name!r:.100}"
        )
    if not name.isascii():
        _check_unicode(what, name)
    elif not name.isprintable():
        raise NameRefusedError(
            f"{_one(what)} must not contain control characters", detail=f"{name!r:.100}"
        )
    if len(name.encode()) > bytes_max:
        raise NameRefusedError(
            f"{_one(what)} has at most {bytes_max} bytes", detail=f"{len(name.encode())} bytes"
        )
    return name


def _check_unicode(what: str, name: str) -> None:
    own = name.partition("-")[2] if what == "stream" else name  # a category is ASCII
    scripts = {unicodedata.name(c, "").partition(" ")[0] for c in own if c.isalpha()}
    if len(scripts & _ALIKE) > 1:
        raise NameRefusedError(
            f"{_one(what)} must not mix letters of similar scripts",
            detail=f"{name!a:.100} has {', '.join(sorted(scripts & _ALIKE)).lower()} letters",
        )
    strange = next((c for c in name if unicodedata.category(c) in _INVISIBLE), None)
    if strange is not None:
        raise NameRefusedError(
            f"{_one(what)} must contain only visible characters",
            detail=f"U+{ord(strange):04X} in {name!r:.100}",
        )
    if unicodedata.normalize("NFC", name) != name:
        raise NameRefusedError(
            f"{_one(what)} must be in Unicode's composed form (NFC)",
            detail=f"{name!a:.100}",
            hint="unicodedata.normalize('NFC', name)",
        )
