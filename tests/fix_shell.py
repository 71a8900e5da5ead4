"""The command line, as a user runs it in a project's folder."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any

from headwater import runtime
from headwater.cli import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stops projects that still run since Ctrl-C ended the worker whose fixture stops them."""
    if not hasattr(config, "workerinput") and config.getoption("numprocesses", None):
        factory = config._tmp_path_factory  # type: ignore[attr-defined]  # as xdist finds it
        stop_projects(factory.getbasetemp())


def stop_projects(base: Path) -> None:
    """Stops the servers of each project in the folders of temporary files of workers.

    Args:
        base: The folder of the run's temporary files, with a folder for each worker.
    """
    for pattern in ("*/*/.headwater", "*/*/*/.headwater"):
        for home in base.glob(pattern):
            runtime.down(home)


class Shell:
    """Runs `headwater` in a folder as a user would.

    Args:
        folder: The project's.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Runs a command, which must end with this exit code; None for any."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADWATER_")}
        done = subprocess.run(
            [sys.executable, "-m", "headwater", *words],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=1000,
            check=False,
        )
        assert code in {None, done.returncode}, f"{words}: {done.stdout}\n{done.stderr[-4000:]}"
        return done

    def json(self, *words: str, code: int | None = 0) -> Any:
        """Runs a command and returns its one document."""
        return json.loads(self(*words, "--json", code=code).stdout)

    def here(self, *words: str, code: int | None = 0) -> Any:
        """Runs a command within this process, and returns its one document.

        For what a test asks again and again, or what takes a Spark session: a process of its own
        costs a second of a processor each time, and fifteen with a session.
        """
        settings = str(self.folder / "headwater.toml")
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            done = main([*words, "--config", settings, "--json"])
        said = out.getvalue()
        assert code in {None, done}, f"{words}: {said}\n{err.getvalue()[-4000:]}"
        return json.loads(said)
