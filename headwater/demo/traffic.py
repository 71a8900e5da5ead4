"""Traffic as the demo sees it: a child process that writes to the source and reports."""

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
    """What was committed so far.

    Attributes:
        changes: Row changes.
        transactions: Transactions.
        rolled_back: Transactions that were rolled back on purpose.
        seconds: How long it has been writing, its own start not included.
    """

    changes: int = 0
    transactions: int = 0
    rolled_back: int = 0
    seconds: float = 0.0


class Traffic(Protocol):
    """Writes in a process of its own, so that measuring does not slow it nor it the measuring."""

    def written(self) -> Written:
        """Returns what was committed so far; at least this much, and exactly once it ended."""

    def running(self) -> bool:
        """Returns whether it still writes."""

    def stop(self) -> Written:
        """Ends the traffic after the transaction in hand, and returns the final count.

        Raises:
            TrafficError: It had failed.
        """


class ChildTraffic:
    """A child that reports on one of its outputs, line by line.

    Args:
        argv: Program and arguments; no secret among them.
        read: Makes the count so far of a line; None for a line that says nothing.
        wish: Sent to its standard input as one line of JSON. The input stays open: its end tells
            the child to stop, also when this process is killed.
        env: The child's environment, if not ours.
        reports_on_stderr: Where it reports.
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
            launcher(argv),  # ends with us, however we end
            stdin=subprocess.PIPE if self._listens else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if reports_on_stderr else subprocess.PIPE,
            env=env,
            text=True,
            encoding="utf-8",
            # Ctrl-C is for us: the child ends when we say so
            start_new_session=True,
        )
        self._threads = [threading.Thread(target=self._follow, daemon=True)]
        if not reports_on_stderr:
            self._threads.append(threading.Thread(target=self._listen, daemon=True))
        for thread in self._threads:
            thread.start()
        if wish is not None:
            self._tell(json.dumps(wish) + "\n")

    def written(self) -> Written:
        """Returns what was committed so far."""
        return self._written

    def running(self) -> bool:
        """Returns whether the child still runs."""
        return self._process.poll() is None

    def stop(self) -> Written:
        """Asks the child to end, waits, and returns its final count.

        Raises:
            TrafficError: It failed, or had to be killed.
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

    def _tell(self, text: str) -> None:
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
    """Words that run a module; the folder we stand in cannot replace it."""
    return [sys.executable, "-P", "-m", module]


def _shown(line: str) -> str:
    # the kind of error only: what follows may hold a row's values
    return line.strip().partition(":")[0][:120]
