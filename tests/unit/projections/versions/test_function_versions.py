"""A kept function runs only if it is what its name says, and is found again wherever it is sent."""

from __future__ import annotations

import pickle
import sys
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import cloudpickle

from projections.definition.codec import decoded, encoded
from projections.definition.derived.view_function import ViewFunction, digest_in
from projections.definition.registry import load
from projections.errors import FunctionLostError, ViewQueryError
from projections.incremental.spark.maintainer import definition_of
from projections.versions.function_store import StoredFunction, in_place, with_function

if TYPE_CHECKING:
    from pathlib import Path

    from projections.definition.views import DerivedView

VIEWS = """
from __future__ import annotations

from dataclasses import dataclass

from headwater import expect, source, view

shop = source("shop", tables=["public.orders"])
orders = view.mirror("orders", shop.orders)


@view("doubled", keys=["id"])
@expect("small", "id < 3")
def made(orders):
    return orders * TIMES.number


@dataclass
class Times:
    number: int


TIMES = Times({times})
"""


def declared(folder: Path, times: int, more: str = "") -> DerivedView:
    module = folder / "views.py"
    module.write_text(VIEWS.format(times=times) + more)
    return load(module).derived["doubled"]


def kept(view: DerivedView, folder: Path) -> Path:
    """What is kept of its function, in the file that is its own."""
    assert isinstance(view.function, ViewFunction)
    assert view.function.part is not None
    folder.mkdir(exist_ok=True)
    file = folder / f"{view.function.part.digest}.py"
    file.write_text(view.function.part.text)
    return file


def test_a_version_goes_on_by_the_function_that_it_had(tmp_path: Path) -> None:
    first, folder = declared(tmp_path, 2), tmp_path / "functions"
    kept(first, folder)
    version = decoded(encoded(first))
    second = declared(tmp_path, 3)

    old, new = (with_function(version, each, folder) for each in (second, first))

    assert isinstance(old.function, StoredFunction)
    assert ("abab", "ababab") == (old.function("ab"), second.function("ab"))  # type: ignore[misc]
    assert "headwater_views" not in sys.modules
    assert first.function is new.function
    assert old == with_function(version, second, folder)
    assert {first.fingerprint} < first.fingerprints
    assert {first.fingerprint} == old.fingerprints
    for pickles in (pickle, cloudpickle):
        assert "abab" == pickle.loads(pickles.dumps(old)).function("ab")  # noqa: S301


def test_a_word_that_declares_is_no_part_of_what_is_kept(tmp_path: Path) -> None:
    text = kept(declared(tmp_path, 2), tmp_path).read_text()

    assert "def made(orders):" in text
    assert "@dataclass" in text
    assert not any(word in text for word in ("@view", "@expect", "headwater import", "mirror"))


@pytest.mark.parametrize("damage", ["gone", "altered", "no Python", "no text"])
def test_what_is_not_what_its_name_says_does_not_run(tmp_path: Path, damage: str) -> None:
    first = declared(tmp_path, 2)
    file = kept(first, tmp_path / "functions")
    version = with_function(decoded(encoded(first)), declared(tmp_path, 3), file.parent)
    if damage == "gone":
        file.unlink()
    elif damage == "altered":
        file.write_text(file.read_text().replace("Times(2)", "Times(9)"))
    else:
        file.write_bytes(b"\xff" if damage == "no text" else b"def")

    with pytest.raises(FunctionLostError) as lost:
        version.function("ab")  # type: ignore[misc]

    assert "HW-P151" == lost.value.code
    assert not lost.value.retriable
    assert file.name in (lost.value.detail or "")
    # nothing is lost where the function is declared as it was
    there = with_function(decoded(encoded(first)), declared(tmp_path, 2), file.parent)
    assert "abab" == there.function("ab")  # type: ignore[misc]


def test_a_row_of_a_version_runs_nothing_by_itself(tmp_path: Path) -> None:
    view = declared(tmp_path, 2)
    for text in ("part:../../evil", "part:" + "A" * 64, "import os", "part:"):
        document = {**encoded(view), "text": text}
        assert digest_in(text) is None
        # it is followed by what is declared
        assert view.function is with_function(decoded(document), view, tmp_path).function


def test_of_a_function_that_cannot_be_kept_the_plan_says_why(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").touch()
    view = declared(tmp_path, 2, "from helpers import *\n")

    assert "computed in its place" in in_place(view)
    assert "from helpers import *" in in_place(view)
    assert view.function is with_function(decoded(encoded(view)), view, tmp_path).function


@pytest.mark.parametrize(
    ("text", "said", "detail"),
    [
        ("orders + None", "raises", "TypeError: can only concatenate"),
        ("None", "returns no DataFrame", "NoneType"),
    ],
    ids=["raises", "returns nothing"],
)
def test_what_goes_wrong_in_a_function_is_told_of_its_view(
    tmp_path: Path, text: str, said: str, detail: str
) -> None:
    module = tmp_path / "views.py"
    module.write_text(VIEWS.format(times=1).replace("orders * TIMES.number", text))
    view = load(module).derived["doubled"]

    with pytest.raises(ViewQueryError, match=f"function of view doubled {said}") as refused:
        definition_of(view, SESSION)({"orders": "ab"})

    assert detail in str(refused.value.detail)


SESSION: Any = None
"""Of a function there is nothing to be asked of it."""
