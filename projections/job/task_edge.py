"""The edge of Spark's Python workers: how a task of a batch runs, and which errors leave it."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from cdc.errors import CdcError
from projections.common.fault import FaultError, kind_and_place
from projections.errors import ProjectionError, QueryFailedError

if TYPE_CHECKING:
    from collections.abc import Iterator

# The garbage collector runs after this many new objects, by default 700; a batch creates many times
# as many, all in use and without cycles.
_OBJECTS_UNTIL_COLLECTION: Final = 200_000


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Collects garbage rarely until the end."""
    usual = gc.get_threshold()
    gc.set_threshold(_OBJECTS_UNTIL_COLLECTION)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def crossing(error: Exception) -> FaultError:
    """Returns the error for the driver, without a foreign error's text, which may show a value."""
    if isinstance(error, CdcError | ProjectionError):
        return FaultError(error)
    return FaultError(QueryFailedError("a batch cannot be written", detail=kind_and_place(error)))
