"""Checks: tables of views made from others that the job is asked to verify.

What such a table should be takes Spark, and the job has it. Whoever verifies in the background asks
for one view at a time, and waits until the job has published what it found. A request is an empty
file beside the checkpoints.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import orjson

from projections.definition.views import Store

if TYPE_CHECKING:
    from projections.planning.job_spec import JobSpec

_FOLDER: Final = ".checks"
_RUNS: Final = ("starting", "ready")
_SILENCE_S: Final = 60.0
"""How long a job that runs may say nothing of itself: what it is bound to may be bound anew."""


class Checks:
    """What is asked of one job.

    Args:
        spec: The job.
    """

    def __init__(self, spec: JobSpec) -> None:
        self._folder = spec.checkpoint(Store.TABLE).parent / _FOLDER

    def ask(self, view: str) -> None:
        """Asks for the table of a view."""
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / view).touch()

    def asked(self) -> list[str]:
        """Returns the views that are asked for."""
        try:
            return sorted(path.name for path in self._folder.iterdir())
        except FileNotFoundError:
            return []

    def done(self, view: str) -> None:
        """Says that a view was looked at, or is not to be looked at any more."""
        (self._folder / view).unlink(missing_ok=True)


def job_runs(spec: JobSpec) -> bool:
    """Whether the job says of itself that it keeps the views."""
    try:
        said = orjson.loads(spec.status_file.read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        return False
    return said["state"] in _RUNS and time.time() - said["at"] < _SILENCE_S
