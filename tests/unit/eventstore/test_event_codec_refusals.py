"""What the event codec refuses, and how each refusal names the field and the rule."""

from __future__ import annotations

import traceback
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta, timezone
from datetime import time as clock_time
from decimal import Decimal
from typing import Any, Literal
from zoneinfo import ZoneInfo

import pytest

from eventstore.errors import (
    EventRefusedError,
    EventStoreError,
    UndeclaredError,
    UpcastError,
)
from eventstore.serialization.codec import Codec
from eventstore.serialization.exactness import DEPTH_MAX
from eventstore.serialization.registry import EventData, EventTypes
from tests.fix_stored import STREAM, TENANT, stored
from tests.support.declared_events import (
    Everything,
    Level,
    Line,
    Mood,
    Small,
    codec,
    encode,
    types,
)

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
        (b'{"kind":"b"}', "its class raised SurpriseError at test_event_codec_refusals.py:"),
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
