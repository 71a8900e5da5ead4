"""The last screen says what was found, in words as well as in colours."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest
from rich.console import Console
from rich.text import Text

from headwater.demo.report import duration, report, save_screen
from headwater.demo.result import (
    STORES,
    DemoResult,
    ErasureResult,
    Freshness,
    Invariant,
    ReaderObservations,
    RebuildResult,
    Recovery,
    RepairedDamage,
    Startup,
    StoreComparison,
)


def a_result() -> DemoResult:
    views = [StoreComparison("orders", store, 1_234, 0, 0, 0, "0/2A") for store in STORES]
    return DemoResult(
        workload="globalshop",
        position="0/29",
        views=tuple(views),
        freshness={store: Freshness(412.0, 1_204.0, 12_500.0, 200) for store in STORES},
        seconds=30.0,
        rate=200.0,
        changes=6_000,
        transactions=1_400,
        rolled_back=60,
        startup=Startup(13.0, 12.0, 24.0),
        memory_mib=4_000,
        caught_up_s=1.5,
    )


def shown(result: DemoResult, *, width: int = 80, unicode: bool = True) -> str:
    text = io.StringIO()
    console = Console(file=text, width=width, no_color=True)
    console.print(report(result, unicode=unicode))
    return text.getvalue()


def test_views_that_agree_are_said_to_equal_their_source():
    text = shown(a_result())

    assert "✓ 1 views in 3 stores equal their source" in text
    assert "3,702 rows compared one by one with the source as of 0/29" in text
    assert "412 ms" in text
    assert "12.5 s" in text


def test_every_difference_is_named_with_its_number():
    result = a_result()
    wrong = StoreComparison("orders", "search", 1_234, 3, 1, 2_000, "0/2A")
    result = dataclasses.replace(result, views=(result.views[0], wrong, result.views[2]))

    text = shown(result)

    assert not result.verified
    assert "1 of 3 copies differ from their source" in text
    assert "3 missing" in text
    assert "1 extra" in text
    assert "2,000 different" in text


@pytest.mark.parametrize("counts", [(1, 0, 0), (0, 1, 0), (0, 0, 1)], ids=str)
def test_any_single_difference_makes_the_result_red(counts):
    missing, extra, different = counts
    wrong = StoreComparison("orders", "cache", 10, missing, extra, different, "0/1")

    assert not dataclasses.replace(a_result(), views=(wrong,)).verified


def test_a_comparison_of_nothing_is_not_a_success():
    result = dataclasses.replace(a_result(), views=())

    assert not result.verified
    assert "nothing was compared" in shown(result)


def test_a_sum_that_breaks_makes_the_result_red():
    sums = Invariant("a = b", "cache", {"accounts": 5, "history": 4})
    result = dataclasses.replace(a_result(), invariants=(sums,))

    assert not result.verified
    assert "sums that must be equal are not" in shown(result)


@pytest.mark.parametrize("width", [80, 100])
def test_no_line_is_wider_than_the_terminal(width):
    recovery = Recovery("connect", 4711, 10.0, 8.0, 14.0)
    text = shown(dataclasses.replace(a_result(), recoveries=(recovery,)), width=width)

    assert "kill -9, pid 4711" in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width


def test_without_unicode_the_report_is_plain_ascii():
    text = shown(a_result(), unicode=False)

    assert text.isascii()
    assert "OK 1 views" in text
    assert "equal" in text


def test_json_holds_what_the_command_promises():
    document = json.loads(json.dumps(a_result().to_json()))

    assert set(document["views"][0]) == {
        "view", "store", "rows", "missing", "extra", "different", "applied_through",
        "moving", "quarantined", "verified_through",
    }  # fmt: skip
    assert document["freshness"]["cache"]["p99_ms"] == 1_204.0
    assert document["changes_per_second"] == 200.0
    assert set(document["startup"]) == {"services_ready_s", "first_change_s", "job_ready_s"}
    assert document["verified"] is True


def test_the_screen_is_saved_as_a_picture(tmp_path):
    file = tmp_path / "screen.svg"

    save_screen(file, [Text("  1.0 s  ● postgres")], a_result())

    assert file.read_text().startswith("<svg")
    assert "postgres" in file.read_text()


@pytest.mark.parametrize(
    ("wait_ms", "expected"),
    [(84.4, "84 ms"), (1_240.0, "1.24 s"), (12_400.0, "12.4 s"), (float("nan"), "-")],
)
def test_durations_are_written_for_people(wait_ms, expected):
    assert duration(wait_ms) == expected


def test_damage_and_a_person_forgotten_are_told_and_count():
    well = dataclasses.replace(
        a_result(),
        mended=RepairedDamage("customers", "cache", found=1, left=0),
        forgotten=ErasureResult("public.customers", 4, 900, 2, 0, complete=True),
    )
    left = dataclasses.replace(well, mended=RepairedDamage("customers", "cache", found=1, left=1))
    found = dataclasses.replace(
        well, forgotten=ErasureResult("public.customers", 4, 900, 2, 1, complete=False)
    )

    unfinished = ErasureResult(
        "public.customers", 4, 900, 2, 0, complete=False, incomplete=("archive", "topics")
    )
    late = dataclasses.replace(well, forgotten=unfinished)

    assert [True, False, False, False] == [each.verified for each in (well, left, found, late)]
    assert "one byte of customers in Valkey: detected and repaired" in shown(well)
    assert "2 values, found in none of 900 files" in shown(well, width=120)
    assert "not repaired" in shown(left)
    assert "✗ the damaged row was not repaired" in shown(left)
    assert "✗ erased values were found again" in shown(found)
    assert "found again" not in shown(late)
    assert "✗ the erasure is not complete in archive, topics" in shown(late)
    assert ["archive", "topics"] == list(late.to_json()["forgotten"]["incomplete"])
    assert 4 == well.to_json()["forgotten"]["records"]


def test_a_rebuild_is_told_with_all_that_was_killed_and_a_reader_who_notices_makes_it_red():
    fresh = {store: Freshness(412.0, 1_204.0, 12_500.0, 200) for store in STORES}
    rebuilt = RebuildResult(
        view="inventory",
        version=2,
        changes=1_234,
        built_s=21.4,
        explained={"counted_at": 400},
        builds_killed=1,
        switches=21,
        killed=4,
        job_killed=Recovery("spark", 4711, 90.0, 22.5, 31.0),
        watched={store: ReaderObservations(reads=1_000) for store in STORES},
        before=fresh,
        building=fresh,
        switching=fresh,
    )
    well = dataclasses.replace(a_result(), rebuilt=rebuilt)
    empty = dataclasses.replace(
        rebuilt, watched=rebuilt.watched | {"table": ReaderObservations(reads=999, empties=1)}
    )
    never = dataclasses.replace(rebuilt, watched=rebuilt.watched | {"table": ReaderObservations()})
    noticed = [dataclasses.replace(well, rebuilt=each) for each in (empty, never)]
    text = shown(well, width=120)

    assert [True, False, False] == [each.verified for each in (well, *noticed)]
    assert all("✗ readers noticed the rebuild" in shown(each) for each in noticed)
    assert "21 times, in three stores, 4 of them killed during the switch" in text
    assert "the command that built it; spark during the switches, back after 22.5 s" in text
    assert "3,000 reads, 0 errors, 0 empty, 0 older than one before" in text
    assert max(len(line.rstrip()) for line in shown(well).splitlines()) <= 80
