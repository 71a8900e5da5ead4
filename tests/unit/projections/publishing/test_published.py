from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from cdc.lsn import Lsn
from headwater.reading import sql as reading_sql
from projections.changes.record import Record
from projections.errors import PlaceBehindError, PlaceUnpublishedError
from projections.publishing import published_versions
from projections.publishing.boundary import UnpublishedProgress
from projections.publishing.published_content import TableVersion
from projections.publishing.published_versions import Published
from projections.stores.delta import table_format as table

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def group(tmp_path: Path) -> Published:
    return Published(tmp_path, "shop")


def test_a_version_is_published_once_and_never_behind_the_newest(group: Published) -> None:
    first = group.publish(1, 100, {"a": 3})
    again = group.publish(1, 100, {"a": 4})
    older = group.publish(1, 90, {"a": 5})
    anew = group.publish(2, 50, {"a": 6, "b": 1})

    assert (None, None) == (again, older)
    assert [first, anew] == group.all()
    assert anew == group.latest()
    assert first is not None
    assert (1, Lsn(100), 3) == (first.number, first.applied_through, first.views["a"].version)


def test_a_view_that_is_not_whole_stays_as_it_was_published_last(group: Published) -> None:
    group.publish(1, 100, {"a": 3, "b": 7})
    after = group.publish(1, 200, {"a": 4})

    assert after is not None
    assert (4, Lsn(200)) == (after.views["a"].version, after.views["a"].applied_through)
    assert (7, Lsn(100)) == (after.views["b"].version, after.views["b"].applied_through)


def test_a_boundary_has_views_made_from_others_that_came_after_the_one_before_it_was_begun(
    group: Published,
) -> None:
    first = group.publish(1, 100, {"a": 3}, complete=False)
    second = group.publish(1, 200, {"a": 4}, complete=False)
    assert first is not None
    assert second is not None
    group.complete(first, {"made.v2": TableVersion(0, 1, 100, {"a": 3}, "query")})

    third = group.publish(1, 300, {"b": 1}, complete=False)

    assert third is not None
    assert "made.v2" not in second.views
    assert {"a": 4, "b": 1, "made.v2": 0} == {n: t.version for n, t in third.views.items()}


def test_places_that_readers_get_or_will_get_as_they_were_are_told(group: Published) -> None:
    group.publish(1, 100, {"orders": 3, "customers": 5})
    group.publish(1, 110, {"orders": 4})
    after = group.publish(1, 120, {"orders": 5, "customers": 7}, complete=False)
    assert after is not None

    both = ["customers", "orders", "unknown"]
    assert ["customers", "orders"] == group.behind(both, 1, 115)
    assert ["orders"] == group.behind(["orders"], 1, 115)
    group.complete(after, {})
    assert [] == group.behind(both, 1, 115)
    assert ["customers", "orders"] == group.behind(both, 2, 0)


