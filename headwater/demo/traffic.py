"""Traffic: a child process that writes to the source and reports its progress."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from headwater.demo.errors import TrafficError
from headwater.runtime.identity import launcher

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_STOP_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Written:
    """The commits so far.

    Attributes:
        changes: Committed row changes.
        transactions: Committed transactions.
        rolled_back: Transactions that the workload rolled back.
        seconds: Duration of the writing, without the start of the process.
    """

    changes: int = 0
    transactions: int = 0
    rolled_back: int = 0
    seconds: float = 0.0


class Traffic(Protocol):
    """Writes in a separate process, so that writing and measuring do not slow each other."""

    def written(self) -> Written:
        """Returns the commits so far: a lower bound, and the exact number after the end."""

    def running(self) -> bool:
        """Returns whether the traffic is still running."""

    def stop(self) -> Written:
        """Ends the traffic after the current transaction; returns the final count.

        Raises:
            TrafficError: The traffic had failed.
        """


class ChildTraffic:
    """A child process that reports its progress line by line.

    Args:
        argv: Program and arguments, without secrets.
        read: Parses a line into the count so far; None for other lines.
        wish: Sent to its standard input as one line of JSON. The input remains open: its end tells
            the child to stop, also when this process is killed.
        env: Environment of the child; by default that of this process.
        reports_on_stderr: Whether it reports on stderr instead of stdout.
    """

    def __init__(
        self,
        argv: Sequence[str],
        read: Callable[[str], Written | None],
        *,
        wish: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        reports_on_stderr: bool = False,
    ) -> None:
        self._name = argv[0].rpartition("/")[2]
        self._read = read
        self._listens = wish is not None
        self._written = Written()
        self._complaint = ""
        self._stopped = False
        self._process = subprocess.Popen(
            launcher(argv),  # ends with this process, even after a kill
            stdin=subprocess.PIPE if self._listens else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if reports_on_stderr else subprocess.PIPE,
            env=env,
            text=True,
            encoding="utf-8",
            # Ctrl-C must reach only this process, which then ends the child
            start_new_session=True,
        )
        self._threads = [threading.Thread(target=self._follow, daemon=True)]
        if not reports_on_stderr:
            self._threads.append(threading.Thread(target=self._listen, daemon=True))
        for thread in self._threads:
            thread.start()
        if wish is not None:
            self._send(json.dumps(wish) + "\n")

    def written(self) -> Written:
        """Returns the commits so far."""
        return self._written

    def running(self) -> bool:
        """Returns whether the child still runs."""
        return self._process.poll() is None

    def stop(self) -> Written:
        """Asks the child to end and waits; returns its final count.

        Raises:
            TrafficError: The child failed, or had to be killed.
        """
        if self._stopped:
            return self._written
        early = self.running()
        self._stopped = True
        if early and self._listens and self._process.stdin is not None:
            self._process.stdin.close()
        elif early:
            self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join(_STOP_S)
        self._close()
        ended_well = self._process.returncode == 0 or (early and not self._listens)
        if not ended_well:
            raise TrafficError(
                f"{self._name} stopped writing",
                detail=f"exit code {self._process.returncode}; {self._complaint or 'no message'}",
            )
        return self._written

    def _close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def _send(self, text: str) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(text)
            self._process.stdin.flush()

    def _follow(self) -> None:
        for line in self._process.stdout or ():
            found = self._read(line)
            if found is not None:
                self._written = found
            elif line.strip():
                self._complaint = _shown(line)

    def _listen(self) -> None:
        for line in self._process.stderr or ():
            if line.strip():
                self._complaint = _shown(line)


def python_module(module: str) -> list[str]:
    """Returns a command that runs a module, which the current folder cannot shadow."""
    return [sys.executable, "-P", "-m", module]


def _shown(line: str) -> str:
    # only the class of the error: its message may contain values of a row
    return line.strip().partition(":")[0][:120]
