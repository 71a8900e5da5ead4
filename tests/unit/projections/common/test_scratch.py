"""Folders that processes make for themselves: gone with them, or with the next if killed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from projections.common.scratch_dir import Scratch, remove_abandoned

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = """
from projections.common.scratch_dir import Scratch
folder = Scratch()
(folder.path / "rows").write_text("a person's")
print(folder.path, flush=True)
input()
"""


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_a_folder_goes_with_its_command(folders: Path) -> None:
    with closing(Scratch()) as folder:
        (folder.path / "tables").mkdir()
        assert [folder.path] == list(folders.iterdir())

    assert [] == list(folders.iterdir())


def test_that_of_a_command_that_was_killed_goes_with_the_next_and_no_other(folders: Path) -> None:
    (folders / "headwater-scratch-link").symlink_to(folders)
    with (
        subprocess.Popen(
            [sys.executable, "-c", COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as command,
        closing(Scratch()) as own,
    ):
        assert command.stdout is not None
        path = folders / command.stdout.readline().strip().rpartition("/")[2]
        remove_abandoned()
        assert (path / "rows").exists()

        command.kill()
        command.wait()
        remove_abandoned()

        assert not path.exists()
        assert own.path.exists()
    assert [folders / "headwater-scratch-link"] == list(folders.iterdir())


def test_who_makes_one_while_others_look_for_abandoned_ones_has_it_as_long_as_it_wants(
    folders: Path,
) -> None:
    def make(_: int) -> bool:
        with closing(Scratch()) as own:
            (own.path / "rows").touch()
            remove_abandoned()
            return (own.path / "rows").exists()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(make, range(400)))

    assert [] == list(folders.iterdir())
