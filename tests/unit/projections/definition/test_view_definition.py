"""Definitions of views are kept as data, and what differs between two says what is to be done."""

from __future__ import annotations

import dataclasses
import hashlib
from datetime import timedelta
from typing import TYPE_CHECKING

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.table import TableName
from eventstore.serialization.registry import EventTypes
from projections.definition.cache_options import CacheOptions
from projections.definition.codec import decoded, digest, encoded
from projections.definition.derived.view_function import digest_in, identity_text
from projections.definition.diff import DefinitionChangeKind, difference
from projections.definition.expectations.expectation import Expectation, OnFail, deletes
from projections.definition.operators.pattern import Pattern, PatternQuery, Step
from projections.definition.operators.standing_query import Percolation
from projections.definition.operators.time_bounds import of_window, span_of
from projections.definition.operators.windows import (
    Calendar,
    Hopping,
    Session,
    Sliding,
    Tumbling,
    Window,
)
from projections.definition.registry import load
from projections.definition.search_options import Keyword, SearchOptions, Stored, Text
from projections.definition.views import (
    DerivedView,
    EventsRef,
    EventsView,
    HistoryColumns,
    MirrorView,
    SchemaPolicy,
    Store,
)
from projections.errors import DefinitionUnreadableError

if TYPE_CHECKING:
    from pathlib import Path

ORDERS = TableName("public", "orders")
names = st.text("abc", min_size=1, max_size=3)
expectations = st.builds(
    Expectation, names, st.sampled_from(["a > 1", "b IS NOT NULL"]), st.sampled_from(OnFail)
)
cache = st.builds(
    CacheOptions,
    st.sampled_from(["document", "hash"]),
    st.none() | st.just(timedelta(hours=1)),
    st.just(("customer:{a}:orders",)) | st.just(()),
    st.just({"total:{a}": "*"}) | st.just({}),
)
search = st.builds(
    SearchOptions,
    st.dictionaries(names, st.just(Text(boost=2.0)) | st.just(Keyword()) | st.just(Stored())),
    st.none() | st.just("english"),
    st.just({"analyzer": {"own": {"filter": ["lowercase"]}}}) | st.just({}),
)
views = st.builds(
    MirrorView,
    st.just("orders"),
    st.just("shop"),
    st.just(ORDERS),
    st.just(()) | st.just(("id",)),
    st.frozensets(st.sampled_from(Store), min_size=1),
    st.none() | st.sampled_from(SchemaPolicy),
    cache,
    search,
    st.none() | st.just(HistoryColumns(("a",), (), "placed_at")),
    st.lists(expectations, max_size=2).map(tuple),
    st.lists(names, max_size=2, unique=True).map(tuple),
)


def view(**said: object) -> MirrorView:
    given: dict[str, object] = {"keys": (), "to": frozenset(Store), **said}
    return MirrorView("orders", "shop", ORDERS, **given)  # type: ignore[arg-type]


def changed(old: MirrorView, new: MirrorView, *, gone: bool = False) -> DefinitionChangeKind:
    return difference(old, new, gone=lambda _: gone).kind


@given(views)
def test_a_definition_is_the_same_after_it_was_kept_as_json(declared: MirrorView) -> None:
    kept = decoded(orjson.loads(orjson.dumps(encoded(declared))))

    assert encoded(declared) == encoded(kept)
    assert digest(declared) == digest(kept)
    assert DefinitionChangeKind.NONE is difference(declared, kept, gone=lambda _: False).kind


@given(views, views)
def test_definitions_have_one_digest_if_and_only_if_nothing_differs(
    one: MirrorView, other: MirrorView
) -> None:
    same = encoded(one) == encoded(other)

    assert same == (digest(one) == digest(other))
    if same:
        assert DefinitionChangeKind.NONE is difference(one, other, gone=lambda _: False).kind


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (view(), view(left_out=("note",)), DefinitionChangeKind.REBUILD),
        (view(), view(expectations=(deletes("a > 1"),)), DefinitionChangeKind.REBUILD),
        (view(), view(history=HistoryColumns()), DefinitionChangeKind.REBUILD),
        (view(), view(cache=CacheOptions(layout="hash")), DefinitionChangeKind.REBUILD),
        (view(), view(cache=CacheOptions(ttl=timedelta(hours=1))), DefinitionChangeKind.IN_PLACE),
        (view(), view(to=frozenset({Store.TABLE})), DefinitionChangeKind.IN_PLACE),
        (view(), view(search=SearchOptions(analyzer="english")), DefinitionChangeKind.IN_PLACE),
        (view(), view(on_schema_change=SchemaPolicy.PAUSE), DefinitionChangeKind.IN_PLACE),
        (
            view(),
            view(expectations=(Expectation("a", "a > 1", OnFail.WARN),)),
            DefinitionChangeKind.IN_PLACE,
        ),
    ],
    ids=lambda each: each.value if isinstance(each, DefinitionChangeKind) else "",
)
def test_only_what_makes_other_rows_asks_for_a_rebuild(
    old: MirrorView, new: MirrorView, kind: DefinitionChangeKind
) -> None:
    assert kind is changed(old, new)
    assert kind is changed(new, old)


