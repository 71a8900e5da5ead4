"""How far a rebuild is stands beside what it goes on with, and a listing shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from headwater.cli.version import compared, line_of, row_of, show_difference
from headwater.operations.cutover_refusals import differs
from projections.archive import progress_note
from projections.archive.progress import ReplayProgress
from projections.archive.progress_note import ProgressWriter, figures_of
from projections.archive.task import Had, ReplayState
from projections.stores.delta.table_diff import TableDifference
from projections.versions.compare import VersionDifference
from projections.versions.version import FillProgress, VersionState, ViewVersion

if TYPE_CHECKING:
    from collections.abc import Mapping

STATE = ReplayState(7, [("shop.public.orders", 0, 12_000)], 1, 3)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_note, "WRITE_EVERY_S", 0.0)


def version(progress: Mapping[str, Any] | None, state: VersionState) -> ViewVersion:
    return ViewVersion("orders", 2, "orders.v2", state, None, replayed=FillProgress({}, progress))


def test_figures_are_noted_beside_what_a_replay_goes_on_with() -> None:
    written: list[Mapping[str, Any]] = []
    told: list[ReplayProgress] = []
    made = ProgressWriter(None, written.append, told.append)
    assert made.resumes is None

    looked = ReplayProgress(looked_at=500, rows=6000)
    made.report(looked)
    assert (500, 6000, None, None, 0) == figures_of(written[-1])
    assert ProgressWriter(written[-1], written.append, told.append).resumes is None

    made.note(STATE)
    now = ReplayProgress(6000, 6000, 1500, 4000, seconds_left=12.34)
    made.report(now)
    assert (7500, 10_000, 0.75, 12.3, 0) == figures_of(written[-1])
    assert STATE == ProgressWriter(written[-1], written.append, told.append).resumes
    assert [looked, now] == told

    # one that goes on looks through the archive anew, and is not forgotten meanwhile
    again = ProgressWriter(written[-1], written.append, told.append)
    again.report(looked)
    assert STATE == ProgressWriter(written[-1], written.append, told.append).resumes


def test_a_lap_is_noted_with_what_was_there_before_it() -> None:
    written: list[Mapping[str, Any]] = []
    told: list[ReplayProgress] = []
    had = Had([("shop.public.orders", 0, 9_000)], (4, "files"))
    state = ReplayState(7, [("shop.public.orders", 0, 12_000)], had=had)
    made = ProgressWriter(None, written.append, told.append, lap=2)

    made.note(state)
    made.report(ReplayProgress(6000, 6000, 1500, 4000, seconds_left=12.34))

    noted = orjson.loads(orjson.dumps(written[-1]))
    assert state == ProgressWriter(noted, written.append, told.append).resumes
    assert (7500, 10_000, 0.75, 12.3, 2) == figures_of(noted)
    assert [2] == [each.lap for each in told]
    shown = line_of(version(noted, VersionState.BUILDING))["progress"]
    assert "catch-up round 2: 7,500 of 10,000 (75%), about 12 s left" == shown


def test_a_listing_shows_how_far_a_version_is_that_is_being_built() -> None:
    progress = {"figures": [7500, 10_000, 0.75, 12.3]}
    building = version(progress, VersionState.BUILDING)

    assert {"done": 7500, "total": 10_000, "share": 0.75, "seconds_left": 12.3, "lap": 0} == (
        row_of(building)["progress"]
    )
    assert "7,500 of 10,000 (75%), about 12 s left" == line_of(building)["progress"]
    begun = version({"figures": [500, 6000, None, None]}, VersionState.BUILDING)
    assert "500 of 6,000, scanned" == line_of(begun)["progress"]
    for other in (version(None, VersionState.BUILDING), version(progress, VersionState.HELD)):
        assert row_of(other)["progress"] is None
        assert line_of(other)["progress"] is None


def test_versions_that_cannot_be_compared_are_said_to_be_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    why = "no store has both: cache; table"
    found = VersionDifference(TableDifference(()), "", None, incomparable=why)

    assert (False, None, why) == tuple(
        compared(found)[name] for name in ("same", "store", "incomparable")
    )
    show_difference(found)
    assert f"they are not compared: {why}" in capsys.readouterr().err
    refused = differs(version(None, VersionState.HELD), found, {})
    assert ("HW-P134", why) == (refused.code, refused.detail)
    assert "--accept-differences" in (refused.hint or "")
