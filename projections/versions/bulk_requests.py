"""Requests of commands to the job's Spark, as files beside the checkpoints.

A command that fills a version asks for one piece of work at a time: to find the newest record of
each key, to write a part of these, or to fill a view from all its records. One that verifies a view
asks for a comparison of its table with the source. The job does it and answers with files. If
either process is killed, the piece is repeated with the same result; see
`projections.archive.rebuilding`.

A request counts while its file exists and the command that made it holds the lock of the version.
The job checks that before it writes anything, with the table locked. Once a command has cancelled
its request and then held the table's lock, no write of that request can follow.
"""

from __future__ import annotations

import pickle
import secrets
import shutil
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from foundation.atomic_file import write_atomically
from projections.archive.bulk import BulkFold
from projections.common.file_lock import WriterLock
from projections.definition.views import Store
from projections.errors import BulkLostError, ReplayError, WriterLockedError

if TYPE_CHECKING:
    from pathlib import Path

    from projections.archive.bulk import BulkPart, BulkTopics
    from projections.archive.scan import ArchiveScan
    from projections.planning.job_config import JobConfig
    from projections.planning.view_plan import ViewPlan
    from projections.versions.version_pair import VersionPair

ATTEMPTS_MAX: Final = 2
"""Maximum attempts at unfinished work, since the work itself may crash the job."""

FORM: Final = 5
"""Format of requests; a job refuses requests in another format, which another release may send."""

TASKS_MIN: Final = 3
"""Tasks of the job from which on they compare large tables faster than one process: together they
take a quarter more processor time, and the source works beside one process, too."""

KEYS_FILE: Final = "keys.json"
"""File of the texts of keys that differ, in the folder of a comparison's request."""

_FOLDER: Final = ".rebuilds"
_JOB: Final = "job"
_REQUESTS: Final = "*.request"


@dataclass(frozen=True, slots=True)
class BulkFill:
    """A part to write."""

    scan: ArchiveScan
    plan: ViewPlan
    part: BulkPart


@dataclass(frozen=True, slots=True)
class BulkTopicsFill:
    """A view to fill from all records of its topics."""

    scan: ArchiveScan
    plan: ViewPlan
    topics: BulkTopics


@dataclass(frozen=True, slots=True)
class BulkComparison:
    """A mirror's table to compare with its source.

    Attributes:
        plan: The view.
        rows_expected: Approximate number of its rows.
    """

    plan: ViewPlan
    rows_expected: int


@dataclass(frozen=True, slots=True)
class BulkVersions:
    """The tables of two versions of a view to compare.

    Attributes:
        pair: The versions.
        table_versions: The versions of their tables.
        keys: Columns that identify a row; empty to compare whole rows.
        columns: The other columns to compare.
        rows_expected: Approximate number of rows of both.
    """

    pair: VersionPair
    table_versions: tuple[int, int]
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    rows_expected: int


BulkWork = BulkFold | BulkFill | BulkTopicsFill | BulkComparison | BulkVersions


@dataclass(frozen=True, slots=True)
class BulkRequest:
    """One piece of work."""

    id: str
    work: BulkWork
    form: int = FORM


class BulkProgress(msgspec.Struct, frozen=True):
    """The progress of a request.

    Attributes:
        id: The request.
        attempts: Number of attempts.
        rows: Number of its finished rows.
    """

    id: str
    attempts: int = 0
    rows: int = 0