def test_what_nobody_can_read_any_more_goes_and_the_newest_stays(
    group: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    group.publish(1, 100, {"a": 1})
    monkeypatch.setattr(time, "time_ns", lambda: now_ns + 1_800 * 10**9)
    group.publish(1, 200, {"a": 2})
    monkeypatch.setattr(time, "time_ns", lambda: now_ns + 3_700 * 10**9)
    group.publish(1, 300, {"a": 3})

    assert [200, 300] == [version.lsn for version in group.all()]


def test_files_of_what_readers_get_stay_however_old_they_are(
    tmp_path: Path, group: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "KEPT_HOURS", 0)
    monkeypatch.setattr(table, "COMMITS_PER_COMPACTION", 1)
    for rows in range(1, 5):
        write_deltalake(tmp_path / "a", pa.table({"id": range(rows)}), mode="overwrite")
    group.publish(1, 100, {"a": 1})
    group.publish(1, 200, {"a": 2}, complete=False)  # views made from it are still to come

    table.maintain(DeltaTable(tmp_path / "a"), tmp_path, "a")

    assert [1, 2] == published_versions.promised(tmp_path, "a")
    assert [] == published_versions.promised(tmp_path, "b")
    for version in (1, 2, 3):
        assert version + 1 == _count(tmp_path / "a", version)
    with pytest.raises(OSError, match=r"not found|No such file"):
        _count(tmp_path / "a", 0)


def _count(path: Path, version: int) -> int:
    return DeltaTable(path, version=version).to_pyarrow_table().num_rows


def test_what_lies_beyond_is_kept_with_its_records_and_none_is_known_at_first(
    group: Published,
) -> None:
    before = group.beyond()
    record = Record(b"k", b"\xff\x00", "1", 0, 7)
    group.keep_beyond(UnpublishedProgress(1, 500, 20, 510), [("shop.a", [record]), ("shop.b", [])])
    after = group.beyond()

    assert (UnpublishedProgress(), []) == (before.ahead, before.waiting)
    assert (UnpublishedProgress(1, 500, 20, 510), [("shop.a", [record])]) == (
        after.ahead,
        after.waiting,
    )
    assert group.latest() is None


def test_before_anything_is_published_no_half_of_it_can_be_read(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "checking"), pa.table({"amount": [1]}))
    sql = "SELECT * FROM checking"
    before = reading_sql.run(sql, tmp_path).num_rows
    Published(tmp_path, "bank").begin()

    assert 1 == before
    with pytest.raises(reading_sql.NotPublishedError):
        reading_sql.run(sql, tmp_path)
    with pytest.raises(reading_sql.AsOfError):
        reading_sql.run(sql, tmp_path, "0/1")


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Two tables of which the newest versions are not at one boundary."""
    for name in ("checking", "savings"):
        for amount in (100, 70, 50):
            write_deltalake(str(tmp_path / name), pa.table({"amount": [amount]}), mode="overwrite")
    write_deltalake(str(tmp_path / "late"), pa.table({"amount": [1]}))
    group = Published(tmp_path, "bank")
    group.publish(1, 0x100, {"checking": 0, "savings": 0})
    group.publish(1, 0x200, {"checking": 1, "savings": 0})
    return tmp_path


def total(tables: Path, as_of: str | None = None) -> int:
    sql = "SELECT (SELECT sum(amount) FROM checking) + (SELECT sum(amount) FROM savings) AS total"
    return int(reading_sql.run(sql, tables, as_of).to_pylist()[0]["total"])


def test_a_query_reads_all_views_at_one_boundary(history: Path) -> None:
    now = datetime.now(UTC)

    assert 170 == total(history)
    assert [200, 170, 200] == [total(history, each) for each in ("0/100", "0/2FF", "1")]
    assert 170 == total(history, now.isoformat()) == total(history, f" {now:%Y-%m-%dT%H:%M:%S.%fZ}")


@pytest.mark.parametrize("as_of", ["0/FF", "2001-01-01", "77"])
def test_what_is_kept_no_more_is_refused_with_the_way_to_see_what_is(
    history: Path, as_of: str
) -> None:
    with pytest.raises(reading_sql.AsOfError) as refused:
        total(history, as_of)

    assert "headwater view versions" in str(refused.value.hint)


@pytest.mark.parametrize("as_of", ["", "yesterday", "0/", "1/2/3", "-1", "1.5", "0/XYZ"])
def test_what_is_no_position_time_or_version_is_refused(history: Path, as_of: str) -> None:
    with pytest.raises(reading_sql.AsOfError, match="not a position"):
        total(history, as_of)


def test_a_view_that_is_still_built_is_told_from_one_that_is_not_there(history: Path) -> None:
    with pytest.raises(reading_sql.NotPublishedError):
        reading_sql.run("SELECT * FROM late", history)
    with pytest.raises(reading_sql.QueryError, match="no view is named chequing"):
        reading_sql.run("SELECT * FROM chequing", history)


def test_several_views_are_switched_in_one_step_and_it_is_known_where_they_were(
    group: Published, tmp_path: Path
) -> None:
    before = group.current()
    group.publish(1, 100, {"a": 1, "a.v2": 2, "b": 3, "b.v2": 4, "c": 5})
    group.switch({"a": "a.v2", "b": "b.v2"})
    first_us = time.time_ns() // 1000
    group.switch({"b": "b", "a": "a.v2"})
    latest = group.latest()

    assert {} == before
    assert {"a": "a", "b": "b"} == group.current(first_us - 10**9)
    assert {"a": "a.v2", "b": "b.v2"} == group.current(first_us)
    assert {"a": "a.v2", "b": "b"} == Published(tmp_path, "shop").current()
    assert latest is not None
    assert {"a": ("a.v2", 2), "b": ("b", 3), "c": ("c", 5)} == {
        view: (place, table.version)
        for view, (place, table) in latest.by_view(group.current()).items()
    }


def test_a_switch_that_would_read_nothing_or_go_back_changes_nothing(group: Published) -> None:
    with pytest.raises(PlaceUnpublishedError):
        group.switch({"a": "a.v2"})
    assert not group.folder.exists()
    group.publish(1, 100, {"a": 1, "b": 3, "b.v2": 4})
    with pytest.raises(PlaceUnpublishedError):
        group.switch({"a": "a.v2"})
    group.publish(1, 150, {"a": 1, "a.v2": 2, "b": 3, "b.v2": 4})
    group.publish(1, 200, {"a": 1, "b": 3, "b.v2": 5})
    with pytest.raises(PlaceBehindError):
        group.switch({"b": "b.v2", "a": "a.v2"})
    refused = group.current()
    group.switch({"a": "a.v2"}, backwards=True)

    assert {} == refused
    assert {"a": "a.v2"} == group.current()
    assert group.current(0)["a"] == "a"


def test_switches_are_known_as_long_as_versions_from_before_them(
    group: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = time.time_ns()
    for hours in (0.0, 0.5, 1.5, 3.0):
        at_ns = now_ns + round(hours * 3600 * 10**9)
        monkeypatch.setattr(time, "time_ns", lambda at_ns=at_ns: at_ns)
        group.publish(1, round(100 + hours * 10), {"a": 1, "a.v2": 1})
        group.switch({"a": "a.v2" if group.current().get("a", "a") == "a" else "a"})
    content = msgspec.json.decode((group.folder / "current.json").read_bytes())

    assert {"a": "a"} == content["places"]
    assert [now_ns // 1000 + 3 * 3_600_000_000] == [each["at_us"] for each in content["switches"]]
