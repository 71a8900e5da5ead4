"""Requests to verify derived views: what is asked, answered, withdrawn and left behind."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from cdc.lsn import Lsn
from projections.definition.views import DerivedView, Store
from projections.planning.job_config import JobConfig
from projections.verification.derived_checks import CheckAnswer, Checks, verified_by_job
from projections.verification.report import KeyFinding, KeyVerdict, ViewReport

if TYPE_CHECKING:
    from pathlib import Path

BY_CITY = DerivedView("by_city", ("city",), frozenset({Store.TABLE}), ("people",), sql="SELECT 1")
BY_AGE = DerivedView("by_age", ("age",), frozenset({Store.TABLE}), ("people",), sql="SELECT 2")
REPORT = ViewReport(
    view="by_city",
    store=Store.TABLE,
    rows=3,
    missing=1,
    extra=0,
    different=0,
    applied_through=Lsn(2**40 + 7),
    examples=("row Åre (missing)",),
    findings=(KeyFinding("Åre", KeyVerdict.MISSING, 0, ("total",)),),
)


@pytest.fixture
def config(tmp_path: Path) -> JobConfig:
    return JobConfig.of_tables("people", tmp_path, ())


def answering(config: JobConfig, answers: dict[str, CheckAnswer]) -> threading.Thread:
    """A job that answers one request for each view in `answers`, then ends."""
    checks, began, pause = Checks(config), threading.Event(), threading.Event()

    def serve() -> None:
        with checks.serving():
            began.set()
            left = dict(answers)
            while left:
                for check in checks.asked():
                    if check.view in left:
                        checks.answer(check, left.pop(check.view))
                pause.wait(0.005)

    job = threading.Thread(target=serve, daemon=True)
    job.start()
    assert began.wait(10)
    return job


def test_a_report_comes_back_as_the_job_has_made_it(config: JobConfig) -> None:
    answer = CheckAnswer(compared=True, report=REPORT)
    job = answering(config, {"by_city": answer, "by_age": CheckAnswer(compared=True)})

    found = verified_by_job(config, [BY_CITY, BY_AGE])

    job.join(10)
    assert {"by_city": answer, "by_age": CheckAnswer(compared=True)} == found
    assert [] == Checks(config).asked()


def test_without_a_job_nothing_is_asked(config: JobConfig) -> None:
    assert {} == verified_by_job(config, [BY_CITY])
    assert [] == Checks(config).asked()


def test_what_the_job_could_not_compare_is_left_to_the_caller(config: JobConfig) -> None:
    job = answering(config, {"by_city": CheckAnswer(compared=False)})

    assert {} == verified_by_job(config, [BY_CITY])

    job.join(10)


def test_a_job_that_ends_leaves_what_it_has_not_answered(config: JobConfig) -> None:
    job = answering(config, {"by_city": CheckAnswer(compared=True, report=REPORT)})

    found = verified_by_job(config, [BY_CITY, BY_AGE])

    job.join(10)
    assert found.keys() <= {"by_city"}
    assert [] == Checks(config).asked()


def test_a_caller_that_is_stopped_withdraws_its_request(config: JobConfig) -> None:
    stop = threading.Event()
    stop.set()
    with Checks(config).serving():
        assert {} == verified_by_job(config, [BY_CITY], stop=stop)
    assert [] == Checks(config).asked()


def test_a_withdrawn_request_is_not_answered(config: JobConfig) -> None:
    checks = Checks(config)
    check = checks.ask(BY_CITY)
    checks.withdraw(check)

    checks.answer(check, CheckAnswer(compared=True))

    assert checks.answered(check) is None


def test_requests_are_taken_in_their_order_and_tell_definitions_apart(config: JobConfig) -> None:
    checks = Checks(config)
    made = [checks.ask(view) for view in (BY_CITY, BY_AGE, BY_CITY)]

    assert made == checks.asked()
    assert made[0].fingerprint != made[1].fingerprint


def test_what_a_killed_caller_left_is_removed_once_it_is_old(
    config: JobConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = Checks(config)
    checks.ask(BY_CITY)
    answered = checks.ask(BY_AGE)
    checks.answer(answered, CheckAnswer(compared=True))
    folder = config.checkpoint(Store.TABLE).parent / ".checks"
    (folder / f".{answered.id}.request.0a1b2c3d.tmp").touch()  # killed while it wrote
    tomorrow_s = time.time() + 86_400

    checks.clear()
    assert ["by_city"] == [check.view for check in checks.asked()]
    monkeypatch.setattr(time, "time", lambda: tomorrow_s)
    with checks.serving():
        checks.clear()

    assert [] == checks.asked()
    assert [".job.lock"] == [path.name for path in folder.iterdir()]
