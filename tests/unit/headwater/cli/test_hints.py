"""Commands in hints name the source, where a project has several."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headwater.cli import app, hints

ROOT = Path(app.__file__).parents[2]


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        ("headwater source repair --yes", "headwater source repair --source till --yes"),
        ("headwater source status says why", "headwater source status --source till says why"),
        (
            "headwater plan, then headwater source remove --source ledger --yes",
            "headwater plan --source till, then headwater source remove --source ledger --yes",
        ),
        ("headwater view drop orders 2 --yes", "headwater view drop --source till orders 2 --yes"),
        ("headwater view resume orders", "headwater view resume orders"),
        ("headwater up starts it", "headwater up starts it"),
        ("headwater logs projections", "headwater logs projections.till"),
        ("headwater logs projections; it says", "headwater logs projections.till; it says"),
        ("headwater logs projections.ledger", "headwater logs projections.ledger"),
        ("headwater logs connect", "headwater logs connect"),
        ("what headwater belongs to", "what headwater belongs to"),
    ],
)
def test_each_command_that_takes_a_source_names_it(hint: str, said: str) -> None:
    assert said == hints.completed(hint, "till")


def test_a_project_of_one_source_has_its_hints_as_they_are() -> None:
    hints.set_source(None)

    assert "headwater source repair" == hints.completed("headwater source repair")


def test_every_command_that_a_hint_tells_and_that_takes_a_source_is_known() -> None:
    told = re.compile(r"headwater (source (?:repair|resnapshot|status|remove|changes)|plan|token)")
    for package in ("cdc", "projections", "headwater"):
        for file in (ROOT / package).rglob("*.py"):
            for found in told.finditer(file.read_text("utf-8")):
                assert "--source till" in hints.completed(found[0], "till")
