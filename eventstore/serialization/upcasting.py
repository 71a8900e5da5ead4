"""Upcasting: an old version of an event's payload becomes the latest one, when it is read.

An upcaster is a pure function from the payload of one version to that of the next, as JSON values:
texts, numbers, lists, dicts. It may change and return the dict it is given. Stored events stay as
they are.

Personal fields reach an upcaster decrypted, as JSON values; those of a forgotten subject as
`Redacted`, which it passes on as it is, in a field that is personal in the next version too.
Ciphertext is bound to the field it was written under. So where a field was renamed, or became
personal later, the upcaster says which fields of *its* version are sealed:

    @upcast(CustomerRegistered, from_version=1, personal=("mail",))
    def mail_is_named_email(data: dict[str, Any]) -> dict[str, Any]:
        data["email"] = data.pop("mail")
        return data

Without `personal`, the same fields are sealed as in the next version.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventstore.errors import UpcastError
from eventstore.privacy.personal import Redacted

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from eventstore.model.event import StoredEvent

Upcast = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Upcaster:
    """How one version of a type becomes the next.

    Attributes:
        type: Name of the event type.
        from_version: The version that it takes; it returns the next one.
        function: The pure function.
        personal: Fields that are sealed in `from_version`; None if they are those of the next.
    """

    type: str
    from_version: int
    function: Upcast
    personal: tuple[str, ...] | None = None


def upcasted(data: dict[str, Any], path: Iterable[Upcaster], stored: StoredEvent) -> dict[str, Any]:
    """Returns a payload in the latest version.

    Args:
        data: The payload in its stored version; it may be changed.
        path: The upcasters, the oldest first.
        stored: Where it comes from, for the error.

    Raises:
        UpcastError: An upcaster raised an error, or returned no dict.
    """
    for upcaster in path:
        try:
            data = upcaster.function(data)
        except Exception as error:  # noqa: BLE001  # an upcaster is the application's code
            # not chained: the text of the error may repeat the payload
            raise _failed(upcaster, stored, f"raised {cause_of(error)}") from None
        if type(data) is not dict:
            raise _failed(upcaster, stored, f"returned {type(data).__qualname__}, not dict")
    return data


def check_redacted(data: dict[str, Any], personal: Container[str], stored: StoredEvent) -> None:
    """Looks whether upcasters have passed on `Redacted` as they must.

    Raises:
        UpcastError: It is in a field, or a part of one, that is not personal.
    """
    for name, value in data.items():
        if not (name in personal and isinstance(value, Redacted)) and _has_redacted(value):
            raise UpcastError(
                f"event {stored.type} cannot be upcast to its latest version",
                detail=f"an upcaster put a redacted value into field {name}, which is not "
                f"personal; global position {stored.global_position}",
                hint="keep Redacted unchanged, or remove the field",
            )


def _has_redacted(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_has_redacted, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_redacted, value))
    return isinstance(value, Redacted)


def cause_of(error: BaseException) -> str:
    """Returns the kind of an error and the line it comes from, without its text."""
    frames = traceback.extract_tb(error.__traceback__)
    kind = type(error).__qualname__
    if not frames:
        return kind
    return f"{kind} at {Path(frames[-1].filename).name}:{frames[-1].lineno}"


def _failed(upcaster: Upcaster, stored: StoredEvent, what: str) -> UpcastError:
    return UpcastError(
        f"event {stored.type} cannot be upcast to its latest version",
        detail=f"the upcaster from version {upcaster.from_version} {what}; "
        f"global position {stored.global_position}",
        hint=(
            "correct the upcaster, then check the whole log with headwater events upcast --check"
        ),
    )