class BulkAnswer(msgspec.Struct, frozen=True):
    """The result of a request.

    Attributes:
        id: The request.
        fault: Why it failed; None if it succeeded.
        fault_code: Code of the error, if it has one.
        files: Names of the files of a fold or of a comparison, in the folder of the request.
        upserted: Rows that were written.
        deleted: Deletes that were recorded.
        left: Row numbers of the records not written, as 64-bit integers of this machine.
        filtered: Records that say nothing to a view that is filled from all of them.
        compared: Rows of the source that a comparison has read and the view should have.
        withheld: Rows that it has read and the view excludes.
        differing: Approximate number of keys at which two versions differ.
        excluded: Number of rows that only one of two versions has by definition, by reason.
    """

    id: str
    fault: str | None = None
    fault_code: str | None = None
    files: tuple[str, ...] = ()
    upserted: int = 0
    deleted: int = 0
    left: bytes = b""
    filtered: int = 0
    compared: int = 0
    withheld: int = 0
    differing: int = 0
    excluded: dict[str, int] = {}


class BulkServer(msgspec.Struct, frozen=True):
    """A job that accepts requests.

    Attributes:
        slots: Number of tasks that its Spark runs in parallel.
        form: Form of the requests that it reads; see `FORM`.
        tasks: Number of tasks of bulk work that it runs in parallel.
    """

    slots: int
    form: int = 0
    tasks: int = 0


_KEYS: Final = msgspec.json.Decoder(list[str])
_PROGRESS: Final = msgspec.json.Decoder(BulkProgress)
_ANSWERS: Final = msgspec.json.Decoder(BulkAnswer)
_SERVERS: Final = msgspec.json.Decoder(BulkServer)


