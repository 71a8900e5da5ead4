"""The syntax of conditions: a part of SQL that all engines evaluate alike.

It excludes constructs on which engines disagree (division, implicit casts), and those that would
let a row pass today and fail tomorrow (current time, random values, other rows).
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Final, cast

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedInput, UnexpectedToken

from projections.definition.expectations.tree import CallExpression, Literal, Name, Node
from projections.errors import DeclarationError

LENGTH_MAX: Final = 2_000
HEIGHT_MAX: Final = 400
"""Most operators that apply to each other's results, as in `a + b + c`: the evaluator is recursive,
and Python allows 1000 calls, two for each operator."""

_DIGITS: Final = range(-16_383, 131_072)
"""Exponents of ten of the first digit of a number, as in Postgres."""

_HINT: Final = (
    "columns, literals, = <> < <= > >= + - *, AND OR NOT, IS NULL, IN, BETWEEN, LIKE,"
    " length, lower, upper, trim, abs, coalesce"
)
_GRAMMAR: Final = r"""
?start: both | start OR both                -> binary
?both: negated | both AND negated           -> binary
?negated: compared | "NOT"i compared        -> negation
    | "NOT"i "NOT"i negated
?compared: sum
    | sum SIGN sum                          -> binary
    | sum "IS"i [NOT] STATE                 -> state
    | sum [NOT] IN _listed                  -> matched
    | sum [NOT] LIKE sum                    -> matched
    | sum [NOT] "BETWEEN"i sum "AND"i sum   -> between
?sum: product | sum (PLUS | MINUS) product  -> binary
?product: one | product STAR one            -> binary
?one: "(" start ")"
    | MINUS one                             -> minus
    | NUMBER                                -> number
    | TEXT                                  -> text
    | STATE                                 -> constant
    | QUOTED                                -> quoted
    | WORD                                  -> name
    | WORD ("(" ")" | _listed)              -> call
_listed: "(" start ("," start)* ")"

AND: "AND"i
IN: "IN"i
LIKE: "LIKE"i
NOT: "NOT"i
OR: "OR"i
STATE.1: /(NULL|TRUE|FALSE)(?!\w)/i
WORD: /[^\W\d]\w*/i
QUOTED: /"([^"]|"")+"|`([^`]|``)+`/
TEXT: /'([^']|'')*'/
NUMBER: /(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?/i
SIGN: /<=|>=|<>|!=|[=<>]/
PLUS: "+"
MINUS: /-(?!-)/
STAR: "*"
%ignore /\s+/
"""
_STATES: Final = {"TRUE": True, "FALSE": False, "NULL": None}


@v_args(inline=True)
class _Nodes(Transformer[Token, Node]):
    """Makes a node from the parts of each rule."""

    def binary(self, left: Node, sign: Token, right: Node) -> Node:
        return CallExpression("<>" if sign == "!=" else sign.upper(), (left, right))

    def negation(self, part: Node) -> Node:
        return CallExpression("NOT", (part,))

    def state(self, part: Node, negated: Token | None, state: Token) -> Node:
        return _unless(negated, CallExpression(f"IS {state.upper()}", (part,)))

    def matched(self, part: Node, negated: Token | None, operator: Token, *others: Node) -> Node:
        return _unless(negated, CallExpression(operator.upper(), (part, *others)))

    def between(self, part: Node, negated: Token | None, low: Node, high: Node) -> Node:
        bounds = CallExpression(">=", (part, low)), CallExpression("<=", (part, high))
        return _unless(negated, CallExpression("AND", bounds))

    def minus(self, _: Token, part: Node) -> Node:
        return CallExpression("-", (Literal(Decimal(0)), part))

    def call(self, function: Token, *parts: Node) -> Node:
        return CallExpression(function.upper(), parts)

    def number(self, token: Token) -> Node:
        number = Decimal(token)
        if number.adjusted() not in _DIGITS:
            raise InvalidOperation
        return Literal(number)

    def text(self, token: Token) -> Node:
        return Literal(token[1:-1].replace("''", "'"))

    def constant(self, token: Token) -> Node:
        return Literal(_STATES[token.upper()])

    def quoted(self, token: Token) -> Node:
        return Name(token[1:-1].replace(token[0] * 2, token[0]), quoted=True)

    def name(self, token: Token) -> Node:
        return Name(str(token))


def _unless(negated: Token | None, node: Node) -> Node:
    return CallExpression("NOT", (node,)) if negated else node


# The basic lexer reserves keywords; the contextual one would read them as names where none can be.
# Two minus signs begin a comment in SQL, and a condition has none: they are no token.
_PARSER: Final = Lark(_GRAMMAR, parser="lalr", lexer="basic", transformer=_Nodes())


def parse(text: str) -> Node:
    """Parses a condition.

    Raises:
        DeclarationError: The text is invalid.
    """
    if not text.strip() or len(text) > LENGTH_MAX:
        raise DeclarationError(
            "a condition is empty or too long", detail=f"{LENGTH_MAX} characters", hint=_HINT
        )
    try:
        node = cast("Node", _PARSER.parse(text))
    except UnexpectedInput as error:
        ended = isinstance(error, UnexpectedToken) and error.token.type == "$END"
        place = error.pos_in_stream or 0
        detail = "it ends too early" if ended else f"at {text[place : place + 20]!r}"
        raise DeclarationError("a condition cannot be parsed", detail=detail, hint=_HINT) from None
    except InvalidOperation:
        raise DeclarationError("a number in a condition is out of range", hint=_HINT) from None
    if _height(node) > HEIGHT_MAX:
        raise DeclarationError("a condition has too many operators", hint=_HINT)
    return node


def _height(node: Node) -> int:
    height = 0
    level = [node]
    while level := [
        part for each in level if isinstance(each, CallExpression) for part in each.parts
    ]:
        height += 1
    return height
