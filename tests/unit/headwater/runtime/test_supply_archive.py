"""`headwater.runtime.java archive` says why there is no archive, and fails nothing else."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, NoReturn

import pytest

from headwater.runtime.java.__main__ import main
from projections.job.spark import class_archive

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            subprocess.CalledProcessError(1, "java", stderr=b"first\nout of memory\n"),
            "out of memory",
        ),
        (subprocess.CalledProcessError(-9, "java", stderr=b""), "SIGKILL"),
        (subprocess.TimeoutExpired("java", 600), "timed out after 600 seconds"),
        (PermissionError(13, "Permission denied"), "Permission denied"),
    ],
    ids=["printed", "killed without a word", "timed out", "not writable"],
)
def test_what_prevents_an_archive_is_told_in_one_line_and_setup_goes_on(
    error: Exception,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    def fail(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(class_archive, "_FOLDER", tmp_path)
    monkeypatch.setattr(class_archive, "make", fail)

    assert main(["archive"]) == 0

    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert said[1].startswith("spark: no class archive, so Spark starts more slowly: ")
    assert reason in said[1]
