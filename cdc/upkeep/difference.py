"""Difference: one thing that is declared and is not so, or is so and not declared."""

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
    """What differs."""

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
        part: What differs.
        name: Its name.
        aspect: Which property of it; empty for the whole.
        have: How it is, secrets masked; None where there is none.
        want: How it is declared, secrets masked; None where none is.
        repaired: Whether `apply` makes it so; what it does not is in `hint`.
        hint: What repairs it instead.
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
    """Compares two sets of properties; a secret is told apart but never shown."""
    return [
        Difference(part, name, key, shown(key, have.get(key)), shown(key, want.get(key)))
        for key in sorted(have.keys() | want.keys())
        if have.get(key) != want.get(key)
    ]


def shown(key: str, value: str | None) -> str | None:
    """Returns a property's value as it may be shown; a reference to a secret is none itself."""
    if value is None or not _SECRET.search(key) or _REFERENCE.fullmatch(value):
        return value
    return MASK