class BulkRequests:
    """The requests to one job, and their answers."""

    def __init__(self, config: JobConfig) -> None:
        self._root = config.checkpoint(Store.TABLE).parent / _FOLDER

    def asking(self, physical_name: str) -> WriterLock:
        """Returns the lock that a command holds while it fills a version."""
        return WriterLock(self._root / f"{physical_name}.lock", wait=False)

    def serving(self) -> WriterLock:
        """Returns the lock that the job holds while it accepts requests."""
        return WriterLock(self._root / f".{_JOB}.lock", wait=False)

    def serve(self, server: BulkServer) -> None:
        """Publishes the capabilities of the job that holds the lock."""
        self._write(self._root / f".{_JOB}.json", msgspec.json.encode(server))

    def server(self) -> BulkServer | None:
        """Returns the job that accepts requests of this release; None if there is none."""
        if not self._root.is_dir() or not _held(self.serving()):
            return None
        server: BulkServer | None = self._read(self._root / f".{_JOB}.json", _SERVERS)
        return server if server is not None and server.form == FORM else None

    def comparing(self) -> bool:
        """Returns whether the job compares large tables faster than this process."""
        server = self.server()
        return server is not None and server.tasks >= TASKS_MIN

    def ask(self, physical_name: str, work: BulkWork) -> str:
        """Makes a request; cancels the version's earlier one.

        Returns:
            The request's number.

        Raises:
            BulkLostError: The view's classes cannot be sent to another process.
        """
        self.withdraw(physical_name)
        made = BulkRequest(secrets.token_hex(8), work)
        try:
            pickled = pickle.dumps(made)
        except (pickle.PicklingError, AttributeError, TypeError):
            raise BulkLostError(
                "the job's Spark cannot do it",
                detail="a class of its events cannot be imported in another process",
                hint="declare events in a module beside the one with the views",
            ) from None
        self._write(self._request(physical_name, made.id), pickled)
        return made.id

    def withdraw(self, physical_name: str) -> None:
        """Cancels a version's request, and removes its answer."""
        for path in self._folder(physical_name).glob(_REQUESTS):
            path.unlink(missing_ok=True)  # first: from here on the request does not count
        shutil.rmtree(self._folder(physical_name), ignore_errors=True)

    def forget(self, physical_name: str) -> None:
        """Removes all files of a dropped version."""
        for place in (physical_name, compared_place(physical_name)):
            self.withdraw(place)
            (self._root / f"{place}.lock").unlink(missing_ok=True)

    def open(self) -> list[tuple[str, str]]:
        """Returns the open requests: version and request number."""
        paths = sorted(self._root.glob(f"*/{_REQUESTS}")) if self._root.is_dir() else []
        return [(path.parent.name, path.name.partition(".")[0]) for path in paths]

    def read(self, physical_name: str, id_: str) -> BulkRequest:
        """Returns a request.

        Raises:
            Exception: It was cancelled, written by another release, or damaged.
        """
        # a process that can write this folder can write the checkpoints and stored functions, too
        request: BulkRequest = pickle.loads(self._request(physical_name, id_).read_bytes())  # noqa: S301
        if getattr(request, "form", 0) != FORM:
            raise ReplayError("the command is of another release than the job")
        return request

    def there(self, physical_name: str, id_: str) -> bool:
        """Returns whether a request is neither cancelled nor closed."""
        return self._request(physical_name, id_).exists()

    def counts(self, physical_name: str, id_: str) -> bool:
        """Returns whether a request still counts: its file exists, and its command runs."""
        return self.there(physical_name, id_) and self.asked(physical_name)

    def close(self, physical_name: str, id_: str) -> None:
        """Removes a request that was answered, or no longer counts."""
        self._request(physical_name, id_).unlink(missing_ok=True)

    def clear(self) -> None:
        """Removes the requests of killed commands."""
        for folder in self._root.iterdir() if self._root.is_dir() else ():
            if folder.is_dir():
                with suppress(WriterLockedError), self.asking(folder.name):
                    self.withdraw(folder.name)  # under the lock: no command asks meanwhile

    def asked(self, physical_name: str) -> bool:
        """Returns whether a command that fills a version is running."""
        return _held(self.asking(physical_name))

    def folder(self, physical_name: str, id_: str) -> Path:
        """Returns the folder of a fold's files."""
        return self._folder(physical_name) / id_

    def keys(self, physical_name: str, id_: str) -> list[str]:
        """Returns the texts of the keys that a comparison has found to differ."""
        keys = (self.folder(physical_name, id_) / KEYS_FILE).read_bytes()
        return _KEYS.decode(keys)

    def progress(self, physical_name: str, id_: str) -> BulkProgress:
        """Returns the progress of a request."""
        progress = self._read(self._folder(physical_name) / "progress", _PROGRESS)
        return BulkProgress(id_) if progress is None or progress.id != id_ else progress

    def note(self, physical_name: str, progress: BulkProgress) -> None:
        """Records the progress of a request."""
        self._write(
            self._folder(physical_name) / "progress", msgspec.json.encode(progress), new=False
        )

    def answer(self, physical_name: str, answer: BulkAnswer) -> None:
        """Answers a request, unless it was cancelled and its folder removed."""
        self._write(self._folder(physical_name) / "answer", msgspec.json.encode(answer), new=False)

    def answered(self, physical_name: str, id_: str) -> BulkAnswer | None:
        """Returns the answer to a request; None if there is none yet."""
        answer = self._read(self._folder(physical_name) / "answer", _ANSWERS)
        return answer if answer is not None and answer.id == id_ else None

    def _request(self, physical_name: str, id_: str) -> Path:
        return self._folder(physical_name) / f"{id_}.request"

    def _folder(self, physical_name: str) -> Path:
        return self._root / physical_name

    @staticmethod
    def _read(path: Path, decoder: msgspec.json.Decoder[Any]) -> Any:
        try:
            return decoder.decode(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
            return None

    @staticmethod
    def _write(path: Path, data: bytes, *, new: bool = True) -> None:
        """Writes a file atomically; without `new`, only if its folder still exists."""
        if new:
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_atomically(path, data, durable=False)
        except FileNotFoundError:
            if new:
                raise


def compared_place(physical_name: str) -> str:
    """Returns the name under which comparisons of a version are requested.

    It is another one than that of the version, so that a verification delays no rebuild of it.
    """
    return f"{physical_name}.compared"


def _held(lock: WriterLock) -> bool:
    try:
        with lock:
            return False
    except WriterLockedError:
        return True
