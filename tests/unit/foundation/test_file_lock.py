"""A lock on a file has one holder, or several that share it, and ends with its handle."""

from __future__ import annotations

import subprocess
import sys
import time

from foundation import file_lock

HOLDS = """
import sys
from pathlib import Path
from foundation import file_lock
with file_lock.opened(Path(sys.argv[1])) as handle:
    print(file_lock.try_lock(handle, posix=sys.argv[2] == "posix"), flush=True)
    sys.stdin.read()
"""


def test_a_lock_has_one_holder_until_its_handle_is_closed(tmp_path):
    path = tmp_path / "lock"
    with file_lock.opened(path) as second:
        with file_lock.opened(path) as first:
            assert file_lock.try_lock(first)
            assert not file_lock.try_lock(second)
        assert file_lock.try_lock(second)


def test_shared_holders_keep_an_exclusive_one_out(tmp_path):
    path = tmp_path / "lock"
    with file_lock.opened(path) as third:
        with file_lock.opened(path) as first, file_lock.opened(path) as second:
            file_lock.lock(first, shared=True)
            file_lock.lock(second, shared=True)
            began = time.monotonic()
            assert not file_lock.try_lock(third, wait_s=0.1)
            assert time.monotonic() - began >= 0.1
        file_lock.lock(third)


def test_a_lock_of_another_process_ends_with_it(tmp_path):
    for kind in ("posix", "open file"):
        path = tmp_path / kind
        command = [sys.executable, "-c", HOLDS, str(path), kind]
        with (
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as other,
            file_lock.opened(path) as handle,
        ):
            assert "True\n" == other.stdout.readline()
            assert not file_lock.try_lock(handle, posix=kind == "posix")
            other.kill()
            assert file_lock.try_lock(handle, wait_s=30, posix=kind == "posix")
