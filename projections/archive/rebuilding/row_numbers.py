"""RowNumbers: the numbers of the records that tasks write, in a file; each task reads its part.

Spark would send all of them to every worker with the task itself, and the driver would hold them
once more in that form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from projections.archive.fold import Integers
    from projections.common.task_files import TaskFiles


@dataclass(frozen=True, slots=True)
class RowNumbers:
    """Row numbers of an archive, rising, divided among tasks.

    Attributes:
        file: Where they are; the executors share its folder.
        cuts: Where each task begins in them, and where the last one ends.
    """

    file: Path
    cuts: tuple[int, ...]

    @classmethod
    def stored(cls, files: TaskFiles, rows: Integers, cuts: tuple[int, ...]) -> RowNumbers:
        """Stores row numbers for the tasks of one run.

        Raises:
            OSError: The disk is full.
        """
        file = files.folder / "rows.npy"
        np.save(file, rows)
        return cls(file, cuts)

    @property
    def tasks(self) -> int:
        """Returns the number of tasks."""
        return len(self.cuts) - 1

    def of(self, task: int) -> Integers:
        """Returns the row numbers of a task."""
        rows: Integers = np.load(self.file, mmap_mode="r")
        return np.array(rows[self.cuts[task] : self.cuts[task + 1]])
