"""Personal fields: encrypted with the key of a person, redacted after that key is destroyed.

    @event("customer.registered", subject="customer_id")
    class CustomerRegistered:
        customer_id: str
        email: Personal[str]

Only a whole field of an event can be personal, not a part of one; its value may be of any type that
can be stored. Stream names, tags and the subject itself are never encrypted: identify persons there
by a number, if at all. A personal value in a tag is refused, or stored as a keyed hash
(`eventstore.privacy.personal_tags`).
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from eventstore.errors import UndeclaredError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Redacted:
    """Replaces a personal value whose key was destroyed.

    Attributes:
        subject: The subject, by the name that the events record.
    """

    subject: str

    def __str__(self) -> str:
        return "[redacted]"


class _Marker:
    __slots__ = ()

    def __repr__(self) -> str:
        return "personal"


_MARKER: Final = _Marker()
_T = TypeVar("_T")

Personal = Annotated[_T | Redacted, _MARKER]
"""Type of a field whose value belongs to the event's subject."""


def inner_type(hint: Any) -> Any:
    """Returns `T` of `Personal[T]`; None for any other type hint."""
    if get_origin(hint) is not Annotated or _MARKER not in get_args(hint)[1:]:
        return None
    members = tuple(member for member in get_args(get_args(hint)[0]) if member is not Redacted)
    return Union[members]  # noqa: UP007  # the members are known at run time only


def personal_types(where: str, hints: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `T` for each field that is `Personal[T]`.

    Args:
        where: Name of the owner of the fields, for the error.
        hints: Resolved types of the fields.

    Raises:
        UndeclaredError: A part of a field is personal.
    """
    found = {name: inner for name, hint in hints.items() if (inner := inner_type(hint)) is not None}
    for name, hint in hints.items():
        if _hides_personal(found.get(name, hint), set()):
            raise UndeclaredError(
                f"only a whole field of {where} can be personal",
                detail=f"field {name}",
                hint="declare the field itself Personal[...], such as Personal[str | None]",
            )
    return found


def _hides_personal(hint: Any, seen: set[int]) -> bool:
    if id(hint) in seen:
        return False
    seen.add(id(hint))
    if inner_type(hint) is not None:
        return True
    parts = _own_hints(hint) if inspect.isclass(hint) else get_args(hint)
    return any(_hides_personal(part, seen) for part in parts)


def _own_hints(kind: type) -> list[Any]:
    if kind.__module__ == "builtins" or not getattr(kind, "__annotations__", None):
        return []
    try:
        return list(get_type_hints(kind, include_extras=True).values())
    except (NameError, TypeError):
        return []  # an unresolvable type is refused where the event is declared