SELECTED = DerivedView("by_status", ("status",), frozenset(Store), ("orders",), "SELECT 1")
LOOKED_FOR = PatternQuery(
    Pattern([Step("a", "true"), Step("b", "true", beside=["n > 2 * a.n"])], within="1 hour"),
    ("card",),
    "at",
    ("n",),
)
PERCOLATED = Percolation("query", ("id",), ("id",), ("title",), ())


def derived(**said: object) -> DerivedView:
    return dataclasses.replace(SELECTED, **said)


PARTS = {text: identity_text(hashlib.sha256(text.encode()).hexdigest()) for text in "12"}
SAID = "its function, or other code of its module"


def function(text: str, **said: object) -> DerivedView:
    return derived(sql=None, function=print, text=text, **said)


def part(text: str, **said: object) -> DerivedView:
    """Of a function of which it is known what it needs of its module."""
    return function(PARTS[text], **said)


@pytest.mark.parametrize(
    ("old", "new", "kind", "said"),
    [
        (derived(), derived(), DefinitionChangeKind.NONE, ()),
        (derived(), derived(sql="SELECT 2"), DefinitionChangeKind.REBUILD, ("its query",)),
        (
            derived(),
            derived(keys=("status", "a")),
            DefinitionChangeKind.REBUILD,
            ("keys: status -> status, a",),
        ),
        (
            derived(),
            derived(inputs=("items",)),
            DefinitionChangeKind.REBUILD,
            ("reads: orders -> items",),
        ),
        (derived(), derived(to=frozenset({Store.TABLE})), DefinitionChangeKind.IN_PLACE, None),
        (
            derived(),
            derived(search=SearchOptions(analyzer="english")),
            DefinitionChangeKind.IN_PLACE,
            None,
        ),
        (derived(), derived(cache=CacheOptions(layout="hash")), DefinitionChangeKind.REBUILD, None),
        (
            derived(),
            derived(expectations=(Expectation("a", "a > 1", OnFail.DROP),)),
            DefinitionChangeKind.REBUILD,
            ("expects a: a > 1 (else drop)",),
        ),
        (
            derived(),
            function("1"),
            DefinitionChangeKind.REBUILD,
            ("a query instead of a function, or the reverse",),
        ),
        (function("1"), function("1"), DefinitionChangeKind.NONE, ()),
        (function("1"), function("2"), DefinitionChangeKind.IN_PLACE, None),
        (function("1"), function("2", keys=("a",)), DefinitionChangeKind.IN_PLACE, None),
        (function("1"), derived(), DefinitionChangeKind.IN_PLACE, None),
        (part("1"), part("1"), DefinitionChangeKind.NONE, ()),
        (part("1"), part("2"), DefinitionChangeKind.REBUILD, ("its function",)),
        (part("1"), function("1"), DefinitionChangeKind.REBUILD, (SAID,)),
        (function("1"), part("1"), DefinitionChangeKind.IN_PLACE, (SAID,)),
        (part("1"), part("1", keys=("a",)), DefinitionChangeKind.REBUILD, ("keys: status -> a",)),
        (
            part("1"),
            derived(),
            DefinitionChangeKind.REBUILD,
            ("a query instead of a function, or the reverse",),
        ),
        (
            derived(sql=None, pattern=LOOKED_FOR, text="1"),
            derived(sql=None, pattern=LOOKED_FOR, text="said otherwise"),
            DefinitionChangeKind.NONE,
            (),
        ),
        (
            derived(sql=None, pattern=LOOKED_FOR),
            derived(sql=None, pattern=dataclasses.replace(LOOKED_FOR, where="n > 1")),
            DefinitionChangeKind.REBUILD,
            ("its query",),
        ),
        (
            derived(sql=None, percolation=PERCOLATED),
            derived(sql=None, percolation=dataclasses.replace(PERCOLATED, keep=("price",))),
            DefinitionChangeKind.REBUILD,
            ("its query",),
        ),
    ],
)
def test_a_view_made_from_others_is_made_anew_beside_itself_for_another_query(
    old: DerivedView, new: DerivedView, kind: DefinitionChangeKind, said: tuple[str, ...] | None
) -> None:
    kept = decoded(orjson.loads(orjson.dumps(encoded(old))))
    assert encoded(old) == encoded(kept)
    found = difference(kept, new, gone=lambda _: False)

    assert (kind, said) == (found.kind, found.differences if said is not None else None)


@pytest.mark.parametrize(
    "window",
    [
        Tumbling("at", "1 minute"),
        Hopping("at", "1 hour", "10 minutes"),
        Calendar("at", "day", "Europe/Stockholm"),
        Session("at", "1 minute"),
        Sliding("at", "1 minute"),
    ],
    ids=lambda window: type(window).__name__,
)
def test_a_definition_of_windows_is_the_same_after_it_was_kept_as_json(window: Window) -> None:
    by = dataclasses.replace(SELECTED, extent=of_window(window, ("status",)), span=span_of(window))

    assert by == decoded(orjson.loads(orjson.dumps(encoded(by))))
    assert (by.extent is None) != (by.span is None)
    assert digest(by) == digest(dataclasses.replace(by, span=None))


