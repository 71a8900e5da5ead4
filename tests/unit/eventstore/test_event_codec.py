"""What is written reads back equal to what was given, or it is not written."""

from __future__ import annotations

import enum
import json
import random
import traceback
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta, timezone
from datetime import time as clock_time
from decimal import Decimal
from typing import Any, Literal, NamedTuple
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import pytest
from fix_seeds import examples
from fix_stored import STREAM, TENANT, stored
from hypothesis import example, given, settings
from hypothesis import strategies as st

from eventstore.errors import (
    EventRefusedError,
    EventStoreError,
    NameRefusedError,
    UndeclaredError,
    UpcastError,
)
from eventstore.serialization.codec import Codec
from eventstore.serialization.exactness import DEPTH_MAX, fault_of
from eventstore.serialization.registry import EventData, EventTypes

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)

types = EventTypes()
codec = Codec(types)


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


class Level(enum.IntEnum):
    LOW = 1


class Pair(NamedTuple):
    left: int
    right: str


@dataclass(frozen=True)
class Line:
    sku: str
    price: Decimal
    notes: tuple[str, ...] = ()


@types.event("everything.happened")
class Everything:
    text: str = ""
    number: int = 0
    real: float = 0.0
    amount: Decimal = Decimal(0)
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    day: date = date(2026, 1, 1)
    clock: clock_time = clock_time(0)
    span: timedelta = timedelta(0)
    identity: UUID = UUID(int=0)
    raw: bytes = b""
    flag: bool | None = None
    mood: Mood = Mood.GOOD
    level: Level = Level.LOW
    kind: Literal["a", "b"] = "a"
    lines: list[Line] = field(default_factory=list)
    pair: Pair = Pair(0, "")
    moments: tuple[datetime, ...] = ()
    table: dict[str, list[float]] = field(default_factory=dict)
    counts: dict[int, str] = field(default_factory=dict)
    days: dict[date, Decimal] = field(default_factory=dict)
    chosen: set[str] = field(default_factory=set)
    amounts: frozenset[Decimal] = frozenset()
    open: Any = None


@types.event("small.happened", tags=lambda small: [f"order:{small.order_id}"])
class Small:
    order_id: str
    total: int


def encode(event: object, **options: Any):
    return codec.encode(event, tenant=TENANT, stream=STREAM, **options)


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


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
whole = st.integers(-(2**63), 2**63 - 1)
finite = st.floats(allow_nan=False, allow_infinity=False)
decimals = st.decimals(allow_nan=False, allow_infinity=False)
zones = st.integers(-1439, 1439).map(lambda m: timezone(timedelta(minutes=m)))
moments = st.datetimes(timezones=zones | st.just(UTC))
lines = st.builds(Line, texts, decimals, st.lists(texts, max_size=2).map(tuple))
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


