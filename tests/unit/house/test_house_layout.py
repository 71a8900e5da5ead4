"""Where modules lie: few in a root, short contracts, folders that say what they are for."""

from __future__ import annotations

import ast
import importlib
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FLAT_MAX = 16
LEVELS_MAX = 10
SETTLED = ("projections", "headwater")
SPARSE = (*SETTLED, "eventstore", "cdc")
PARTS = ("Purpose:", "Entry points:", "Invariants:", "Tests:")

# Folders that follow another order, or only keep a name.
OTHERS = (
    *("headwater/cli", "headwater/demo", "headwater/demo/pgbench_project"),
    *("headwater/project/settings", "headwater/supply", "projections/search"),
)

DOORS = {
    "headwater.notebook": "headwater.reading.notebook",
    "headwater.position_header": "headwater.reading.http_tokens",
    "headwater.views": "headwater.reading.views",
    "projections.cache_reader": "projections.stores.valkey.reader",
    "projections.published": "projections.publishing.published_versions",
    "projections.search.client": "projections.stores.opensearch.searcher",
    "projections.search.request": "projections.stores.opensearch.query",
}
"""Modules of which pages have shown names, and where those are."""


def folders() -> list[str]:
    found = (path.parent for package in SETTLED for path in (ROOT / package).rglob("__init__.py"))
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


@pytest.mark.parametrize("package", SPARSE)
def test_few_modules_lie_flat_in_the_root_of_a_package(package):
    flat = [path.name for path in (ROOT / package).glob("*.py")]

    assert len(flat) <= FLAT_MAX, sorted(flat)


def test_a_contract_of_layers_has_few_levels():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    levels = {
        contract["id"]: len(contract["layers"])
        for contract in settings["contracts"]
        if contract["type"] == "layers"
        and {name.partition(".")[0] for name in contract.get("containers", ())} & {*SPARSE}
    }

    assert levels
    assert {} == {name: count for name, count in levels.items() if count > LEVELS_MAX}


@pytest.mark.parametrize("folder", [each for each in folders() if each not in OTHERS])
def test_a_folder_says_what_it_is_for_and_where_its_tests_are(folder):
    doc = ast.get_docstring(ast.parse((ROOT / folder / "__init__.py").read_text())) or ""

    assert [] == [part for part in PARTS if part not in doc]
    named = doc.rpartition("Tests:")[2].strip().rstrip(".").split(", ")
    assert [] == [name for name in named if not any((ROOT / name).rglob("test_*.py"))]


@pytest.mark.parametrize(("shown", "place"), DOORS.items())
def test_a_name_that_pages_have_shown_is_the_thing_itself(shown, place):
    door, module = importlib.import_module(shown), importlib.import_module(place)

    assert door.__all__
    assert [] == [name for name in door.__all__ if vars(door)[name] is not vars(module)[name]]
