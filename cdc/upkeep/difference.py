"""A difference between the declared and the actual state."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

MASK: Final = "********"
_SECRET: Final = re.compile(r"(password|secret)$")
_REFERENCE: Final = re.compile(r"\$\{[^}:]+:.*\}")


class Part(StrEnum):
    """The kind of object that differs."""

    SOURCE = "source"
    SCHEMA = "schema"
    PUBLICATION = "publication"
    SLOT = "slot"
    TOPIC = "topic"
    SECRET = "secret"  # noqa: S105  # a word, not one
    CONNECTOR = "connector"
    TABLE = "table"
    VIEW = "view"


@dataclass(frozen=True, slots=True)
class Difference:
    """One line of a plan.

    Attributes:
        part: The kind of object.
        name: Its name.
        aspect: The property; empty for the whole object.
        have: The actual value, secrets masked; None if there is none.
        want: The declared value, secrets masked; None if there is none.
        repaired: Whether `apply` removes the difference; otherwise see `hint`.
        hint: What removes it instead.
    """

    part: Part
    name: str
    aspect: str
    have: str | None
    want: str | None
    repaired: bool = True
    hint: str | None = None

    def __str__(self) -> str:
        what = f"{self.part} {self.name}" + (f" {self.aspect}" if self.aspect else "")
        if self.have is None:
            return f"{what}: {self.want}"
        return f"{what}: {self.have} → {'none' if self.want is None else self.want}"


def of_properties(
    part: Part, name: str, have: Mapping[str, str], want: Mapping[str, str]
) -> list[Difference]:
    """Compares two sets of properties; secrets are compared but never shown."""
    return [
        Difference(part, name, key, shown(key, have.get(key)), shown(key, want.get(key)))
        for key in sorted(have.keys() | want.keys())
        if have.get(key) != want.get(key)
    ]


def shown(key: str, value: str | None) -> str | None:
    """Returns a property's value, secrets masked; a reference to a secret is not masked."""
    if value is None or not _SECRET.search(key) or _REFERENCE.fullmatch(value):
        return value
    return MASK