@pytest.mark.parametrize("first", ["", "from helpers import *\n"], ids=["a part", "all of it"])
def test_of_a_function_no_text_is_kept(tmp_path: Path, first: str) -> None:
    (tmp_path / "helpers.py").touch()
    declared = by_function(tmp_path, first + "SECRET = 1\n")

    assert "SECRET" not in orjson.dumps(encoded(declared)).decode()
    assert (first == "") == (digest_in(declared.text) is not None)


def test_what_an_earlier_release_noted_of_a_function_is_the_same_in_the_same_module(
    tmp_path: Path,
) -> None:
    declared = by_function(tmp_path, "")
    whole = (tmp_path / "views.py").read_text()
    noted = {**encoded(declared), "text": hashlib.sha256(whole.encode()).hexdigest()}
    # as it was reckoned then, of the text itself
    made_by = dataclasses.replace(declared, function=None, text=whole).fingerprint
    edited = by_function(tmp_path, "# of no account\n")

    assert (
        DefinitionChangeKind.NONE is difference(decoded(noted), declared, gone=lambda _: False).kind
    )
    assert {made_by, declared.fingerprint} == declared.fingerprints
    found = difference(decoded(noted), edited, gone=lambda _: False)
    assert (DefinitionChangeKind.IN_PLACE, (SAID,)) == (found.kind, found.differences)
    assert declared.text == edited.text
    assert made_by not in edited.fingerprints


def by_function(folder: Path, first: str) -> DerivedView:
    module = folder / "views.py"
    module.write_text(
        f"{first}from headwater import source, view\n"
        'shop = source("shop", tables=["public.orders"])\n'
        'view.mirror("orders", shop.orders)\n'
        '@view(keys=["id"])\n'
        "def doubled(orders):\n"
        "    return orders * 2\n"
    )
    return load(module).derived["doubled"]


def test_another_table_asks_for_a_rebuild_unless_it_is_the_same_by_a_new_name() -> None:
    other = MirrorView("orders", "shop", TableName("public", "sales"), (), frozenset(Store))

    assert DefinitionChangeKind.REBUILD is changed(view(), other)
    assert DefinitionChangeKind.IN_PLACE is changed(view(), other, gone=True)


def test_a_difference_names_the_columns_that_it_explains() -> None:
    found = difference(view(left_out=("a", "b")), view(left_out=("b", "c")), gone=lambda _: False)

    assert frozenset({"a", "c"}) == found.columns
    assert ("columns left out: a, b -> b, c",) == found.differences


@pytest.mark.parametrize(
    "document",
    [
        {"is": "subprocess.Popen", "args": ["true"]},
        {"is": "MirrorView", "name": "orders"},
        {"is": "Store", "value": "nowhere"},
        {"is": "TableName", "schema": "public", "name": "orders"},
        ["nothing"],
    ],
    ids=["another class", "half of it", "no such store", "no view", "a list"],
)
def test_a_definition_that_somebody_has_altered_is_refused(document: object) -> None:
    with pytest.raises(DefinitionUnreadableError) as refused:
        decoded(document)

    assert "HW-P135" == refused.value.code


def events(*fields: tuple[str, type], version: int = 1, name: str = "order.placed") -> EventsView:
    """A view of events whose class has such fields."""
    registry = EventTypes()
    registry.event(name, version=version)(dataclasses.make_dataclass("Placed", fields, frozen=True))
    ref = EventsRef("shop", (name,), registry)
    return EventsView("placed", "shop", ref, frozenset({Store.TABLE}))


def test_another_version_of_an_event_asks_for_another_version_of_the_view() -> None:
    old = events(("total", int), ("note", str))
    kept = orjson.loads(orjson.dumps(encoded(old)))
    new = events(("total", int), ("channel", str), version=2)

    found = difference(decoded(kept), new, gone=lambda _: False)
    assert DefinitionChangeKind.REBUILD is found.kind
    assert ("event order.placed: version 1 -> 2",) == found.differences
    assert {"note", "channel"} == found.columns
    assert digest(old) != digest(new)

    again = difference(decoded(kept), old, gone=lambda _: False)
    assert DefinitionChangeKind.NONE is again.kind
    meaning = events(("total", int), ("note", str), version=2)
    assert DefinitionChangeKind.REBUILD is difference(old, meaning, gone=lambda _: False).kind


def test_fields_that_came_without_a_version_ask_for_it_too() -> None:
    old, new = events(("total", int)), events(("total", int), ("note", str | None))
    found = difference(old, new, gone=lambda _: False)
    assert (DefinitionChangeKind.REBUILD, ("fields of its events: note",)) == (
        found.kind,
        found.differences,
    )


def test_a_definition_from_before_versions_were_noted_is_taken_for_the_declared_one() -> None:
    declared = events(("total", int))
    document = encoded(declared)
    ref = {name: each for name, each in document["events"].items() if name not in _NOTED}
    kept = decoded({**document, "events": ref})
    assert isinstance(kept, EventsView)
    assert (None, None) == (kept.events.versions, kept.events.columns)


_NOTED = {"versions", "columns"}
