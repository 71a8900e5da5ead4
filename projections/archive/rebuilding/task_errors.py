"""Errors of tasks: which error a rebuild raises for what failed in one of its tasks."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from deltalake.exceptions import DeltaError

from projections.archive.rebuilding.tasks import TasksFailedError
from projections.common.fault import Fault, FaultError
from projections.common.task_files import disk_full, space_error
from projections.errors import (
    ArchiveMissingError,
    BulkLostError,
    FolderNotSharedError,
    RebuildSpaceError,
    ReplayError,
    SinkUnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FAULTS: Final = {
    kind.code: kind for kind in (RebuildSpaceError, FolderNotSharedError, ArchiveMissingError)
}


@contextmanager
def named_errors(message: str, folder: Path) -> Iterator[None]:
    """Translates errors of tasks and of Delta, without their texts.

    Raises:
        RebuildSpaceError: A disk is full, here or where a task runs.
        FolderNotSharedError: A task does not see the folder.
        ArchiveMissingError: A file of the archive cannot be read.
        BulkLostError: A task failed, and no error of ours says why.
        SinkUnavailableError: Anything else.
    """
    try:
        yield
    except (TasksFailedError, FaultError, DeltaError, OSError, pa.ArrowException) as error:
        fault = Fault.find(str(error))
        if fault is None and disk_full(error):
            raise space_error(folder) from None
        if fault is None and isinstance(error, TasksFailedError):
            raise BulkLostError(message, detail=error.kind) from None
        if fault is None:
            raise SinkUnavailableError(message, detail=type(error).__name__) from None
        named = _FAULTS.get(fault.code)
        if named is not None:
            raise named(fault.message, detail=fault.detail, hint=fault.hint) from None
        detail = ": ".join(filter(None, (fault.message, fault.detail)))
        kind = BulkLostError if fault.code == ReplayError.code else SinkUnavailableError
        raise kind(message, detail=detail, hint=fault.hint) from None
