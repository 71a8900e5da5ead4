"""What is written reads back equal to what was given, or it is not written."""

from __future__ import annotations

import json
import random
from collections import OrderedDict
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from datetime import time as clock_time
from decimal import Decimal
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from eventstore.errors import (
    EventRefusedError,
    NameRefusedError,
    UpcastError,
)
from eventstore.serialization.exactness import fault_of
from eventstore.serialization.registry import EventData
from tests.fix_seeds import examples
from tests.fix_stored import stored
from tests.support.declared_events import (
    Everything,
    Level,
    Line,
    Mood,
    Pair,
    Small,
    codec,
    decimals,
    encode,
    lines,
    moments,
    texts,
    zones,
)

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def fields_of(value: Any) -> list[str]:
    return list(value.__dataclass_fields__)


def shown(value: object) -> str:
    """A text that is the same for the same value of the same type only."""
    if isinstance(value, dict):
        items = sorted((shown(key), shown(item)) for key, item in value.items())
        return f"{type(value).__name__}{items}"
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__}{sorted(map(shown, value))}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}{[shown(item) for item in value]}"
    if hasattr(value, "__dataclass_fields__"):
        return f"{type(value).__name__}{[shown(getattr(value, n)) for n in fields_of(value)]}"
    if isinstance(value, datetime | clock_time):
        value = value.replace(fold=0)  # says nothing beside an offset
    return f"{type(value).__name__} {value!r}"


whole = st.integers(-(2**63), 2**63 - 1)


finite = st.floats(allow_nan=False, allow_infinity=False)


scalars = st.none() | st.booleans() | whole | finite | texts


json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


good = st.builds(
    Everything,
    text=texts,
    number=whole,
    real=finite,
    amount=decimals,
    at=moments,
    day=st.dates(),
    clock=st.times(),
    span=st.timedeltas(),
    identity=st.uuids(),
    raw=st.binary(max_size=8),
    flag=st.none() | st.booleans(),
    mood=st.sampled_from(Mood),
    kind=st.sampled_from(["a", "b"]),
    lines=st.lists(lines, max_size=2),
    pair=st.builds(Pair, whole, texts),
    moments=st.lists(moments, max_size=2).map(tuple),
    table=st.dictionaries(texts, st.lists(finite, max_size=2), max_size=2),
    counts=st.dictionaries(whole, texts, max_size=3),
    days=st.dictionaries(st.dates(), decimals, max_size=2),
    chosen=st.sets(texts, max_size=3),
    amounts=st.frozensets(decimals, max_size=2),
    open=json_values,
)


strange = st.one_of(
    st.floats(),
    st.decimals(),
    st.integers(),
    st.text(max_size=3),
    st.datetimes(timezones=st.none() | zones | st.timezones()),
    st.sampled_from([Mood.GOOD, Level.LOW, Pair(1, "a"), b"a", bytearray(b"a"), object(), {1}]),
    st.sampled_from([OrderedDict(a=1), (1, 2), {1: 2}, {1: 1, "1": 2}, {True: 1}, {None: 1}, 1j]),
)


