"""`headwater status` shows why a job ended, also while it starts again."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from headwater.cli import main
from headwater.runtime import ServiceState, ServiceStatus
from headwater.runtime.home import Home
from headwater.runtime.process import ProcessRecord
from headwater.runtime.status import RuntimeStatus
from projections.common.fault import Fault
from projections.errors import NoExecutorsError
from projections.job import driver
from projections.job.status import JobState, JobStatus
from projections.planning.job_config import JobConfig, run_folder

if TYPE_CHECKING:
    from pathlib import Path

ENDED = "ended with exit code 1"
FAULT = Fault.of(NoExecutorsError("the cluster gives the job no executor", detail="for 120 s"))
SAID = f"HW-P102: the cluster gives the job no executor: for 120 s ({ENDED})"


def shown(
    home: Path, capsys: pytest.CaptureFixture[str], *services: ServiceStatus
) -> dict[str, str | None]:
    """The last error of each service in a status that a supervisor left."""
    ended = ProcessRecord(os.getpid(), 1, "another boot", "supervisor")
    status = RuntimeStatus(running=True, supervisor=ended, services=services, written_at=1.0)
    path = Home(home).status
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(status.to_json()), encoding="utf-8")
    assert 3 == main(["status", "--home", str(home), "--json"])
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["services"]
    return {service["name"]: service["last_error"] for service in found}


def job(name: str) -> ServiceStatus:
    return ServiceStatus(name, ServiceState.FAILED, last_error=ENDED)


def test_of_several_jobs_the_one_without_executors_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    JobStatus(JobState.STARTING, FAULT).write(run_folder(tmp_path, "ledger") / "job.json")
    JobStatus(JobState.READY).write(run_folder(tmp_path, "till") / "job.json")
    names = ("kafka", "projections.till", "projections.ledger", "capture.ledger")

    assert shown(tmp_path, capsys, *map(job, names)) == {
        "kafka": ENDED,
        "projections.till": ENDED,
        "projections.ledger": SAID,
        "capture.ledger": ENDED,
    }


def test_the_one_job_of_a_project_says_why_it_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {"projections": ENDED} == shown(tmp_path, capsys, job("projections"))
    JobStatus(JobState.FAILED, FAULT).write(run_folder(tmp_path, None) / "job.json")

    assert {"projections": SAID} == shown(tmp_path, capsys, job("projections"))


def test_a_job_that_starts_again_says_why_the_one_before_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = JobConfig.of_tables("shop", tmp_path, ())
    seen: list[dict[str, Any]] = []

    def start(_config: JobConfig) -> NoReturn:
        seen.append(json.loads(config.status_file.read_bytes()))
        raise NoExecutorsError(FAULT.message, detail=FAULT.detail)

    monkeypatch.setattr(driver, "start_session", start)
    for _ in range(2):
        with pytest.raises(NoExecutorsError):
            driver.begin(config)

    assert [("starting", None), ("starting", asdict(FAULT))] == [
        (said["state"], said["error"]) for said in seen
    ]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"error": {"code": "HW-P102"}}'])
def test_a_status_of_another_form_has_no_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.json").write_text(text, encoding="utf-8")

    assert JobStatus.error_in(tmp_path / "job.json") is None
