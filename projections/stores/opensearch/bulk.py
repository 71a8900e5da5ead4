"""Bulk writes to a search engine: bounded bodies, two in flight, smaller under back-pressure."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from projections.errors import SinkReadOnlyError, SinkUnavailableError
from projections.stores.opensearch.client import BLOCKED, LATER, EngineRefusedError, read_only

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from projections.stores.opensearch.client import SearchEngine

BULK_BYTES: Final = 1 << 20
"""Size of a bulk request: larger ones are no faster. Two are in flight while one is built."""

BULK_BYTES_LEAST: Final = 64 << 10
DOCUMENT_BYTES: Final = 96 << 20
"""Largest document sent: the engine closes the connection on a request of more than 100 MB."""

PATIENCE_S: Final = 30.0
"""How long the engine may reject everything as too busy before the batch fails."""

TOO_LARGE: Final = 413
_IN_FLIGHT: Final = 2
_WAIT_S: Final = 0.1
_WAIT_MOST_S: Final = 2.0
_BREAKER: Final = "circuit_breaking_exception"

T = TypeVar("T")
Lines = tuple[T, bytes]
Answer = dict[str, Any]


class BulkSender(Generic[T]):
    """Sends documents in bulk and returns the engine's response to each.

    If the engine rejects documents because it is too busy (429, `es_rejected`), bodies are halved
    and sent again after a pause; accepted documents make them grow again.

    Args:
        engine: The engine.
        patience_s: Longest time without any accepted document, seconds.
    """

    def __init__(self, engine: SearchEngine, patience_s: float = PATIENCE_S) -> None:
        self._engine = engine
        self._patience_s = patience_s
        self._bytes_max = BULK_BYTES
        self._pool = ThreadPoolExecutor(_IN_FLIGHT, thread_name_prefix="search-bulk")

    @property
    def bytes_max(self) -> int:
        """Returns the present size of a body."""
        return self._bytes_max

    def send(self, index: str, documents: Iterable[Lines[T]]) -> Iterator[tuple[T, Answer]]:
        """Sends documents with distinct ids, in no particular order.

        Args:
            index: The index.
            documents: Documents, each with the object that it represents; read as they are sent.

        Yields:
            The object of each document, and the response to it.

        Raises:
            SinkUnavailableError: The engine does not answer, or accepts nothing for too long.
            SinkReadOnlyError: The index is read-only.
            SinkRefusedError: The engine refuses the request as a whole.
        """
        under_way: deque[Future[list[tuple[T, Answer]]]] = deque()
        try:
            for body in self._bodies(documents):
                under_way.append(self._pool.submit(self._sent, index, body))
                while len(under_way) >= _IN_FLIGHT:
                    yield from under_way.popleft().result()
            while under_way:
                yield from under_way.popleft().result()
        finally:
            for unfinished in under_way:  # no request is in flight after this block
                unfinished.exception()

    def close(self) -> None:
        """Stops its threads."""
        self._pool.shutdown()

    def _bodies(self, documents: Iterable[Lines[T]]) -> Iterator[list[Lines[T]]]:
        body: list[Lines[T]] = []
        size = 0
        for document in documents:
            if body and size + len(document[1]) > self._bytes_max:
                yield body
                body, size = [], 0
            body.append(document)
            size += len(document[1])
        if body:
            yield body

    def _sent(self, index: str, waiting: Sequence[Lines[T]]) -> list[tuple[T, Answer]]:
        answered: list[tuple[T, Answer]] = []
        unsent, wait_s = deque(waiting), _WAIT_S
        give_up_at = time.monotonic() + self._patience_s
        while unsent:
            part = self._part(unsent)
            error: SinkUnavailableError | None
            try:
                answers = self._answers(index, part)
                self._check_open(index, answers)
                error = None
            except SinkUnavailableError as refused:
                if isinstance(refused, SinkReadOnlyError):
                    raise
                answers, error = [{"status": 503}] * len(part), refused
            later = []
            for document, answer in zip(part, answers, strict=True):
                if answer["status"] in LATER:
                    later.append(document)
                else:
                    answered.append((document[0], answer))
            unsent.extend(later)
            if len(later) < len(part):
                give_up_at, wait_s = time.monotonic() + self._patience_s, _WAIT_S
            if not later:
                self._bytes_max = min(BULK_BYTES, self._bytes_max * 2)
                continue
            self._bytes_max = max(BULK_BYTES_LEAST, self._bytes_max // 2)
            if time.monotonic() + wait_s > give_up_at:
                raise error or SinkUnavailableError(
                    "search is too busy", detail=f"{len(unsent)} documents"
                )
            time.sleep(wait_s)
            wait_s = min(wait_s * 2, _WAIT_MOST_S)
        return answered

    def _part(self, unsent: deque[Lines[T]]) -> list[Lines[T]]:
        part = [unsent.popleft()]
        size = len(part[0][1])
        while unsent and size + len(unsent[0][1]) <= self._bytes_max:
            size += len(unsent[0][1])
            part.append(unsent.popleft())
        return part

    def _answers(self, index: str, part: Sequence[Lines[T]]) -> list[Answer]:
        if len(part) == 1 and len(part[0][1]) > DOCUMENT_BYTES:
            return [_too_large("document_too_large")]
        try:
            answers = self._engine.bulk(index, [lines for _, lines in part])
        except EngineRefusedError as error:
            if error.status != TOO_LARGE:
                raise
            if len(part) > 1:  # the engine's limit is lower than ours
                return [{"status": 503}] * len(part)
            return [_too_large(error.kind)]
        except SinkUnavailableError as error:
            # a document that exceeds the engine's memory even alone would never succeed
            alone = len(part) == 1 and len(part[0][1]) > BULK_BYTES
            if alone and _BREAKER in (error.detail or ""):
                return [_too_large(_BREAKER)]
            raise
        return answers

    def _check_open(self, index: str, answers: Iterable[Answer]) -> None:
        for answer in answers:
            error = answer.get("error")
            if error and error.get("type") == BLOCKED:
                raise read_only(f"index {index}", f"status {answer['status']}")


def _too_large(kind: str) -> Answer:
    return {"status": TOO_LARGE, "error": {"type": kind, "reason": ""}}
