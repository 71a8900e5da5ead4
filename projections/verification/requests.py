"""Renewals: requests to recompute derived views completely.

Maintenance does not read unchanged rows: a damaged row in the table of a derived view, or in a
store's copy, stays damaged until an input of it changes. A caller that detects that requests a
renewal, and the job, the only writer there, recomputes the whole view at its next boundary and
writes all rows to the stores. A request is a file beside the checkpoints, one for each view. A
store is removed from the request only after it is written, so a killed job repeats it, and a view
that is requested twice is computed at most twice.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Final

import msgspec
import orjson
from msgspec import structs

from foundation.atomic_file import write_atomically
from projections.common.file_lock import WriterLock
from projections.definition.views import Store

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from projections.planning.job_config import JobConfig

_RUNS: Final = ("starting", "ready")
_SILENCE_S: Final = 60.0
"""How long a running job may not report: it may be binding its views again."""


def job_runs(config: JobConfig) -> bool:
    """Returns whether a running job reports that it maintains the views."""
    try:
        status = orjson.loads(config.status_file.read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        return False
    return status["state"] in _RUNS and time.time() - status["at"] < _SILENCE_S


_RENEWALS: Final = ".renewals"
_LOCK: Final = ".lock"


class Renewal(msgspec.Struct, frozen=True):
    """A view to recompute.

    Attributes:
        id: Distinguishes this request from later ones.
        view: The view.
        waiting: Stores in which it is not done yet. Search and cache follow the table.
        since: Boundary from which on the table is correct, as a row version; 0 if the table was not
            requested.
    """

    id: str
    view: str
    waiting: tuple[Store, ...]
    since: int = 0


_RENEWAL_FILES: Final = msgspec.json.Decoder(Renewal)


class Renewals:
    """The requests to one job."""

    def __init__(self, config: JobConfig) -> None:
        self._folder = config.checkpoint(Store.TABLE).parent / _RENEWALS

    def ask(self, view: str, stores: Iterable[Store]) -> Renewal:
        """Requests a view; replaces an earlier request.

        Args:
            view: The view.
            stores: Stores in which it is wrong.
        """
        with self._writer_lock():
            before = self.of_view(view)
            waiting = {*stores, *(before.waiting if before is not None else ())}
            made = Renewal(secrets.token_hex(8), view, tuple(sorted(waiting)))
            self._write(made)
        return made

    def of_view(self, view: str) -> Renewal | None:
        """Returns the request for a view; None if there is none."""
        try:
            return _RENEWAL_FILES.decode(self._path(view).read_bytes())
        except (
            FileNotFoundError,
            msgspec.DecodeError,
        ):
            return None  # at worst damaged by a power cut: then no caller waits for it any more

    def due(self, view: str, store: Store, number: int) -> Renewal | None:
        """Returns the request for a view if it is due in a store.

        Args:
            view: The view.
            store: The store.
            number: Boundary to compute or deliver, as a row version.
        """
        renewal = self.of_view(view)
        if renewal is None or store not in renewal.waiting:
            return None
        if store is not Store.TABLE and (Store.TABLE in renewal.waiting or number < renewal.since):
            return None
        return renewal

    def done(self, renewal: Renewal, store: Store, number: int) -> None:
        """Removes a store from the request, unless the view was requested again meanwhile.

        Args:
            renewal: The result of `due`.
            store: Store in which it is done.
            number: Boundary that was computed or delivered there.
        """
        with self._writer_lock():
            current = self.of_view(renewal.view)
            if current is None or current.id != renewal.id:
                return
            waiting = tuple(each for each in current.waiting if each is not store)
            if not waiting:
                self._path(current.view).unlink()
                return
            since = number if store is Store.TABLE else current.since
            self._write(structs.replace(current, waiting=waiting, since=since))

    def _writer_lock(self) -> WriterLock:
        return WriterLock(self._folder / _LOCK, wait=True)

    def _path(self, view: str) -> Path:
        return self._folder / f"{view}.json"

    def _write(self, renewal: Renewal) -> None:
        write_atomically(self._path(renewal.view), msgspec.json.encode(renewal))
