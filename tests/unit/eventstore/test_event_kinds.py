"""What cannot be an event, or cannot be stored, is refused where it is declared."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest
from pydantic.dataclasses import dataclass as pydantic_dataclass

from eventstore import EventTypes, Personal, UndeclaredError
from eventstore.serialization.codec import Codec
from tests.fix_stored import stored


class Model(pydantic.BaseModel):
    name: str


class Frozen(pydantic.BaseModel, frozen=True):
    name: str = ""


class Struct(msgspec.Struct):
    name: str


class Dict(TypedDict):
    name: str


class Tuple(NamedTuple):
    name: str


class Colour(Enum):
    RED = "red"


class Failed(Exception):  # noqa: N818  # it is none of ours
    name: str


@pytest.mark.parametrize(
    "cls", [Model, Frozen, Struct, Dict, Tuple, Colour, Failed, "Model"], ids=str
)
def test_a_class_of_another_kind_is_no_event(cls):
    with pytest.raises(UndeclaredError, match="is not a dataclass"):
        EventTypes().event("thing.happened")(cls)


def test_a_model_that_was_refused_still_works():
    with pytest.raises(UndeclaredError):
        EventTypes().event("thing.happened")(Model)

    assert "Ada" == Model(name="Ada").name


@dataclass(frozen=True)
class One:
    name: str


@dataclass(frozen=True)
class Two:
    number: int


@pytest.mark.parametrize(
    "hint", [One | Two, list[One | Two], One | dict[str, int], list[int] | set[int]]
)
@pytest.mark.parametrize("personal", [True, False])
def test_a_field_that_json_cannot_tell_apart_is_refused_at_once(hint, personal):
    types = EventTypes()

    class Thing:
        owner: str

    Thing.__annotations__["part"] = Personal[hint] if personal else hint
    with pytest.raises(UndeclaredError, match="distinguish"):
        types.event("thing.happened", subject="owner")(Thing)

    assert [] == list(types)


@pytest.mark.parametrize(
    "hint", [One | None, str | int, list[One] | None, Literal["a", 1], dict[str, One | str]]
)
def test_a_field_that_json_can_tell_apart_is_taken(hint):
    types = EventTypes()

    class Thing:
        pass

    Thing.__annotations__ = {"part": hint}
    types.event("thing.happened")(Thing)

    assert ["thing.happened"] == [declared.name for declared in types]


def test_a_dataclass_of_pydantic_s_is_a_dataclass():
    types = EventTypes()

    @types.event("thing.happened")
    @pydantic_dataclass(frozen=True)
    class Thing:
        name: str

    codec = Codec(types)
    new = codec.encode(Thing("Ada"), tenant="default", stream="order-1")

    assert Thing("Ada") == codec.decode(stored(new))
