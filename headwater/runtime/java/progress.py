"""Progress of downloads on stderr, in files and bytes; silent without a terminal."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager


class DownloadProgress(Protocol):
    """Receives the progress of downloads; called from several threads concurrently."""

    def for_file(self, name: str, size: int) -> AbstractContextManager[Callable[[int], None]]:
        """Opens a context for a file of ``size`` bytes; yields the function to call per chunk."""
        ...

    def file_done(self) -> None:
        """Records a finished file."""
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
    """Yields a progress bar on stderr, or a silent one.

    Args:
        title: Name of the download.
        files: Number of files.
        shown: Whether the bar is visible.
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
