"""Arguments of declarations are compared with the annotations of the function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from foundation.arguments import ArgumentType, typed_arguments
from foundation.errors import PlatformError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class WrongError(PlatformError):
    code = "HW-T001"


@dataclass
class Options:
    size: int = 1


class Wide(Options):
    pass


@dataclass
class Circle:
    radius: int = 1


Shape = Circle
SHAPE = ArgumentType("a shape", ("Circle",), "Circle(2)")


@typed_arguments(WrongError, {"Shape": SHAPE})
def draw(  # noqa: PLR0913
    name: str,
    keys: Sequence[str] = (),
    to: Iterable[str] | None = None,
    sums: Mapping[str, str] | None = None,
    *,
    options: Options | None = None,
    shape: Shape | None = None,
    size: Any = 1,
) -> Any:
    return name, keys, to, sums, options, shape, size


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ({"keys": "id"}, "draw a: keys needs a list of names", 'keys=["id"]'),
        ({"keys": {"id"}}, "draw a: keys needs a list of names", 'keys=["..."]'),
        ({"keys": None}, "draw a: keys needs a list of names", 'keys=["..."]'),
        ({"keys": [1]}, "draw a: keys needs a list of names", 'keys=["..."]'),
        ({"to": "table"}, "draw a: to needs a list of names", 'to=["table"]'),
        ({"sums": {"a": 1}}, "draw a: sums needs a dict of names", 'sums={"...": "..."}'),
        ({"options": {"size": 2}}, "draw a: options needs Options", "options=Options(...)"),
        ({"shape": Options()}, "draw a: shape needs a shape", "shape=Circle(2)"),
        ({"name": 3}, "draw: name needs a text", 'name="..."'),
    ],
)
def test_another_type_is_refused_with_an_example(
    given: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(WrongError) as refused:
        draw(**{"name": "a", **given})
    assert (message, hint) == (refused.value.message, refused.value.hint)


def test_what_fits_reaches_the_function_unchanged() -> None:
    names = (name for name in ("table", "cache"))
    given = ("a", ["id"], names, {"total": "sum"})
    more = {"options": Wide(), "shape": Circle(), "size": "not compared"}
    assert (*given, *more.values()) == draw(*given, **more)  # type: ignore[arg-type]
    assert ["table", "cache"] == list(names)
    assert ("a", (), {"cache"}, None, None, None, 1) == draw("a", to={"cache"})


def test_an_unknown_argument_is_python_s_own_error() -> None:
    with pytest.raises(TypeError, match=r"draw\(\) got an unexpected keyword argument 'key'"):
        draw("a", key=["id"])  # type: ignore[call-arg]
