"""A run that never touched a real component does not pass for a green one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PASSES = "def test_it(): pass\n"
SKIPS = "import pytest\ndef test_it(): pytest.skip('no server')\n"
FAILS = "def test_it(): assert 0\n"
SOAK = "import pytest\n@pytest.mark.soak\ndef test_it(): pass\n"
WORKERS = ("-p", "xdist", "-n", "2", "--dist", "loadfile")


def run(folder: Path, *options: str) -> tuple[int, str]:
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.fix_counts", "--import-mode=importlib"]
    answer = subprocess.run(
        [*command, *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.returncode, answer.stdout


def write(folder: Path, **tests: str) -> None:
    for name, text in tests.items():
        path = folder / "tests" / name / "test_one.py"
        path.parent.mkdir(parents=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("integration", "expected"),
    [(PASSES, 0), (SKIPS, 1), (FAILS, 1), (None, 1)],
    ids=["passed", "skipped", "failed", "absent"],
)
def test_required_integration_tests_must_have_run(tmp_path, integration, expected):
    write(tmp_path, unit=PASSES, **({"integration": integration} if integration else {}))

    assert expected == run(tmp_path, "--require-integration")[0]
    assert expected == run(tmp_path, "--require-integration", *WORKERS)[0]


def test_without_the_option_unit_tests_may_run_alone(tmp_path):
    write(tmp_path, unit=PASSES)

    assert 0 == run(tmp_path)[0]


@pytest.mark.parametrize("options", [(), WORKERS], ids=["one process", "two workers"])
def test_the_counts_are_shown_by_folder_before_pytest_s_own_last_line(tmp_path, options):
    write(tmp_path, unit=PASSES, integration=PASSES, fault=SKIPS)
    _, output = run(tmp_path, "--require-integration", *options)
    lines = output.splitlines()

    assert "integration: 1 passed, 0 failed, 0 skipped" in lines
    assert "fault: 0 passed, 0 failed, 1 skipped" in lines
    assert "2 passed, 1 skipped" in lines[-1]


@pytest.mark.parametrize("options", [(), WORKERS], ids=["one process", "two workers"])
@pytest.mark.parametrize(("text", "expected"), [(PASSES, 0), (SKIPS, 1)], ids=["ran", "skipped"])
def test_each_promise_must_have_been_shown(tmp_path, options, text, expected):
    write(tmp_path, unit=text, integration=PASSES)
    test = "tests/unit/test_one.py::test_it"
    (tmp_path / "tests" / "promises.toml").write_text(f'"nothing is lost" = ["{test}"]\n')

    code, output = run(tmp_path, "--require-integration", *options)

    assert expected == code
    said = f"ERROR: the promise «nothing is lost» was not shown: {test} did not pass"
    assert (expected == 1) == (said in output.splitlines())


@pytest.mark.parametrize("options", [(), WORKERS], ids=["one process", "two workers"])
def test_what_failed_is_said_before_the_run_ends(tmp_path, options):
    write(tmp_path, unit=FAILS)

    said = run(tmp_path, *options)[1]

    line = "FAILED call of tests/unit/test_one.py::test_it: "
    assert 0 <= said.find(line) < said.index("= FAILURES =")


@pytest.mark.parametrize("options", [(), WORKERS], ids=["one process", "two workers"])
def test_tests_that_a_run_leaves_out_are_counted(tmp_path, options):
    write(tmp_path, unit=PASSES, e2e=SOAK)

    marks = "-W", "ignore::pytest.PytestUnknownMarkWarning", "-m", "not soak"
    code, said = run(tmp_path, *marks, *options)

    assert 0 == code, said
    assert "1 passed" in said
    assert "left out: 1 (-m 'not soak')" in said.splitlines()
