"""Checks: requests to the running job to verify derived views, and its answers.

Computing the expected table of a derived view takes Spark, and the job has a warm session. A caller
writes a request for each view, as a file beside the checkpoints; the job answers with another file
and removes the request. If the job has ended, the caller cancels its request and compares the view
in its own session; if the caller has ended, the request is answered, and removed when it is old.
"""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cdc.lsn import Lsn
from foundation.atomic_file import write_atomically
from foundation.waiting import looks
from projections.common.file_lock import WriterLock
from projections.definition.views import Store
from projections.errors import WriterLockedError
from projections.verification.report import ViewReport  # noqa: TC001  # read when it is decoded

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable
    from pathlib import Path

    from projections.definition.views import DerivedView
    from projections.planning.job_config import JobConfig

DEADLINE_S: Final = 1800.0
"""Longest wait for the answers: a larger view is better compared outside the job."""

_LEFT_BEHIND_S: Final = 2 * DEADLINE_S
_POLL_S: Final = 0.2
_FOLDER: Final = ".checks"
_REQUEST: Final = ".request"
_ANSWER: Final = ".answer"
_LOCK: Final = ".job.lock"


class CheckRequest(msgspec.Struct, frozen=True):
    """A request to verify one view.

    Attributes:
        id: Unique id; later requests sort after earlier ones.
        view: Name of the view, or of a version of it.
        fingerprint: Fingerprint of the caller's definition.
    """

    id: str
    view: str
    fingerprint: str


class CheckAnswer(msgspec.Struct, frozen=True):
    """The result of a check.

    Attributes:
        compared: Whether the job could compare the view; if not, the caller finds out why by
            comparing it itself.
        report: The comparison; None if the view is not published.
    """

    compared: bool
    report: ViewReport | None = None


class Checks:
    """The requests to one job, and its answers."""

    def __init__(self, config: JobConfig) -> None:
        self._folder = config.checkpoint(Store.TABLE).parent / _FOLDER

    def serving(self) -> WriterLock:
        """Returns the lock that the job holds while it answers requests."""
        return WriterLock(self._folder / _LOCK, wait=False)

    def served(self) -> bool:
        """Returns whether a job answers requests now."""
        if not self._folder.is_dir():
            return False
        try:
            with self.serving():
                return False
        except WriterLockedError:
            return True

    def ask(self, view: DerivedView) -> CheckRequest:
        """Requests a check of a view's table."""
        made = CheckRequest(
            f"{time.time_ns():020d}-{secrets.token_hex(4)}", view.name, view.fingerprint
        )
        self._write(made.id + _REQUEST, made)
        return made

    def asked(self) -> list[CheckRequest]:
        """Returns the open requests, the oldest first."""
        paths = sorted(self._folder.glob("*" + _REQUEST)) if self._folder.is_dir() else []
        return [request for path in paths if (request := _read(path, _REQUESTS)) is not None]

    def answer(self, check: CheckRequest, answer: CheckAnswer) -> None:
        """Answers a request and removes it, unless it was cancelled."""
        if (self._folder / (check.id + _REQUEST)).exists():
            self._write(check.id + _ANSWER, answer)
            (self._folder / (check.id + _REQUEST)).unlink(missing_ok=True)

    def answered(self, check: CheckRequest) -> CheckAnswer | None:
        """Returns the answer to a request; None if there is none yet."""
        answer: CheckAnswer | None = _read(self._folder / (check.id + _ANSWER), _ANSWERS)
        return answer

    def withdraw(self, check: CheckRequest) -> None:
        """Removes a request and its answer."""
        for end in (_REQUEST, _ANSWER):  # the request first, so that no answer is begun
            (self._folder / (check.id + end)).unlink(missing_ok=True)

    def clear(self) -> None:
        """Removes the files of killed callers, including drafts."""
        for path in self._folder.iterdir():
            with suppress(FileNotFoundError):  # its caller has just cancelled it
                age_s = time.time() - path.stat().st_mtime
                if path.name != _LOCK and age_s > _LEFT_BEHIND_S:
                    path.unlink()

    def _write(self, name: str, message: CheckRequest | CheckAnswer) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        encoded = msgspec.json.encode(message, enc_hook=str)
        write_atomically(self._folder / name, encoded, durable=False)


def verified_by_job(
    config: JobConfig,
    views: Iterable[DerivedView],
    *,
    within_s: float = DEADLINE_S,
    stop: threading.Event | None = None,
) -> dict[str, CheckAnswer]:
    """Has the running job verify derived views.

    Args:
        config: The job's configuration.
        views: The views as the caller knows them.
        within_s: Longest wait for all answers, seconds.
        stop: Ends the wait.

    Returns:
        The answers by view. A view is missing if no job runs, if the job has ended meanwhile, has
        another definition of the view, or could not compare it.
    """
    checks = Checks(config)
    if not checks.served():
        return {}
    pause = time.sleep if stop is None else stop.wait
    asked = [checks.ask(view) for view in views]
    answers: dict[str, CheckAnswer] = {}
    try:
        for _ in looks(within_s, _POLL_S, pause=pause):
            for check in asked:
                answer = None if check.view in answers else checks.answered(check)
                if answer is not None:
                    answers[check.view] = answer
            ended = stop is not None and stop.is_set()
            if len(answers) == len(asked) or ended or not checks.served():
                break
    finally:
        for check in asked:
            checks.withdraw(check)
    return {view: answer for view, answer in answers.items() if answer.compared}


def _read(path: Path, decoder: msgspec.json.Decoder[Any]) -> Any:
    try:
        return decoder.decode(path.read_bytes())
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _decoded(form: type[Any], value: Any) -> Any:
    return Lsn.parse(value) if form is Lsn else value


_REQUESTS: Final = msgspec.json.Decoder(CheckRequest, dec_hook=_decoded)
_ANSWERS: Final = msgspec.json.Decoder(CheckAnswer, dec_hook=_decoded)
