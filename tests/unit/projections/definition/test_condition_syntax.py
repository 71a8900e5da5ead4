"""What is a condition: a text of the subset that all engines evaluate alike, and no other text."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projections.definition.expectations.evaluator import Type, fitted
from projections.definition.expectations.parser import LENGTH_MAX, parse
from projections.definition.expectations.tree import CallExpression, Literal, Name
from projections.errors import DeclarationError
from tests.fix_seeds import examples

if TYPE_CHECKING:
    from projections.definition.expectations.tree import Node

COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")
STATES = ("IS NULL", "IS TRUE", "IS FALSE")
# How strongly an operator binds; the others bind as strongly as a literal.
STRENGTH = {
    "OR": 1,
    "AND": 2,
    "NOT": 3,
    **dict.fromkeys((*COMPARISONS, *STATES, "IN", "LIKE"), 4),
    **dict.fromkeys("+-", 5),
    "*": 6,
}
# Words that are keywords elsewhere, and names here.
WORDS = ("a", "Total", "_x", "länge", "date", "left", "case", "at", "per", "any", "select", "order")
NAMES = st.builds(Name, st.sampled_from(WORDS)) | st.builds(
    Name, st.text(min_size=1, max_size=5), st.just(True)
)
NUMBERS = st.decimals(0, allow_nan=False, allow_infinity=False).map(abs)
LITERALS = st.builds(
    Literal, st.sampled_from([None, True, False]) | NUMBERS | st.text(max_size=5) | st.just("it's")
)


def _calls(parts: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    many = st.lists(parts, min_size=1, max_size=3)
    return (
        st.builds(
            lambda operator, *both: CallExpression(operator, both),
            st.sampled_from(["OR", "AND", *COMPARISONS, "LIKE", "+", "-", "*"]),
            parts,
            parts,
        )
        | st.builds(
            lambda operator, part: CallExpression(operator, (part,)),
            st.sampled_from(["NOT", *STATES]),
            parts,
        )
        | st.builds(lambda part, listed: CallExpression("IN", (part, *listed)), parts, many)
        | st.builds(
            lambda function, given: CallExpression(function, tuple(given)),
            st.sampled_from(["LENGTH", "COALESCE", "RANDOM", "CAST", "TRIM", "EXISTS", "IF"]),
            st.just([]) | many,
        )
    )


TREES = st.recursive(NAMES | LITERALS, _calls, max_leaves=12)


def written(node: Node, least: int = 0) -> str:
    """The text of a tree, with only the parentheses that an operator of this strength needs."""
    if isinstance(node, Name):
        return '"' + node.name.replace('"', '""') + '"' if node.quoted else node.name
    if isinstance(node, Literal):
        if isinstance(node.value, str):
            return "'" + node.value.replace("'", "''") + "'"
        return "NULL" if node.value is None else str(node.value)
    strength = STRENGTH.get(node.operator)
    if strength is None:
        return f"{node.operator}({', '.join(map(written, node.parts))})"
    if node.operator == "NOT":
        text = f"NOT {written(node.parts[0], 4)}"
    elif node.operator in STATES:
        text = f"{written(node.parts[0], 5)} {node.operator}"
    elif node.operator == "IN":
        text = f"{written(node.parts[0], 5)} IN ({', '.join(map(written, node.parts[1:]))})"
    else:
        left, right = node.parts
        # comparisons do not chain; the others group to the left
        first = written(left, strength + (strength == 4))
        text = f"{first} {node.operator} {written(right, strength + 1)}"
    return f"({text})" if strength < least else text


@given(TREES)
@settings(max_examples=examples(2000))
def test_a_tree_that_is_written_is_parsed_as_the_same_tree(tree: Node) -> None:
    assert tree == parse(written(tree))


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("a != b", "a <> b"),
        ("a NOT IN (b)", "NOT a IN (b)"),
        ("a NOT LIKE 'b'", "NOT a LIKE 'b'"),
        ("a BETWEEN b AND c AND d", "a >= b AND a <= c AND d"),
        ("a NOT BETWEEN b + 1 AND c", "NOT (a >= b + 1 AND a <= c)"),
        ("a IS NOT NULL", "NOT a IS NULL"),
        ("NOT NOT NOT a", "NOT a"),
        ("a - -1", "a - (0 - 1)"),
        ("-a * -b", "(0 - a) * (0 - b)"),
        ('`a``b` = "c""d"', '"a`b" = `c"d`'),
        ("a\nor\tnot(b)", "a OR NOT b"),
        ("a = .5 or a = 1. or a = 1.5e-3", "a = 0.5 OR a = 1 OR a = 0.0015"),
    ],
)
def test_two_texts_are_the_same_condition(text: str, same: str) -> None:
    assert parse(same) == parse(text)


@pytest.mark.parametrize(
    "text",
    [
        # comments, several statements, what follows a condition
        *(
            "a -- a comment",
            "a > 1 -- b",
            "a > --1",
            "a--1",
            "a /* b */",
            "/* b */ a",
            "a # b",
            "{# b #} a",
            "a;",
            "a; b",
            "a b",
        ),
        *("a = 1 b", "a AS b", "(a) (b)", "f(a)(b)", "f(a) OVER (b)", "f(a) FILTER (WHERE b)"),
        # operators that engines disagree on, or that SQL has not
        *("a / b", "a % b", "a == b", "a || b", "a ^ b", "a ** b", "+a", "a -> b", "a <=> b"),
        *("a ~ b", "a ! b", "NOT", "a < b < c", "a = b = c", "a IS NULL IS NULL", "a = NOT b"),
        *("a = b IS NULL", "a IN (1) IN (2)", "a LIKE b LIKE c", "a + NOT b", "a NOT NULL"),
        *("a IS b", "a IS (TRUE)", "a IS NOT", "a IS NOT NOT TRUE", "a IS DISTINCT FROM b"),
        *("a NOT b", "a ISNULL", "a BETWEEN 1 2", "a BETWEEN SYMMETRIC 1 AND 2", "a ILIKE 'b'"),
        *("a LIKE 'b' ESCAPE '!'", "a SIMILAR TO 'b'", "a AT TIME ZONE 'b'", "a COLLATE b"),
        # casts, subqueries, CASE, parameters, arrays, lambdas
        *("a::int", "CAST(a AS int)", "(SELECT a)", "a IN (SELECT b)", "EXISTS (SELECT a)"),
        *("CASE WHEN a THEN b END", "a.b", "a.*", "*", "f(*)", "f(DISTINCT a)", "f(a ORDER BY b)"),
        *("?", ":a", "@a", "$1", "%s", "a[1]", "ARRAY[1]", "[1]", "{a}", "x -> x", "f(x => 1)"),
        *("TRIM(BOTH FROM a)", "EXTRACT(day FROM a)", "f(a IGNORE NULLS)", '"f"(a)'),
        # lists and parentheses
        *("()", "(a, b)", "(a", "a)", "a IN ()", "a IN b", "a IN (1,)", "a IN (,1)", "f(a,)"),
        *("f(a b)", "a, b", "AND", "a AND", "OR a", "IN", "like", "f(AND)", "is(a)"),
        # literals
        *("DATE '2026-11-21'", "INTERVAL '1' DAY", "N'a'", "E'a'", "x'ab'", "U&'a'", "_utf8'a'"),
        *("'a' 'b'", "'a", '"a', "`a", '""', "``", "1_000", "0x1F", "0b1", "1e", "1e+", "1.5.5"),
        *(
            "1a",
            "3L",
            ". 5",
            "$$a$$",
            "a = 1e99999999999999999999",
            "a < 1e131072",
            "a < 1e-16384",
            "",
            " ",
            "\x00",
            "a\u200b",
        ),
        # limits
        "a" + " " * LENGTH_MAX,
        "a" + "+a" * 900,
        "- " * 900 + "a",
    ],
)
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        parse(text)

    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("total >", "it ends too early"),
        ("(total > 1", "it ends too early"),
        ("total >> 3", "at '> 3'"),
        ("total > 1 -- b", "at '-- b'"),
    ],
)
def test_a_refusal_says_where(text: str, detail: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        parse(text)

    assert detail == caught.value.detail


PIECES = st.sampled_from(
    [
        *(" ", "  ", "\n", "(", ")", ",", ".", ";", "'", '"', "`", "''", "--", "/*", "::", "|"),
        *("=", "<", ">", "!", "+", "-", "*", "/", "{", "[", "]", "$", "?", "@", "#", "\\", "\x00"),
        *("a", "b1", "ß", "٣", "²", "1", "1.5", ".5", "1e9", "'x'", '"y"', "`z`", "f(", "NULL"),
        *(" AND ", " OR ", "NOT ", " IS ", " IN (", " BETWEEN ", " LIKE ", " TRUE", "CASE", "DATE"),
    ]
)


@given(st.lists(PIECES, max_size=12).map("".join) | st.text(max_size=20))
@settings(max_examples=examples(2000))
def test_a_text_is_parsed_or_refused_and_raises_nothing_else(text: str) -> None:
    try:
        tree = parse(text)
    except DeclarationError:
        return
    assert tree == parse(written(tree))


@pytest.mark.parametrize(
    "text",
    [
        "b" + " OR b" * 399,
        "b IN (" * 40 + "b" + ")" * 40,
        "NOT (" * 300 + "b" + ")" * 300,
        "(" * 900 + "b" + ")" * 900,
        "a = a" + "+a" * 399,
        "a = " + "- " * 399 + "a",
    ],
)
def test_the_largest_conditions_are_evaluated(text: str) -> None:
    condition = fitted(parse(text), {"a": Type.NUMBER, "b": Type.BOOLEAN})

    assert condition.evaluate({"a": Decimal(1), "b": True}) is not None