REFUSED = [
    ("number", True, "number does not fit its class: expected int, got bool"),
    ("number", 1.0, "number does not fit its class: expected int, got float"),
    ("number", 2**63, "number is an integer beyond 64 bits"),
    ("number", -(2**63) - 1, "number is an integer beyond 64 bits"),
    ("number", Level.LOW, "number is read back as another type: Level as int"),
    ("real", float("nan"), "real is NaN or infinite, which JSON does not have"),
    ("real", float("-inf"), "real is NaN or infinite, which JSON does not have"),
    ("real", 5, "real is read back as another type: int as float"),
    ("real", Decimal(5), "real does not fit its class: expected float, got str"),
    ("amount", 1.5, "amount is read back as another type: float as Decimal"),
    ("amount", 1, "amount is read back as another type: int as Decimal"),
    ("amount", "1.5", "amount is read back as another type: str as Decimal"),
    ("amount", Decimal("sNaN"), "amount is NaN or infinite, which is no amount"),
    ("amount", Decimal("Infinity"), "amount is NaN or infinite, which is no amount"),
    ("at", datetime(2026, 1, 1), "at is a time without a UTC offset"),  # noqa: DTZ001
    ("at", date(2026, 1, 1), "at does not fit its class: ValidationError"),
    ("moments", (datetime(2026, 1, 1),), "moments[0] is a time without a UTC offset"),  # noqa: DTZ001
    ("open", {"a": [datetime(2026, 1, 1)]}, "open[...][0] is a time without a UTC offset"),  # noqa: DTZ001
    (
        "open",
        datetime(2026, 1, 1, tzinfo=UTC),
        "open is read back as another type: datetime as str",
    ),
    (
        "at",
        datetime(2026, 1, 1, tzinfo=timezone(timedelta(seconds=7))),
        "at is read back as another value",
    ),
    (
        "clock",
        clock_time(1, tzinfo=ZoneInfo("Europe/Berlin")),
        "clock is read back as another value",
    ),
    ("text", b"a", "text is read back as another type: bytes as str"),
    ("text", "a\0b", "text has a NUL character, which Postgres does not keep"),
    ("text", "\ud800", "text has a lone surrogate, which is no character"),
    ("text", Mood.GOOD, "text is read back as another type: Mood as str"),
    ("text", None, "text does not fit its class: expected str, got null"),
    ("kind", "c", "kind does not fit its class: ValidationError"),
    ("raw", "YQ==", "raw is read back as another type: str as bytes"),
    ("raw", bytearray(b"a"), "raw is of type bytearray, which cannot be stored"),
    ("open", b"a", "open is read back as another type: bytes as str"),
    ("open", (1,), "open is read back as another type: tuple as list"),
    ("open", {1}, "open is read back as another type: set as list"),
    ("open", {1: 2}, "open has a key that is read back as another one"),
    (
        "open",
        {"a\0": 2},
        "open[...] has a key that has a NUL character, which Postgres does not keep",
    ),
    ("open", OrderedDict(a=1), "open is of type OrderedDict, a subclass of dict"),
    ("open", object(), "open is of type object, which cannot be stored"),
    ("open", 1j, "open is of type complex, which cannot be stored"),
    ("open", namedtuple("Point", "x")(1), "open is read back as another type: Point as list"),  # noqa: PYI024
    ("lines", [Line("a", 1.5)], "lines[0].price is read back as another type: float as Decimal"),
    ("lines", (Line("a", Decimal(1)),), "lines is read back as another type: tuple as list"),
    ("table", {"x": [1]}, "table[...][0] is read back as another type: int as float"),
    ("chosen", {"a\0"}, "chosen[...] has a NUL character, which Postgres does not keep"),
]


@pytest.mark.parametrize(("name", "value", "detail"), REFUSED, ids=range(len(REFUSED)))
def test_the_field_and_the_rule_are_named(name, value, detail):
    with pytest.raises(EventRefusedError) as refused:
        encode(replace(Everything(), **{name: value}))

    assert "event everything.happened would not read back unchanged" == str(refused.value)
    assert detail == refused.value.detail
    assert refused.value.hint


@pytest.mark.parametrize(
    "value",
    ["s3cret\0", "s3cret\ud800", {"s3cret": object()}, {"s3cret\0": 1}, [{"s3cret": (1,)}]],
    ids=["nul", "surrogate", "type", "key", "list"],
)
def test_no_refusal_repeats_the_value(value):
    for event in (
        Everything(open=value),
        Everything(kind=value),
        EventData("any.happened", {"a": value}),
        EventData("any.happened", {"s3cret-key\0": value}),
    ):
        with pytest.raises(EventRefusedError) as refused:
            encode(event)

        said = f"{refused.value.detail} {refused.value.hint}"
        assert "s3cret" not in said + "".join(traceback.format_exception(refused.value))


def test_what_contains_itself_is_refused():
    cycle: list[Any] = []
    cycle.append({"more": cycle})
    with pytest.raises(EventRefusedError) as refused:
        encode(Everything(open=cycle))

    assert refused.value.detail.endswith("is nested deeper than 64 levels, or contains itself")


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_what_a_reader_deep_in_its_calls_could_not_read_is_refused():
    deepest = DEPTH_MAX - 1  # the event itself is a level

    new = encode(Everything(open=nested(deepest)))

    assert nested(deepest) == codec.decode(stored(new)).open
    with pytest.raises(EventRefusedError, match="would not read back"):
        encode(Everything(open=nested(deepest + 1)))
    with pytest.raises(EventRefusedError, match="would not read back"):
        encode(Everything(open=nested(100_000)))


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


