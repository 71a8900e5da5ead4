"""What `headwater view rebuild` refuses before anything is looked at, and what it tells."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from headwater.cli import main
from headwater.cli import rebuild as command
from headwater.operations.versions import Switched
from projections.definition.views import Store
from projections.stores.capacity import StoreCapacity
from projections.stores.delta.table_diff import TableDifference
from projections.versions.compare import VersionDifference
from projections.versions.rebuild import RebuildPlan

if TYPE_CHECKING:
    from pathlib import Path

VIEWS = """
from headwater import source, view
shop = source("shop", tables=["orders"])
view.mirror("orders", shop.orders, to=["table"])
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADWATER_HOME", raising=False)
    (tmp_path / "headwater.toml").write_text('[project]\nname = "shop"\n')
    (tmp_path / "views.py").write_text(VIEWS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cutover", "always"], "when-explained"),
        (["--share", "2"], "--share"),
        (["--share", "0"], "--share"),
    ],
)
def test_what_cannot_be_meant_is_refused_as_a_wrong_command(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 2 == main(["view", "rebuild", "orders", *words])
    assert said in " ".join(capsys.readouterr().err.split())


def planned(source: str, **said: Any) -> RebuildPlan:
    return RebuildPlan("orders", (), source, 3000, 0.2, 1 << 20, 1 << 30, (), **said)


def test_a_plan_says_that_the_archive_will_not_do_and_what_to_do_instead(
    capsys: pytest.CaptureFixture[str],
) -> None:
    why, then = "partition 0 begins at 7", "headwater view rebuild orders --from-source reads it"
    command.show_plan(planned("archive", lacking=why, instead=then), as_json=False)
    told = capsys.readouterr().err
    assert f"refused     {why}" in told
    assert f"instead     {then}" in told

    command.show_plan(planned("archive", lacking=why, instead=then), as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert (why, then) == (document["lacking"], document["instead"])


def test_a_plan_names_views_that_would_stand_still(capsys: pytest.CaptureFixture[str]) -> None:
    still = {"by_region": "no column region", "most": "stands still with by_region"}
    command.show_plan(planned("archive", stand_still=still), as_json=False)
    told = capsys.readouterr().err
    assert "stand still by_region: no column region" in told
    assert "stand still most: stands still with by_region" in told

    command.show_plan(planned("archive", stand_still=still), as_json=True)
    assert still == json.loads(capsys.readouterr().out)["stand_still"]


@pytest.mark.parametrize(
    ("same", "why"),
    [(True, "views derived from it would be paused"), (False, "does not explain")],
    ids=["views", "rows"],
)
def test_a_version_that_is_not_shown_by_itself_says_why(
    capsys: pytest.CaptureFixture[str], *, same: bool, why: str
) -> None:
    rows = TableDifference(("id",), appeared=0 if same else 1)
    found = VersionDifference(rows, "0/1", Store.TABLE)
    still = {"by_region": "no column region"}
    command._print_cutover(Switched("orders", 2, found, moved=False, stand_still=still))

    told = capsys.readouterr()
    assert why in told.out
    assert "by_region would be paused with its present rows: no column region" in told.err
    assert "headwater view cutover orders --accept-differences" in told.err


def test_a_plan_says_what_each_store_has_to_have_room_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stores = {"cache": StoreCapacity(5 << 20, 9 << 20), "search": StoreCapacity(3 << 20)}
    command.show_plan(planned("archive", stores=stores), as_json=False)
    told = capsys.readouterr().err
    assert "in cache    about 5 MiB of 9 MiB free" in told
    assert "in search   about 3 MiB\n" in told

    command.show_plan(planned("archive", stores=stores), as_json=True)
    search = json.loads(capsys.readouterr().out)["stores"]["search"]
    assert {"taken_bytes": 3 << 20, "free_bytes": None} == search


def test_a_plan_of_a_read_tells_rows_and_how_long_they_take(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command.show_plan(planned("source", known_by="by its last rebuild"), as_json=False)

    told = capsys.readouterr().err
    assert "to read     about 3,000 rows, about 0 s; by its last rebuild" in told
    assert "refused" not in told


def test_what_is_waited_for_is_told_beside_what_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with command._filling("orders", 1.0, as_json=False) as filling:
        filling.waits("version 2 of view orders is filled; not yet in cache")
    with command._filling("orders", 1.0, as_json=True) as quiet:
        quiet.waits("nothing of this is printed")

    told = capsys.readouterr()
    assert "version 2 of view orders is filled; not yet in cache" in told.err
    assert "nothing of this" not in told.err
