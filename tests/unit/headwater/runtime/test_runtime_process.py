"""Processes are recorded so that only the recorded one is ever signalled."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from headwater.runtime.process import (
    Launch,
    ManagedProcess,
    ProcessRecord,
    cap_log,
    child_environment,
    end_stale,
    tail,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SLEEPER = (sys.executable, "-c", "import time; time.sleep(600)")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(SLEEPER, start_new_session=True) as process:
        yield process
        process.kill()


def test_a_living_process_is_recognised_and_ended(
    sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    record = ProcessRecord.of(sleeper.pid, "sleeper")
    assert record is not None
    pid_file = tmp_path / "sleeper.pid"
    pid_file.write_text(json.dumps(record.to_json()))

    ended = end_stale(pid_file)

    assert record == ended
    assert -signal.SIGTERM == sleeper.wait(10)
    assert not pid_file.exists()


@pytest.mark.parametrize(
    "change", [{"start_time": 1}, {"boot_id": "another boot"}], ids=["reused-number", "other-boot"]
)
def test_a_process_that_only_has_the_same_number_is_left_alone(
    sleeper: subprocess.Popen[bytes], tmp_path: Path, change: dict[str, object]
) -> None:
    record = ProcessRecord.of(sleeper.pid, "sleeper")
    assert record is not None
    pid_file = tmp_path / "sleeper.pid"
    pid_file.write_text(json.dumps({**record.to_json(), **change}))

    ended = end_stale(pid_file)

    assert ended is None
    assert sleeper.poll() is None
    assert not pid_file.exists()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', "4711"])
def test_a_pid_file_that_is_not_ours_signals_nobody(tmp_path: Path, content: str) -> None:
    pid_file = tmp_path / "x.pid"
    pid_file.write_text(content)

    assert end_stale(pid_file) is None


def test_a_dead_process_has_no_record(sleeper: subprocess.Popen[bytes]) -> None:
    record = ProcessRecord.of(sleeper.pid, "sleeper")
    sleeper.kill()
    sleeper.wait()

    assert record is not None
    assert not record.alive()
    assert ProcessRecord.of(sleeper.pid, "sleeper") is None
    assert not record.send(signal.SIGTERM)


def test_a_child_writes_its_log_and_removes_its_pid_file_when_it_ends(tmp_path: Path) -> None:
    log, pid_file = tmp_path / "child.log", tmp_path / "child.pid"
    launch = Launch(argv=(sys.executable, "-c", "print('hello'); raise SystemExit(3)"))

    child = ManagedProcess.start("child", launch, log=log, pid_file=pid_file)
    assert child.record.wait_gone(10)

    assert 3 == child.poll()
    assert "hello" == tail(log)
    assert not pid_file.exists()


def test_what_a_child_leaves_in_its_group_ends_with_it(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', "
        "'import time; time.sleep(600)']); print(p.pid, flush=True); sys.stdin.read()"
    )
    log = tmp_path / "child.log"
    launch = Launch(argv=(sys.executable, "-c", script))
    child = ManagedProcess.start("child", launch, log=log, pid_file=tmp_path / "child.pid")
    assert child.record.wait_gone(10)
    grandchild = ProcessRecord.of(int(tail(log)), "grandchild")

    child.poll()

    assert grandchild is None or grandchild.wait_gone(10)


def test_a_child_ends_when_its_supervisor_is_killed(tmp_path: Path) -> None:
    script = f"""
import sys, time
from pathlib import Path
from headwater.runtime.process import Launch, ManagedProcess
folder = Path({str(tmp_path)!r})
launch = Launch(argv=(sys.executable, "-c", "import time; time.sleep(600)"))
child = ManagedProcess.start("child", launch, log=folder / "log", pid_file=folder / "child.pid")
print(child.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = ProcessRecord.of(int(parent.stdout.readline()), "child")
        assert child is not None
        parent.kill()

    assert child.wait_gone(10)


def test_a_log_is_cut_at_its_cap_and_the_writer_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "service.log"
    with log.open("ab") as writer:
        writer.write(b"x" * 600 + b"end of the first part\n")
        writer.flush()
        cut = cap_log(log, 500)
        writer.write(b"second part\n")

    assert cut
    assert b"second part\n" == log.read_bytes()
    assert 500 == (tmp_path / "service.log.1").stat().st_size
    assert tail(tmp_path / "service.log.1").endswith("end of the first part")
    assert not cap_log(log, 500)


def test_a_log_that_does_not_exist_is_neither_cut_nor_shown(tmp_path: Path) -> None:
    assert not cap_log(tmp_path / "none.log", 10)
    assert "" == tail(tmp_path / "none.log")


def test_a_childs_environment_can_lack_what_ours_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xmx9g")

    made = child_environment({"JAVA_TOOL_OPTIONS": None, "ADDED": "1"})

    assert "JAVA_TOOL_OPTIONS" not in made
    assert "1" == made["ADDED"]
    assert os.environ["PATH"] == made["PATH"]


def test_environments_of_children_are_not_shown() -> None:
    launch = Launch(argv=("x",), env={"PGPASSWORD": "hunter2"})

    assert "hunter2" not in repr(launch)
    assert "hunter2" not in str(dataclasses.replace(launch, argv=("y",)))
