"""Upcasting: converts an old version of an event's payload to the latest one when it is read.

An upcaster is a pure function from the payload of one version to that of the next, as JSON values:
strings, numbers, lists, dicts. It may change and return the given dict. Stored events do not
change.

An upcaster receives personal fields decrypted, as JSON values. A field of a forgotten subject is
`Redacted`, which the upcaster must keep unchanged in a field that is personal in the next version.
Ciphertext is bound to the name of its field. If a field was renamed, or became personal later, the
upcaster therefore declares the sealed fields of *its* version:

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
    """The conversion of one version of a type to the next.

    Attributes:
        type: Name of the event type.
        from_version: The version that it takes; it returns the next one.
        function: The pure function.
        personal: Sealed fields of `from_version`; None if they are those of the next version.
    """

    type: str
    from_version: int
    function: Upcast
    personal: tuple[str, ...] | None = None


def upcasted(data: dict[str, Any], path: Iterable[Upcaster], stored: StoredEvent) -> dict[str, Any]:
    """Returns a payload in the latest version.

    Args:
        data: The payload in its stored version; it may be changed.
        path: The upcasters, oldest first.
        stored: The stored event, for the error.

    Raises:
        UpcastError: An upcaster raised an error, or did not return a dict.
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
    """Checks that upcasters have kept `Redacted` in personal fields only.

    Raises:
        UpcastError: A field that is not personal contains `Redacted`.
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
    """Returns the class of an error and the line that raised it, without its message."""
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
