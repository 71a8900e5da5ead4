"""The parsed form of a condition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator
    from decimal import Decimal


@dataclass(frozen=True, slots=True)
class Name:
    """A column."""

    name: str
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Literal:
    """A literal value."""

    value: bool | Decimal | str | None


@dataclass(frozen=True, slots=True)
class CallExpression:
    """An operator or a function, and its arguments."""

    operator: str
    parts: tuple[Node, ...]


Node: TypeAlias = Name | Literal | CallExpression


def names(node: Node) -> Iterator[Name]:
    """Returns the columns that a condition reads."""
    if isinstance(node, Name):
        yield node
    elif isinstance(node, CallExpression):
        for part in node.parts:
            yield from names(part)
