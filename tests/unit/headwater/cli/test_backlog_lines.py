"""`view status` shows backlogs and first loads, from the job's report to the line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headwater.cli.view import print_backlogs, print_loads
from headwater.platform.job_status import JobReport
from projections.job.backlog import QueryBacklog
from projections.job.initial_load import LoadProgress
from projections.job.status import JobState, JobStatus, QueryProgress

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("samples", "line"),
    [
        ([(0.0, 90_000)], "backlog search: 90,000 records, the rate is not known yet"),
        ([(0.0, 90_000), (10.0, 60_000)], "backlog search: 60,000 records, caught up in 20 s"),
        (
            [(0.0, 90_000), (10.0, 110_000)],
            "backlog search: 110,000 records, not catching up, 2,000 more each second",
        ),
        ([(0.0, 90_000), (10.0, 40)], ""),
    ],
    ids=["one batch", "it gains", "it loses", "none"],
)
def test_a_backlog_is_a_line_for_its_store(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    samples: list[tuple[float, int]],
    line: str,
) -> None:
    search = QueryProgress(backlog=QueryBacklog(50))
    for at_s, records in samples:
        search.backlog.add(at_s, records)
    queries = {"search": search, "cache": QueryProgress()}
    JobStatus(JobState.READY, queries=queries).write(tmp_path / "job.json")

    backlogs = JobReport(tmp_path).backlogs()
    print_backlogs(None, backlogs)
    assert line == capsys.readouterr().err.strip()

    print_backlogs("shop", backlogs)
    assert line.replace("search:", "shop in search:") == capsys.readouterr().err.strip()


@pytest.mark.parametrize(
    ("load", "line"),
    [
        (LoadProgress("big", 0, 2_000_000, None), "loading big: 0 of about 2,000,000 rows"),
        (
            LoadProgress("big", 500_000, 2_000_000, 30.0),
            "loading big: 500,000 of about 2,000,000 rows, done in 30 s",
        ),
        (None, ""),
    ],
    ids=["begun", "a quarter", "none"],
)
def test_a_first_load_is_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], load: LoadProgress | None, line: str
) -> None:
    table = QueryProgress()
    table.loading(load)
    JobStatus(JobState.STARTING, queries={"table": table}).write(tmp_path / "job.json")

    print_loads(JobReport(tmp_path).loads())

    assert line == capsys.readouterr().err.strip()