def test_a_class_that_is_not_declared_is_not_written():
    with pytest.raises(UndeclaredError, match="Line is not a declared event"):
        encode(Line("a", Decimal(1)))
    assert not codec.needs_position(Small("o1", 5))
    assert not codec.needs_position(EventData("any.happened", {}))
    assert codec.subject_of(Small("o1", 5)) is None


class SurpriseError(Exception):
    """The application's own."""


@types.event("checked.happened")
class Checked:
    kind: Literal["a", "b"]
    mood: Mood = Mood.GOOD
    at: datetime | None = None
    many: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind == "b":
            raise SurpriseError("s3cret")


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (b'{"kind":"s3cret"}', "kind: ValidationError"),
        (b'{"kind":"a","mood":"s3cret"}', "mood: ValidationError"),
        (b'{"kind":"a","at":"s3cret"}', "at: ValidationError"),
        (b'{"kind":"a","many":{"s3cret":"s3cret"}}', "many[...]: expected int, got str"),
        (b'{"mood":"good"}', "the payload: object missing required field kind"),
        (b'["s3cret"]', "the payload: expected object, got array"),
        (b'{"s3cret', "the payload: DecodeError"),
        (b'{"kind":"b"}', "its class raised SurpriseError at test_event_codec.py:"),
    ],
    ids=["literal", "enum", "time", "key", "missing", "array", "cut", "class"],
)
def test_a_stored_event_that_is_not_what_its_class_declares_is_named_by_its_place(data, detail):
    broken = stored(encode(Checked("a")), data=data)
    with pytest.raises(UpcastError) as caught:
        codec.decode(broken)

    assert caught.value.detail.startswith(detail)
    assert caught.value.detail.endswith("; version 1, global position 7")
    said = f"{caught.value.detail} {caught.value.hint}"
    assert "s3cret" not in said + "".join(traceback.format_exception(caught.value))


def test_what_a_class_does_not_know_any_more_is_left_out():
    """A field that is dropped needs no new version."""
    assert Checked("a") == codec.decode(stored(encode(Checked("a")), data=b'{"kind":"a","x":1}'))


def test_types_without_a_class_are_read_if_they_are_declared():
    own = EventTypes()
    reader = Codec(own)
    event = EventData("legacy.happened", {"amount": 5, "by": {"name": "x"}}, 2)
    new = encode(event)
    with pytest.raises(UndeclaredError, match=r"unknown type legacy\.happened"):
        reader.decode(stored(new))

    own.untyped("legacy.happened", version=2)

    assert event == reader.decode(stored(new))
    assert event.data == reader.payload(stored(new))
    with pytest.raises(UndeclaredError, match="newer than this program's 2"):
        reader.decode(stored(new, schema_version=3))
    with pytest.raises(UndeclaredError, match="newer than this program's 2"):
        reader.encode(replace(event, version=3), tenant=TENANT, stream=STREAM)


def test_a_dict_for_a_declared_class_must_be_readable_as_that_class():
    new = encode(EventData("small.happened", {"order_id": "o1", "total": 5}))

    assert Small("o1", 5) == codec.decode(stored(new))
    with pytest.raises(EventRefusedError) as refused:
        encode(EventData("small.happened", {"order_id": "o1", "total": "5"}))
    assert refused.value.detail.startswith("total: expected int, got str")


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


def test_types_that_json_cannot_tell_apart_are_refused():
    @dataclass(frozen=True)
    class Left:
        a: int

    @dataclass(frozen=True)
    class Right:
        b: int

    with pytest.raises(UndeclaredError, match="types that JSON cannot distinguish"):

        @types.event("ambiguous.happened")
        class Ambiguous:
            side: Left | Right


def test_every_error_has_a_hint_and_is_of_the_store():
    with pytest.raises(EventStoreError) as refused:
        encode(object())

    assert refused.value.hint


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
