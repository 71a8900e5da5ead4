"""Progress of downloads on stderr: files and bytes; quiet without a terminal."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager


class DownloadProgress(Protocol):
    """Where downloads report; called from several threads at once."""

    def for_file(self, name: str, size: int) -> AbstractContextManager[Callable[[int], None]]:
        """Context of one file of ``size`` bytes, giving the function to call with each chunk."""
        ...

    def file_done(self) -> None:
        """One more file is in place."""
        ...


class _Bar:
    def __init__(self, advance: Callable[[int, int], None]) -> None:
        self._advance = advance
        self._lock = threading.Lock()

    @contextmanager
    def for_file(self, name: str, size: int) -> Iterator[Callable[[int], None]]:
        del name, size
        yield self._chunk

    def _chunk(self, size: int) -> None:
        with self._lock:
            self._advance(0, size)

    def file_done(self) -> None:
        with self._lock:
            self._advance(1, 0)


@contextmanager
def open_progress(title: str, *, files: int, shown: bool) -> Iterator[DownloadProgress]:
    """A progress bar on stderr, or silence.

    Args:
        title: What is downloaded.
        files: How many files there will be.
        shown: False for silence.
    """
    if not shown:
        yield _Bar(lambda _files, _bytes: None)
        return
    from rich import progress as rich_progress  # noqa: PLC0415  # only a visible bar needs it
    from rich.console import Console  # noqa: PLC0415

    columns = (
        rich_progress.TextColumn("[bold]{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TextColumn("{task.fields[megabytes]:.1f} MB"),
        rich_progress.TimeElapsedColumn(),
    )
    with rich_progress.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=files, megabytes=0.0)
        received = 0

        def advance(files_more: int, bytes_more: int) -> None:
            nonlocal received
            received += bytes_more
            bar.update(task, advance=files_more, megabytes=received / 1e6)

        yield _Bar(advance)
