"""One driver writes; one that stood still meanwhile cannot any more, whatever it was at."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from projections.common.driver_lock import DriverToken, sole_driver
from projections.errors import WriterFencedError, WriterLockedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DRIVER = """
with sole_driver(home) as driver_token:
    say(driver_token.token)
    wait()
"""
WORKER = """
driver_token = DriverToken(home / ".writer", sys.argv[2])
wait()
try:
    with driver_token.writing():
        (home / "table").write_text("written by the old one")
except WriterFencedError as error:
    say(error.code)
"""
WRITING = """
with DriverToken(home / ".writer", sys.argv[2]).writing():
    say("writing")
    wait()
"""
JVM = """
handle = os.open(home / ".writer" / "jvm", os.O_RDWR)
fcntl.lockf(handle, fcntl.LOCK_EX)
say("there")
wait()
"""
COMMON = """
import fcntl, os, sys
from pathlib import Path
from projections.errors import WriterFencedError
from projections.common.driver_lock import DriverToken, sole_driver

home = Path(sys.argv[1])

def say(text):
    print(text, flush=True)

def wait():
    sys.stdin.readline()

"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a program on the home; it goes on with each line that it is given."""
    started: list[subprocess.Popen[str]] = []

    def start(program: str, token: str = "") -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", COMMON + program, str(tmp_path), token],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.communicate()


def _said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGSTOP)
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)


def _wake(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    process.send_signal(signal.SIGCONT)


def _take(home: Path) -> None:
    with sole_driver(home, wait_s=0):
        pytest.fail("two drivers keep the views")


def test_a_second_driver_is_told_who_is_the_first(
    tmp_path: Path, process: Callable[..., subprocess.Popen[str]]
) -> None:
    first = process(DRIVER)
    assert _said(first)

    with pytest.raises(WriterLockedError, match="another driver") as refused:
        _take(tmp_path)
    assert f"process {first.pid};" in str(refused.value.detail)
    _stop(first)
    with pytest.raises(WriterLockedError) as refused:
        _take(tmp_path)
    assert f"process {first.pid}, stopped" in str(refused.value.detail)
    assert f"kill -KILL {first.pid}" in str(refused.value.hint)

    first.kill()
    first.wait()
    with sole_driver(tmp_path, wait_s=0) as driver_token:
        driver_token.check()


def test_a_worker_that_is_woken_after_another_driver_took_over_writes_nothing(
    tmp_path: Path, process: Callable[..., subprocess.Popen[str]]
) -> None:
    with sole_driver(tmp_path) as old:
        worker = process(WORKER, old.token)
        _stop(worker)

    with sole_driver(tmp_path, wait_s=0) as new:
        _wake(worker)

        assert "HW-P017" == _said(worker)
        assert not (tmp_path / "table").exists()
        new.check()


@pytest.mark.parametrize(
    ("program", "what"),
    [(WRITING, "worker of an ended driver"), (JVM, "the JVM of an ended driver")],
    ids=["a worker amid a write", "its JVM"],
)
def test_nobody_takes_over_while_something_of_an_ended_driver_may_still_write(
    tmp_path: Path, process: Callable[..., subprocess.Popen[str]], program: str, what: str
) -> None:
    with sole_driver(tmp_path) as old:
        left = process(program, old.token)
        assert _said(left)
    _stop(left)

    with pytest.raises(WriterLockedError, match=what) as refused:
        _take(tmp_path)
    assert f"process {left.pid}, stopped" in str(refused.value.detail)

    left.kill()
    left.wait()
    with sole_driver(tmp_path, wait_s=0) as new, pytest.raises(WriterFencedError):
        old.check()
    new.check()  # what it was is nobody's affair until another comes


def test_drivers_of_two_sources_write_side_by_side_and_one_source_has_one(tmp_path: Path) -> None:
    with sole_driver(tmp_path, "shop") as shop, sole_driver(tmp_path, "billing") as billing:
        shop.check()
        billing.check()
        assert shop.folder != billing.folder
        with (
            pytest.raises(WriterLockedError, match="another driver"),
            sole_driver(tmp_path, "shop"),
        ):
            pytest.fail("two drivers of one source")


@pytest.mark.parametrize(("first", "second"), [(None, "shop"), ("shop", None)])
def test_a_driver_of_a_source_and_one_of_the_whole_home_exclude_each_other(
    tmp_path: Path, first: str | None, second: str | None
) -> None:
    with (
        sole_driver(tmp_path, first),
        pytest.raises(WriterLockedError, match="another driver"),
        sole_driver(tmp_path, second, wait_s=0),
    ):
        pytest.fail("two drivers keep the views of one source")


@pytest.mark.parametrize(("first", "second"), [(None, "shop"), ("shop", None)])
def test_what_an_ended_driver_left_behind_is_fenced_when_sources_come_or_go(
    tmp_path: Path,
    process: Callable[..., subprocess.Popen[str]],
    first: str | None,
    second: str | None,
) -> None:
    folder = ".writer" if first is None else f".writer/sources/{first}"
    with sole_driver(tmp_path, first) as old:
        left = process(JVM.replace('".writer"', repr(folder)))
        assert "there" == _said(left)

    with pytest.raises(WriterLockedError, match="JVM"), sole_driver(tmp_path, second, wait_s=0):
        pytest.fail("its JVM still writes checkpoints")
    left.kill()
    left.wait()
    with sole_driver(tmp_path, second, wait_s=0), pytest.raises(WriterFencedError):
        old.check()


def test_several_may_write_at_a_time_for_one_driver(tmp_path: Path) -> None:
    with sole_driver(tmp_path) as driver_token, driver_token.writing(), driver_token.writing():
        assert DriverToken(tmp_path / ".writer", driver_token.token) == driver_token


@pytest.mark.parametrize("lost", ["file", "folder", "replaced"])
def test_a_driver_whose_lock_was_lost_writes_no_more(tmp_path: Path, lost: str) -> None:
    with sole_driver(tmp_path) as driver_token:
        file = driver_token.folder / "tenure"
        if lost == "folder":
            shutil.rmtree(driver_token.folder)
        else:
            file.unlink()
        if lost == "replaced":
            file.write_text("another")

        with pytest.raises(WriterFencedError) as refused:
            driver_token.check()

    assert "nothing was written" in str(refused.value.hint)


def test_a_lock_that_is_replaced_while_it_is_waited_for_does_not_count(
    tmp_path: Path, process: Callable[..., subprocess.Popen[str]]
) -> None:
    with sole_driver(tmp_path) as driver_token:
        file = driver_token.folder / "tenure"
        handle = os.open(file, os.O_RDWR)
        fcntl.flock(handle, fcntl.LOCK_EX)
        worker = process(WORKER, driver_token.token)
        _wake(worker)
        copy = file.with_name("copy")
        copy.write_text(driver_token.token + "!")
        copy.replace(file)
        os.close(handle)

        assert "HW-P017" == _said(worker)
    assert not (tmp_path / "table").exists()