anything = st.recursive(
    strange | scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=2).map(tuple)
        | st.dictionaries(texts | whole, inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(deadline=None, max_examples=examples(60))
@given(good)
@example(Everything(amount=Decimal("1.10"), amounts=frozenset({Decimal("-0"), Decimal("1E+5")})))
@example(Everything(real=-0.0, number=2**63 - 1, span=timedelta(days=-1, microseconds=1)))
@example(Everything(at=datetime.min.replace(tzinfo=UTC), day=date.max, clock=clock_time.max))
@example(Everything(text="\\u0000 \x7f \u2028 \U0001f600 \ufeff", counts={-1: "", 10: "x"}))
def test_every_value_of_the_declared_types_reads_back_exactly(event):
    new = encode(event)
    read = codec.decode(stored(new))

    assert event == read
    assert shown(event) == shown(read)
    json.loads(new.data)


@settings(deadline=None, max_examples=examples(100))
@given(st.sampled_from(sorted(Everything.__dataclass_fields__)), anything)
@example("real", 5)
@example("amount", 1.5)
@example("number", True)
@example("open", {"a": (1,)})
@example("open", [Decimal("1.10")])
@example("lines", (Line("a", Decimal(1)),))
@example("counts", {True: "a"})
@example("amounts", frozenset({Decimal("NaN")}))
def test_a_value_of_any_other_kind_reads_back_exactly_or_is_refused(name, value):
    event = replace(Everything(), **{name: value})
    refused = None
    try:
        read = codec.decode(stored(encode(event)))
    except EventRefusedError as error:
        refused = error.detail

    assert shown(event) == shown(read) if refused is None else refused.startswith(name)


@settings(deadline=None, max_examples=examples(100))
@given(st.dictionaries(texts, anything, max_size=3))
@example({"a": float("nan")})
@example({"a": "\0"})
@example({"\0": 1})
@example({"a": "\ud800"})
def test_a_payload_without_a_class_reads_back_exactly_or_is_refused(data):
    try:
        new = encode(EventData("any.happened", data))
    except EventRefusedError:
        return
    assert shown(data) == shown(json.loads(new.data))


def test_an_instant_keeps_its_moment_and_offset_also_in_a_repeated_hour():
    berlin = ZoneInfo("Europe/Berlin")
    for fold, hours in ((0, 2), (1, 1)):
        at = datetime(2026, 10, 25, 2, 30, tzinfo=berlin, fold=fold)

        read = codec.decode(stored(encode(Everything(at=at)))).at

        assert timedelta(hours=hours) == read.utcoffset()
        assert at.astimezone(UTC) == read.astimezone(UTC)


def test_equal_events_have_equal_bytes():
    words = [f"word {number}" for number in range(20)]
    first = Everything(
        open={"a": 1, "b": {"c": 2, "d": 3}}, chosen=set(words), counts={1: "", 2: ""}
    )
    words.reverse()
    second = Everything(
        open={"b": {"d": 3, "c": 2}, "a": 1}, chosen=set(words), counts={2: "", 1: ""}
    )

    assert first == second
    assert encode(first).data == encode(second).data


def test_an_event_says_what_it_is_about_when_and_which_one():
    before = datetime.now(UTC)
    new = encode(Small("o1", 5))
    at = datetime(2026, 1, 1, tzinfo=UTC)
    given_id = uuid4()
    told = encode(Small("o1", 5), event_id=given_id, occurred_at=at, tags=["a:1", "order:o1"])

    assert ("small.happened", 1, b'{"order_id":"o1","total":5}') == (
        new.type,
        new.schema_version,
        new.data,
    )
    assert ("order:o1",) == new.tags
    assert before <= new.occurred_at <= datetime.now(UTC)
    assert 7 == new.event_id.version
    assert (given_id, at, ("order:o1", "a:1")) == (told.event_id, told.occurred_at, told.tags)
    assert b"" == new.digest


def test_a_time_without_an_offset_is_no_occurred_at():
    with pytest.raises(EventRefusedError, match="time without a UTC offset"):
        encode(Small("o1", 5), occurred_at=datetime(2026, 1, 1))  # noqa: DTZ001


def test_tags_are_several():
    with pytest.raises(EventRefusedError, match="a str, not a list"):
        encode(Small("o1", 5), tags="order:o1")
    with pytest.raises(NameRefusedError):
        encode(Small("o1\n", 5))


@pytest.mark.parametrize("data", [[], None, "a", {1: 2}, OrderedDict(a=1)], ids=repr)
def test_a_payload_without_a_class_is_a_dict_of_texts(data):
    with pytest.raises(EventRefusedError, match="dict with str keys"):
        encode(EventData("any.happened", data))


def test_a_payload_is_read_as_plain_values():
    new = encode(Everything(amount=Decimal("1.10"), lines=[Line("a", Decimal(2))]))
    payload = codec.payload(stored(new))

    assert ("1.10", [{"sku": "a", "price": "2", "notes": []}]) == (
        payload["amount"],
        payload["lines"],
    )
    with pytest.raises(UpcastError, match="does not fit its class"):
        codec.payload(stored(new, data=b"[]"))


@pytest.mark.parametrize(
    ("given_value", "read"),
    [
        (Decimal("1.10"), Decimal("1.1")),
        (Decimal("-0"), Decimal(0)),
        (1, True),
        (1, 1.0),
        ({True: "a"}, {1: "a"}),
        ({1.0: "a"}, {1: "a"}),
        ({1}, {True}),
        (frozenset({Decimal("1.0")}), frozenset({Decimal(1)})),
        (Pair(1, "a"), (1, "a")),
        (clock_time(1, tzinfo=timezone(timedelta(hours=1))), clock_time(0, tzinfo=UTC)),
        (MOMENT, MOMENT.astimezone(timezone(timedelta(hours=1)))),
    ],
    ids=str,
)
def test_what_python_calls_equal_may_be_another_value(given_value, read):
    assert given_value == read
    assert fault_of(given_value, read) is not None


def test_nothing_differs_from_itself_but_what_breaks_a_rule():
    values = [1, "a", None, True, 1.5, Decimal(1), [1], {"a": {1, 2}}, Mood.BAD, Pair(1, "b")]
    random.shuffle(values)

    assert [None] * len(values) == [fault_of(value, value) for value in values]
    assert fault_of([1, [float("nan")]], [1, [float("nan")]]).path == "[1][0]"
