"""What `up` shows of tables that are being read: each of few, a count of many."""

from __future__ import annotations

from cdc.snapshot.report import ReadReport
from headwater.cli.services import progress_printer


def test_of_few_tables_each_change_is_shown_once() -> None:
    said: list[str] = []
    tell = progress_printer(said.append, 2)
    reading = ReadReport(1, "public.a", state="reading", rows_read=50, percent=50.0)

    for _ in range(2):
        tell([reading, ReadReport(2, "public.b", state="waiting")])
    tell([ReadReport(1, "public.a", state="done", rows_read=100, percent=100.0)])

    assert [line.partition("]")[2].partition("]")[2].strip() for line in said] == [
        "public.a reading, 50 rows (50 %)",
        "public.a done, 100 rows",
    ]


def test_of_many_tables_a_count_is_shown_and_those_that_are_large_or_fail() -> None:
    said: list[str] = []
    tell = progress_printer(said.append, 400)
    done = [ReadReport(n, f"public.t{n}", state="done", rows_read=10) for n in range(398)]
    large = ReadReport(
        398, "public.big", state="reading", rows_read=1_000, rows_expected=2_000_000, percent=0.1
    )
    stuck = ReadReport(399, "public.x", state="waiting", failure="HW-C041 writers are in the way")

    for _ in range(3):
        tell([*done, large, stuck])

    assert len(said) == 3
    assert "398 of 400 tables, 4,980 rows" in said[0]
    assert "public.big reading, 1,000 rows (0.1 %)" in said[1]
    assert "public.x waiting, 0 rows: HW-C041" in said[2]
