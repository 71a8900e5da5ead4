"""Ctrl-C ends a run of the tests and every server that its workers started."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headwater import runtime
from headwater.runtime.home import Home, read_json
from headwater.runtime.process import ProcessRecord
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[4]
UNENDING = """
import time
from pathlib import Path
from headwater import runtime
from headwater.runtime import RuntimeSpec, ServiceName, Spawned

def test_it(tmp_path):
    home = tmp_path / ".headwater"
    runtime.up(RuntimeSpec(home=home, services={ServiceName.CACHE: Spawned()}))
    Path(__file__).with_name("home").write_text(str(home))
    time.sleep(600)
"""


def test_ctrl_c_leaves_no_server_of_a_worker(tmp_path: Path) -> None:
    test = tmp_path / "test_unending.py"
    test.write_text(UNENDING)
    words = ("-n1", "-p", "tests.fix_shell", "-p", "no:cacheprovider", "--rootdir", str(tmp_path))
    run = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pytest",
            *words,
            f"--basetemp={tmp_path / 'base'}",
            "-c",
            "/dev/null",
            str(test),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    note = tmp_path / "home"
    wait_until(lambda: run.poll() is not None or (note.exists() and note.read_text()))
    assert run.poll() is None, run.communicate()
    home = Home(Path(note.read_text()))
    started = [ProcessRecord.from_json(read_json(file)) for file in home.run.glob("*.pid")]
    assert started
    assert all(record is not None and record.alive() for record in started)

    run.send_signal(signal.SIGINT)
    run.communicate(timeout=60)
    left = [record.name for record in started if record is not None and record.alive()]
    runtime.down(home.root)

    assert not left
