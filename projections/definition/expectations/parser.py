"""The syntax of conditions: a part of SQL that all engines evaluate alike.

It excludes constructs on which engines disagree (division, implicit casts), and those that would
let a row pass today and fail tomorrow (current time, random values, other rows).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Final, TypeAlias

from projections.errors import DeclarationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

LENGTH_MAX: Final = 2_000
DEPTH_MAX: Final = 50
"""Most nested parentheses: the parser is recursive."""

HEIGHT_MAX: Final = 400
"""Most operators that apply to each other's results, as in `a + b + c`: the evaluator is recursive,
and Python allows 1000 calls, two for each operator."""

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
        condition = self._either()
        if self._kind is not None:
            raise self._wrong()
        if _height(condition) > HEIGHT_MAX:
            raise self._wrong("too many operators")
        return condition

    def _read(self) -> Iterator[tuple[str, str]]:
        place = 0
        while place < len(self._text):
            match = _TOKEN.match(self._text, place)
            if match is None:
                raise DeclarationError(
                    "a condition cannot be parsed",
                    detail=f"at {self._text[place : place + 20]!r}",
                    hint=_HINT,
                )
            place = match.end()
            if match.lastgroup not in (None, "space"):
                yield str(match.lastgroup), match[0]

    @property
    def _kind(self) -> str | None:
        return self._tokens[self._place][0] if self._place < len(self._tokens) else None

    @property
    def _symbol(self) -> str:
        return self._tokens[self._place][1] if self._place < len(self._tokens) else ""

    def _take(self, *wanted: str) -> str | None:
        """Consumes the next word or sign if it is one of the given ones."""
        token = self._symbol.upper()
        if self._kind in ("word", "sign") and token in wanted:
            self._place += 1
            return token
        return None

    def _require(self, wanted: str) -> None:
        if self._take(wanted) is None:
            raise self._wrong(f"{wanted} is missing")

    def _wrong(self, problem: str = "a condition cannot be parsed") -> DeclarationError:
        seen = self._symbol or "its end"
        return DeclarationError(f"{problem} in a condition", detail=f"at {seen!r}", hint=_HINT)

    def _either(self) -> Node:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._wrong("too many nested parentheses")
        node = self._both()
        while self._take("OR"):
            node = CallExpression("OR", (node, self._both()))
        self._depth -= 1
        return node

    def _both(self) -> Node:
        node = self._negated()
        while self._take("AND"):
            node = CallExpression("AND", (node, self._negated()))
        return node

    def _negated(self) -> Node:
        times = 0
        while self._take("NOT"):
            times += 1
        node = self._compared()
        return CallExpression("NOT", (node,)) if times % 2 else node

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
        node = self._product()
        while sign := self._take("+", "-"):
            node = CallExpression(sign, (node, self._product()))
        return node

    def _product(self) -> Node:
        node = self._one()
        while self._take("*"):
            node = CallExpression("*", (node, self._one()))
        return node

    def _one(self) -> Node:
        if self._take("-"):
            return self._minus()
        if self._take("("):
            inner = self._either()
            self._require(")")
            return inner
        if self._kind == "word":
            return self._named()
        read = _READ.get(self._kind or "")
        if read is None:
            raise self._wrong()
        try:
            node = read(self._symbol)
        except InvalidOperation:
            raise self._wrong("a number is out of range") from None
        self._place += 1
        return node

    def _minus(self) -> Node:
        signs = 1
        while self._take("-"):
            signs += 1
        node = self._one()
        for _ in range(signs):
            node = CallExpression("-", (Literal(Decimal(0)), node))
        return node

    def _named(self) -> Node:
        token = self._symbol
        upper = token.upper()
        if upper in _RESERVED:
            raise self._wrong()
        self._place += 1
        if upper in _CONSTANTS:
            return Literal(_CONSTANTS[upper])
        if self._symbol != "(":
            return Name(token)
        if self._tokens[self._place + 1 : self._place + 2] == [("sign", ")")]:
            self._place += 2
            return CallExpression(upper, ())
        return CallExpression(upper, self._listed())

    def _listed(self) -> tuple[Node, ...]:
        self._require("(")
        nodes = [self._either()]
        while self._take(","):
            nodes.append(self._either())
        self._require(")")
        return tuple(nodes)


_READ: Final[Mapping[str, Callable[[str], Node]]] = {
    "number": lambda text: Literal(Decimal(text)),
    "text": lambda text: Literal(text[1:-1].replace("''", "'")),
    "quoted": lambda text: Name(text[1:-1].replace(text[0] * 2, text[0]), quoted=True),
}


def _height(node: Node) -> int:
    height = 0
    level = [node]
    while level := [
        part for each in level if isinstance(each, CallExpression) for part in each.parts
    ]:
        height += 1
    return height


def _unless(negated: str | None, node: Node) -> Node:
    return CallExpression("NOT", (node,)) if negated else node
