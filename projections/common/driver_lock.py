"""Driver lock: only one driver writes the views of a home folder.

A driver consists of several processes: its own, Spark's JVM, and workers that write. Each of them
can be stopped at any moment, outlive the others, and wake up while another driver is running. Each
therefore holds its own lock for as long as it may write, and the system frees it only when the
process ends:

| process | lock | held |
|---|---|---|
| the driver | on the home's folder, exclusive | as long as it lives, also while it is stopped |
| its JVM, which writes checkpoints | on `.writer/jvm`, exclusive | likewise |
| each process that writes a store | on the token file, shared | from before to after each write |

The token file is `.writer/tenure`. A new driver has to get all three locks, the last one
exclusively, before it writes a new token. It cannot while any process of an older driver might
still be writing: then it waits a little, and is refused with the number of the process that holds
the lock. Once it has all three, no process of the older driver is writing; to write again such a
process needs the shared lock, finds a token that is not its own, and is refused. No clock and no
lease is part of this.

A project of several sources has a driver for each, in one home folder. Such a driver holds the
home's folder shared, and has its own locks and token in `.writer/sources/<source>/`, whose folder
it holds exclusively. A driver also locks the folders of the drivers that it excludes: the driver of
a source locks that of a home without sources, and the latter locks those of all sources.
"""

from __future__ import annotations

import os
import secrets
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from foundation import file_lock
from projections.errors import WriterFencedError, WriterLockedError

if TYPE_CHECKING:
    from collections.abc import Iterator

TAKE_OVER_WAIT_S: Final = 30.0
"""How long processes of an ended driver may take to end, too."""

_FOLDER: Final = ".writer"
_SOURCES: Final = "sources"
_TENURE: Final = "tenure"
_JVM: Final = "jvm"
_TOKEN_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class DriverToken:
    """The right to write (fencing token); can be passed to other processes.

    Attributes:
        folder: Folder of its locks.
        token: Its unique token.
    """

    folder: Path
    token: str

    @property
    def jvm_lock(self) -> Path:
        """Returns the file that the driver's JVM holds locked, with a POSIX lock."""
        return self.folder / _JVM

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Excludes other drivers during a write; several writers of this driver may overlap.

        Raises:
            WriterFencedError: Another driver has the lock, or the lock file is gone.
        """
        try:
            handle = os.open(self.folder / _TENURE, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise self._fenced("its lock file was deleted") from None
        try:
            file_lock.lock(handle, shared=True)
            # a replaced file is locked by others
            if not _same(handle, self.folder / _TENURE):
                raise self._fenced("its lock file was replaced")
            if os.pread(handle, 4 * _TOKEN_BYTES, 0) != self.token.encode():
                raise self._fenced("another driver holds the lock")
            yield
        finally:
            os.close(handle)

    def check(self) -> None:
        """Checks that the token is still valid.

        Raises:
            WriterFencedError: It is not.
        """
        with self.writing():
            pass

    def _fenced(self, detail: str) -> WriterFencedError:
        return WriterFencedError(
            "this driver must not write any more",
            detail=f"{detail}; process {os.getpid()}",
            hint="nothing was written; headwater status shows the present driver",
        )


@contextmanager
def sole_driver(
    home: Path, source: str | None = None, wait_s: float = TAKE_OVER_WAIT_S
) -> Iterator[DriverToken]:
    """Makes this process the only driver of a home folder, or of one of its sources.

    Args:
        home: Folder of all state.
        source: The source, if drivers of other sources use the same home.
        wait_s: How long remaining processes of an ended driver may take to end, seconds.

    Raises:
        WriterLockedError: Another driver runs, or a process of one that might still write.
    """
    folder = home / _FOLDER
    own = folder if source is None else folder / _SOURCES / source
    own.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        # a folder, not a file: a deleted file would lose its lock without notice
        _hold(held, home, shared=source is not None)
        if source is None:
            for other in sorted((folder / _SOURCES).glob("*/")):
                _take_over(other, time.monotonic() + wait_s)
        else:
            _hold(held, own)
            _take_over(folder, time.monotonic() + wait_s)
        yield _take_over(own, time.monotonic() + wait_s)


def _hold(held: ExitStack, folder: Path, *, shared: bool = False) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    held.callback(os.close, handle)
    if not file_lock.try_lock(handle, shared=shared):
        raise _locked(folder, "another driver maintains these views")


def _take_over(folder: Path, deadline: float) -> DriverToken:
    jvm, file = folder / _JVM, folder / _TENURE
    with file_lock.opened(jvm) as handle:
        if not file_lock.try_lock(handle, wait_s=deadline - time.monotonic(), posix=True):
            raise _locked(jvm, "the JVM of an ended driver still runs")
    with file_lock.opened(file) as handle:
        if not file_lock.try_lock(handle, wait_s=deadline - time.monotonic()):
            raise _locked(file, "a worker of an ended driver is still writing")
        token = DriverToken(folder, secrets.token_hex(_TOKEN_BYTES))
        os.pwrite(handle, token.token.encode(), 0)
        os.fsync(handle)
    return token


def _locked(path: Path, what: str) -> WriterLockedError:
    found = [(pid, _stopped(pid)) for pid in holders(path)]
    said = [f"process {pid}" + (", stopped" if stopped else "") for pid, stopped in found]
    hint = "headwater status shows it; headwater down stops it"
    if asleep := [str(pid) for pid, stopped in found if stopped]:
        numbers = " ".join(asleep)
        hint = f"kill -CONT {numbers} lets it go on; kill -KILL {numbers} ends it for another"
    return WriterLockedError(what, detail="; ".join([*said, str(path)]), hint=hint)


def holders(path: Path) -> list[int]:
    """Returns the processes that hold any lock on a file, as far as the system reports them."""
    found = []
    with suppress(OSError):
        inode = str(path.stat().st_ino)
        for line in Path("/proc/locks").read_text("ascii").splitlines():
            # number, kind, -, mode, process, device:inode, ...; an arrow marks a waiting process
            words = line.split()
            if "->" not in words and words[5].rpartition(":")[2] == inode:
                found.append(int(words[4]))
    return sorted({pid for pid in found if pid > 0})


def _stopped(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in ("T", "t")


def _same(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
