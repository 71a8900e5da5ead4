"""Runs `headwater view …` in a separate process, as a user does, to its end or until a kill."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from foundation.waiting import wait_until
from headwater.demo.errors import RebuildError
from headwater.runtime.identity import launcher

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import IO

_ENDED_S: Final = 600.0
_BEGUN_S: Final = 60.0
_POLL_S: Final = 0.02
_SHOWN: Final = 300


@dataclass(frozen=True, slots=True)
class ViewCommand:
    """One command.

    Attributes:
        verb: `rebuild`, `cutover` or `rollback`.
        view: The view.
        config: Settings file of the project.
        home: Home folder of the project.
    """

    verb: str
    view: str
    config: Path
    home: Path

    def run(self) -> None:
        """Runs the command to its end.

        Raises:
            RebuildError: The command failed, or did not end in time.
        """
        with tempfile.TemporaryFile() as stderr:
            process = self._started(stderr)
            try:
                code = process.wait(_ENDED_S)
            except subprocess.TimeoutExpired:
                raise RebuildError(
                    f"view {self.verb} did not end", detail=f"{_ENDED_S:.0f} s"
                ) from None
            finally:
                _end(process)
            if code:
                stderr.seek(0)
                last = stderr.read().decode(errors="replace").strip()[-_SHOWN:]
                raise RebuildError(f"view {self.verb} failed", detail=f"exit code {code}: {last}")

    def kill(self, begun: Callable[[], bool], after_s: float) -> bool:
        """Runs the command and kills it.

        Args:
            begun: Returns whether the command has begun its work.
            after_s: Seconds between that moment and the kill.

        Returns:
            Whether the command was killed; it may have ended before.
        """
        process = self._started(subprocess.DEVNULL)
        try:
            wait_until(lambda: begun() or process.poll() is not None, _BEGUN_S, _POLL_S)
            process.wait(after_s)
        except subprocess.TimeoutExpired:
            return True
        finally:
            _end(process)
        return False

    def _started(self, stderr: IO[bytes] | int) -> subprocess.Popen[bytes]:
        words = ["view", self.verb, self.view, "--config", str(self.config)]
        command = [sys.executable, "-P", "-m", "headwater", *words, "--home", str(self.home)]
        # ends with this process, even after a kill
        return subprocess.Popen(launcher(command), stdout=subprocess.DEVNULL, stderr=stderr)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # no effect if it has ended
    process.wait()
