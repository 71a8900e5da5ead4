"""TaskFiles: files of Spark's tasks for each other and for the driver, in a shared folder.

Spark runs a task again after a failure, may run it twice at the same time, and may abandon an
executor that still works. Each run of some work therefore has its own folder, a file gets its name
only once it is complete, and no file of rows is ever replaced. The result of a finished piece is
stored: another run of the same task returns that result, and does not process the piece again.
"""

from __future__ import annotations

import errno
import shutil
import socket
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa

from cdc.errors import CdcError
from projections.common.fault import FaultError, kind_and_place
from projections.common.shared_folder import not_shared
from projections.errors import ProjectionError, RebuildSpaceError, ReplayError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

_DONE: Final = ".done"
_DRAFT: Final = ".draft"
_CODEC: Final = pa.ipc.IpcWriteOptions(compression="lz4")
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_FULL_TEXT: Final = tuple(f"(os error {number})" for number in _FULL)
"""How deltalake's errors name them."""


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """The files of one run of some work.

    Attributes:
        folder: Their folder. Its name is unique to this run: an executor that does not see it has
            another folder at this path.
    """

    folder: Path

    @classmethod
    def made(cls, parent: Path, name: str | None = None) -> TaskFiles:
        """Creates a folder, as the driver; with a unique name unless one is given."""
        folder = parent / (name or uuid4().hex)
        folder.mkdir(parents=True)
        return cls(folder)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Converts errors of a task to one that the driver can read, without a row's values.

        Raises:
            FaultError: An error was raised, or this executor does not see the folder.
        """
        try:
            self._check()
            yield
        except FaultError:
            raise
        except (CdcError, ProjectionError) as error:
            raise FaultError(error) from None
        except Exception as error:  # noqa: BLE001  # it is raised again, without its text
            if disk_full(error):
                raise FaultError(space_error(self.folder)) from None
            raise FaultError(
                ReplayError("a task of a rebuild failed", detail=kind_and_place(error))
            ) from None

    def pieces(
        self,
        batches: Iterable[pa.RecordBatch],
        schema: pa.Schema,
        do: Callable[[int], Mapping[str, Any]],
    ) -> Iterator[pa.RecordBatch]:
        """Processes the pieces with some numbers, unless another run has finished them.

        Args:
            batches: The numbers.
            schema: Schema of a result.
            do: Processes a piece; returns its result.

        Yields:
            The result of each piece.
        """
        for batch in batches:
            for number in batch.column(0).to_pylist():
                result = self._stored_result(number)
                if result is None:
                    result = pa.RecordBatch.from_pylist([dict(do(number))], schema)
                    self._store_result(number, result)
                yield result

    @contextmanager
    def writing(self, schema: pa.Schema) -> Iterator[tuple[str, pa.RecordBatchFileWriter]]:
        """Returns the name of a new file and its writer; it gets that name once it is complete."""
        name = f"{uuid4()}.arrow"
        with (
            self._drafted(self.folder / name) as draft,
            pa.ipc.new_file(str(draft), schema, options=_CODEC) as file,
        ):
            yield name, file

    @contextmanager
    def joined(self) -> Iterator[tuple[str, pa.NativeFile]]:
        """Returns a new file for any content, as `writing` does one for a table."""
        name = f"{uuid4()}.joined"
        with (
            self._drafted(self.folder / name) as draft,
            pa.OSFile(str(draft), "wb") as file,
        ):
            yield name, file

    def finished(self, number: int) -> bool:
        """Returns whether the result of a piece is stored."""
        return (self.folder / f"{number}{_DONE}").exists()

    def done(self, pieces: int) -> float:
        """Returns the finished share of so many pieces, 0 to 1."""
        finished = sum(1 for _ in self.folder.glob(f"*{_DONE}"))
        return min(1.0, finished / pieces) if pieces else 0.0

    def remove(self) -> None:
        """Removes all files, as far as possible."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _check(self) -> None:
        if not self.folder.is_dir():
            raise not_shared(self.folder, f"it is not there, on {socket.gethostname()}")

    def _stored_result(self, number: int) -> pa.RecordBatch | None:
        try:
            with pa.ipc.open_file(str(self.folder / f"{number}{_DONE}")) as file:
                return file.get_batch(0)
        except (FileNotFoundError, pa.ArrowInvalid):  # a power failure may leave it without content
            return None

    def _store_result(self, number: int, result: pa.RecordBatch) -> None:
        with (
            self._drafted(self.folder / f"{number}{_DONE}") as draft,
            pa.ipc.new_file(str(draft), result.schema) as file,
        ):
            file.write_batch(result)

    @contextmanager
    def _drafted(self, path: Path) -> Iterator[Path]:
        draft = path.with_name(f"{uuid4()}{_DRAFT}")
        try:
            yield draft
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


def disk_full(error: BaseException) -> bool:
    """Returns whether an error means that a disk, or a quota on it, is full."""
    known = isinstance(error, OSError) and error.errno in _FULL
    return known or any(text in str(error) for text in _FULL_TEXT)


def space_error(folder: Path) -> RebuildSpaceError:
    """Returns the error of a full disk with files of a rebuild, on this machine."""
    return RebuildSpaceError(
        "the disk with files of a rebuild is full",
        detail=f"{folder.parent}, on {socket.gethostname()}",
        hint="free space there, or raise the quota; the same headwater view rebuild then resumes",
    )
