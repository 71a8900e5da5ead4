"""Searches that are kept: how they are read, and that none is looked for by the wrong term."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.definition.operators.standing_query import (
    ANYTHING,
    DEPTH_MAX,
    LENGTH_MAX,
    Compared,
    Document,
    FieldKind,
    Joined,
    Negated,
    QueryParser,
    Words,
    anchors,
    matches,
    needs,
    parse,
    terms,
    words_of,
)
from projections.definition.registry import load
from projections.errors import DeclarationError, StandingQueryError

if TYPE_CHECKING:
    from pathlib import Path

    from projections.definition.operators.standing_query import Query

FIELDS = {
    "price": FieldKind.NUMBER,
    "kind": FieldKind.TEXT,
    "sold": FieldKind.BOOLEAN,
    "day": FieldKind.DATE,
    "at": FieldKind.TIME,
    "tags": FieldKind.TEXTS,
}
CHAIR = Document(
    (words_of("Red Arm-chair"), words_of("As new, from Malmö")),
    {
        "price": Decimal("499.90"),
        "kind": "seats",
        "sold": False,
        "day": (date(2026, 11, 21) - date(1970, 1, 1)).days,
        "at": 1_795_000_000_000_000,  # 2026-11-18 11:06:40 UTC
        "tags": ["old", "Nice"],
    },
)


@pytest.mark.parametrize(
    "text",
    [
        *("red", "RED chair", "new red", '"red arm"', "arm-chair", '"arm chair"', "mal*", "MALMÖ"),
        *("arm-ch*", "red -blue", "blue | red", "(blue | red) chair", "-(blue | green)", "*"),
        *("--red", "price<500", "price=499.9", "price!=3", "kind:seats", 'kind:"seats"', "kind>s"),
        *("sold:false", "sold:FALSE", "day:2026-11-21", "day>2026-11-20", "tags:Nice", "tags!=x"),
        *("at>=2026-11-18T11:06:40Z", "at<2026-11-18T13:06:41+02:00", "at>2026-11-18"),
        *("red price<500 kind:seats -sold:true", "-price>500 chair", "\u212bsa | \ufb00 | red"),
    ],
)
def test_a_query_matches(text: str) -> None:
    query = parse(text, FIELDS)

    assert matches(query, CHAIR)
    assert anchors(query) & terms(CHAIR)


@pytest.mark.parametrize(
    "text",
    [
        *("blue", "re", "red blue", '"red chair"', '"chair arm"', '"chair as"', "blue*", "-red"),
        *("red -chair", "blue | green", "-(blue | red)", "price>500", "price=499.91", "kind:seat"),
        *("kind:Seats", "sold:true", "day<2026-11-21", "tags:nice", "tags!=old", "chair*red"),
        *("at<2026-11-18T11:06:40Z", "red (blue | green)"),
    ],
)
def test_a_query_does_not_match(text: str) -> None:
    assert not matches(parse(text, FIELDS), CHAIR)


def test_a_field_without_a_value_is_neither_this_nor_that() -> None:
    nothing = Document(((),), dict.fromkeys(FIELDS))

    for text in ("price<5", "price!=5", "kind!=a", "tags!=a", "sold!=true"):
        assert not matches(parse(text, FIELDS), nothing)
    assert matches(parse("-price:5", FIELDS), nothing)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        (" \t", "empty"),
        ("x" * (LENGTH_MAX + 1), "too long"),
        ('red "arm', "at '\"arm'"),
        ("(red", "not closed"),
        ("red)", "at ')'"),
        ("red |", "at 'its end'"),
        ("| red", "at '|'"),
        ("()", "at ')'"),
        ("red - blue", "at '-'"),
        ("!!", "at '!!'"),
        ('""', "at '\"\"'"),
        ("weight:3", "names weight"),
        ("http://x", "names http"),
        ("price:cheap", "not a number"),
        ("price:NaN", "not a number"),
        ("price<1e", "not a number"),
        ("sold:maybe", "is not a boolean"),
        ("sold>true", "has no order"),
        ("tags<a", "has no order"),
        ("day:2026-13-01", "is not a date"),
        ("at:yesterday", "not a time"),
        ("(" * (DEPTH_MAX + 1) + "a" + ")" * (DEPTH_MAX + 1), "too many nested parentheses"),
    ],
)
def test_what_cannot_be_read_says_why(text: str, said: str) -> None:
    with pytest.raises(StandingQueryError) as refused:
        parse(text, FIELDS)

    assert said in f"{refused.value.message} {refused.value.detail}"
    assert refused.value.hint
    reader = QueryParser(FIELDS)
    assert (None, True) == (reader.query(text), said in str(reader.refusal(text)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a bicycle", {"bicycle"}),
        ("tab* cloth", {"cloth"}),
        ("tab*", {ANYTHING}),
        ("red | blue", {"red", "blue"}),
        ("(red | blue) chair", {"chair"}),
        ("red | price<5", {"red", ANYTHING}),
        ("-red", {ANYTHING}),
        ("chair -red", {"chair"}),
        ("kind:seats", {"kind=seats"}),
        ("sold:true", {"sold=true"}),
        (f"kind:{'x' * 65}", {ANYTHING}),
        ("price:5", {ANYTHING}),
    ],
)
def test_a_query_is_found_by_few_and_rare_terms(text: str, expected: set[str]) -> None:
    assert expected == anchors(parse(text, FIELDS))


WORDS = st.sampled_from(["a", "ab", "abc", "b", "red"])
VALUES = {
    "price": st.integers(0, 3).map(Decimal),
    "kind": st.sampled_from(["a", "b", "x" * 70]),
    "sold": st.booleans(),
    "tags": st.lists(st.sampled_from(["a", "b"]), max_size=2),
}
DOCUMENTS = st.builds(
    Document,
    st.lists(st.lists(WORDS, max_size=4).map(tuple), max_size=2).map(tuple),
    st.fixed_dictionaries({name: st.none() | values for name, values in VALUES.items()}),
)
LEAVES = st.one_of(
    st.builds(Words, st.lists(WORDS, min_size=1, max_size=2).map(tuple), st.booleans()),
    st.builds(Compared, st.just("price"), st.sampled_from([":", "!=", "<", ">="]), VALUES["price"]),
    st.builds(Compared, st.just("kind"), st.sampled_from(["=", "!=", "<"]), VALUES["kind"]),
    st.builds(Compared, st.just("sold"), st.sampled_from([":", "!="]), VALUES["sold"]),
    st.builds(Compared, st.just("tags"), st.sampled_from([":", "!="]), st.sampled_from("abc")),
)
QUERIES = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds(Negated, inner)
        | st.builds(Joined, st.lists(inner, min_size=1, max_size=3).map(tuple), st.booleans())
    ),
    max_leaves=6,
)


@given(QUERIES, DOCUMENTS)
def test_a_document_that_matches_shares_a_term_with_the_query(
    query: Query, document: Document
) -> None:
    needed, enough = needs(query)

    if matches(query, document):
        assert anchors(query) & terms(document)
        assert needed <= terms(document)
    else:
        assert not enough or not needed <= terms(document)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    reader = QueryParser(FIELDS)

    assert (reader.query(text) is None) == (reader.refusal(text) is not None)


VIEWS = """
    from headwater import source, view

    shop = source("shop", tables=["public.products", "public.wishes"])
    products = view.mirror("products", shop.products, keys=["sku"], to=["table"])
    wishes = view.mirror("wishes", shop.wishes, keys=["id"], to=["table"])
    {declared}
"""


def declared(folder: Path, text: str) -> Path:
    path = folder / "views.py"
    path.write_text(dedent(VIEWS).format(declared=text))
    return path


def test_a_view_of_matches_is_keyed_by_query_and_document(tmp_path: Path) -> None:
    text = 'view.percolate("found", products, queries=wishes, query="wanted", words=["name"])'
    found = load(declared(tmp_path, text)).derived["found"]

    assert (("query_id", "sku"), ("products", "wishes")) == (found.keys, found.inputs)
    other = load(declared(tmp_path, text.replace('["name"]', '["about"]'))).derived["found"]
    assert found.fingerprint != other.fingerprint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('queries=wishes, query="wanted", words=[]', "has no columns to search for words"),
        ('queries=products, query="wanted", words=["name"]', "cannot contain both"),
        (
            'queries=wishes, query="wanted", words=["name"], keep=["sku"]',
            "view found has two columns named sku",
        ),
        (
            'queries=wishes, query="wanted", words=["name"], keep=["query_id"]',
            "view found has two columns named query_id",
        ),
    ],
)
def test_a_declaration_that_does_not_fit_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        load(declared(tmp_path, f'view.percolate("found", products, {text})'))
