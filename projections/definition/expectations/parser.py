"""The syntax of conditions: a part of SQL that all engines evaluate alike.

It excludes what engines disagree on (division, implicit casts) and what would make a row pass today
and fail tomorrow (current time, random values, other rows).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Final, TypeAlias

from projections.errors import DeclarationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

LENGTH_MAX: Final = 2_000
DEPTH_MAX: Final = 50
"""Limits of the recursive parser."""

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+)
    |(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<text>'(?:[^']|'')*')
    |(?P<quoted>"(?:[^"]|"")+"|`(?:[^`]|``)+`)
    |(?P<word>[^\W\d]\w*)
    |(?P<sign><=|>=|<>|!=|[=<>(),+*-])""",
    re.VERBOSE,
)
_COMPARISONS: Final = ("=", "<>", "!=", "<", "<=", ">", ">=")
_CONSTANTS: Final = {"TRUE": True, "FALSE": False, "NULL": None}
_RESERVED: Final = frozenset({"AND", "OR", "NOT", "IS", "IN", "BETWEEN", "LIKE"})
_HINT: Final = (
    "columns, literals, = <> < <= > >= + - *, AND OR NOT, IS NULL, IN, BETWEEN, LIKE,"
    " length, lower, upper, trim, abs, coalesce"
)


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


def parse(text: str) -> Node:
    """Parses a condition.

    Raises:
        DeclarationError: The text is invalid.
    """
    if not text.strip() or len(text) > LENGTH_MAX:
        raise DeclarationError(
            "a condition is empty or too long", detail=f"{LENGTH_MAX} characters", hint=_HINT
        )
    return _Parser(text).parsed()


def names(node: Node) -> Iterator[Name]:
    """Returns the columns that a condition reads."""
    if isinstance(node, Name):
        yield node
    elif isinstance(node, CallExpression):
        for part in node.parts:
            yield from names(part)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._read())
        self._place = 0
        self._depth = 0

    def parsed(self) -> Node:
        found = self._either()
        if self._kind is not None:
            raise self._wrong()
        return found

    def _read(self) -> Iterator[tuple[str, str]]:
        place = 0
        while place < len(self._text):
            found = _TOKEN.match(self._text, place)
            if found is None:
                raise DeclarationError(
                    "a condition cannot be parsed",
                    detail=f"at {self._text[place : place + 20]!r}",
                    hint=_HINT,
                )
            place = found.end()
            if found.lastgroup not in (None, "space"):
                yield str(found.lastgroup), found[0]

    @property
    def _kind(self) -> str | None:
        return self._tokens[self._place][0] if self._place < len(self._tokens) else None

    @property
    def _said(self) -> str:
        return self._tokens[self._place][1] if self._place < len(self._tokens) else ""

    def _take(self, *wanted: str) -> str | None:
        """Consumes the next word or sign if it is one of the given ones."""
        said = self._said.upper()
        if self._kind in ("word", "sign") and said in wanted:
            self._place += 1
            return said
        return None

    def _require(self, wanted: str) -> None:
        if self._take(wanted) is None:
            raise self._wrong(f"{wanted} is missing")

    def _wrong(self, what: str = "a condition cannot be parsed") -> DeclarationError:
        seen = self._said or "its end"
        return DeclarationError(f"{what} in a condition", detail=f"at {seen!r}", hint=_HINT)

    def _either(self) -> Node:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._wrong("too many nested parentheses")
        found = self._both()
        while self._take("OR"):
            found = CallExpression("OR", (found, self._both()))
        self._depth -= 1
        return found

    def _both(self) -> Node:
        found = self._negated()
        while self._take("AND"):
            found = CallExpression("AND", (found, self._negated()))
        return found

    def _negated(self) -> Node:
        times = 0
        while self._take("NOT"):
            times += 1
        found = self._compared()
        return CallExpression("NOT", (found,)) if times % 2 else found

    def _compared(self) -> Node:
        left = self._sum()
        sign = self._take(*_COMPARISONS)
        if sign is not None:
            return CallExpression("<>" if sign == "!=" else sign, (left, self._sum()))
        if self._take("IS"):
            negated = self._take("NOT")
            word = self._take("NULL", "TRUE", "FALSE")
            if word is None:
                raise self._wrong("NULL, TRUE or FALSE is missing")
            return _unless(negated, CallExpression(f"IS {word}", (left,)))
        negated = self._take("NOT")
        if self._take("IN"):
            return _unless(negated, CallExpression("IN", (left, *self._listed())))
        if self._take("BETWEEN"):
            low = self._sum()
            self._require("AND")
            return _unless(
                negated,
                CallExpression(
                    "AND",
                    (CallExpression(">=", (left, low)), CallExpression("<=", (left, self._sum()))),
                ),
            )
        if self._take("LIKE"):
            return _unless(negated, CallExpression("LIKE", (left, self._sum())))
        if negated:
            raise self._wrong("IN, BETWEEN or LIKE is missing")
        return left

    def _sum(self) -> Node:
        found = self._product()
        while sign := self._take("+", "-"):
            found = CallExpression(sign, (found, self._product()))
        return found

    def _product(self) -> Node:
        found = self._one()
        while self._take("*"):
            found = CallExpression("*", (found, self._one()))
        return found

    def _one(self) -> Node:
        if self._take("-"):
            return CallExpression("-", (Literal(Decimal(0)), self._one()))
        if self._take("("):
            found = self._either()
            self._require(")")
            return found
        if self._kind == "word":
            return self._named()
        read = _READ.get(self._kind or "")
        if read is None:
            raise self._wrong()
        said = self._said
        self._place += 1
        return read(said)

    def _named(self) -> Node:
        said = self._said
        upper = said.upper()
        if upper in _RESERVED:
            raise self._wrong()
        self._place += 1
        if upper in _CONSTANTS:
            return Literal(_CONSTANTS[upper])
        if self._said != "(":
            return Name(said)
        if self._tokens[self._place + 1 : self._place + 2] == [("sign", ")")]:
            self._place += 2
            return CallExpression(upper, ())
        return CallExpression(upper, self._listed())

    def _listed(self) -> tuple[Node, ...]:
        self._require("(")
        found = [self._either()]
        while self._take(","):
            found.append(self._either())
        self._require(")")
        return tuple(found)


_READ: Final[Mapping[str, Callable[[str], Node]]] = {
    "number": lambda said: Literal(Decimal(said)),
    "text": lambda said: Literal(said[1:-1].replace("''", "'")),
    "quoted": lambda said: Name(said[1:-1].replace(said[0] * 2, said[0]), quoted=True),
}


def _unless(negated: str | None, node: Node) -> Node:
    return CallExpression("NOT", (node,)) if negated else node
