"""Places in tasks and in their driver where a test has a process halt, so that it can be killed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

HALTED_S = 240.0


@dataclass(frozen=True, slots=True)
class TaskHalts:
    """Halts, each a file in a folder that test, driver and tasks share.

    Attributes:
        folder: The folder.
    """

    folder: Path

    def want(self, *stages: str) -> None:
        """Has the first process halt that comes to each stage."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for stage in stages:
            self.release(stage)  # a process that was killed here cannot take its file away
            (self.folder / f"{stage}.wanted").touch()

    def halted(self, stage: str) -> int | None:
        """The process that halts at a stage; None while none does."""
        found = next(self.folder.glob(f"{stage}.halted.*"), None)
        return None if found is None else int(found.name.rpartition(".")[2])

    def release(self, stage: str) -> None:
        """Lets the process go on that halts at a stage."""
        for path in self.folder.glob(f"{stage}.halted.*"):
            path.unlink()

    def reach(self, stage: str) -> None:
        """Halts the calling process if it is the first one at a stage where that is wanted."""
        halt = self.folder / f"{stage}.halted.{os.getpid()}"
        try:
            (self.folder / f"{stage}.wanted").rename(halt)
        except FileNotFoundError:
            return
        wait_until(lambda: not halt.exists(), f"the test to release {stage}", timeout_s=HALTED_S)

    def fill_disk(self, of: str) -> None:
        """Lets no more room be for files of processes that work below a folder of that name."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{of}.full").touch()

    def free_disk(self) -> None:
        """Lets there be room again."""
        for path in self.folder.glob("*.full"):
            path.unlink()

    def full(self, place: Path) -> bool:
        """Whether there is no more room for processes that work in a folder."""
        return any(path.stem in place.parts for path in self.folder.glob("*.full"))
