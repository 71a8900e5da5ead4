"""The search engine, for reading and writing: requests, bulk requests, typed errors."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import opensearchpy
import orjson
import stamina
from opensearchpy import exceptions

from projections.errors import SinkReadOnlyError, SinkRefusedError, SinkUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LATER: Final = frozenset((429, 502, 503, 504))
"""Statuses by which the engine asks for a retry."""

NOT_FOUND: Final = 404
BLOCKED: Final = "cluster_block_exception"
READ_DOCUMENTS: Final = 5000
_FORBIDDEN: Final = 403
_TIMEOUT_S: Final = 30.0
_CONNECTIONS: Final = 4
_JSON: Final = "application/json"
_LINES: Final = "application/x-ndjson"
_READ_ONLY_HINT: Final = (
    "free disk space on the search nodes; if the block stays, set"
    " index.blocks.read_only_allow_delete (or index.blocks.write) of the index to null"
)

logging.getLogger("opensearch").setLevel(logging.ERROR)  # it warns of each response that we handle


class SearchEngine:
    """One OpenSearch cluster.

    Threads may share it.

    Args:
        url: `http[s]://[user:password@]host:port`.
    """

    def __init__(self, url: str) -> None:
        self._client = opensearchpy.OpenSearch(
            hosts=[url],
            timeout=_TIMEOUT_S,
            max_retries=0,
            http_compress=False,
            pool_maxsize=_CONNECTIONS,
        )

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Sends a request, with retries if the engine asks for them; returns the response.

        Raises:
            SinkRefusedError: The engine rejects it.
            SinkUnavailableError: The engine does not answer, or is too busy.
        """
        for attempt in stamina.retry_context(
            on=SinkUnavailableError, attempts=3, timeout=None, wait_initial=0.2, wait_max=1.0
        ):
            with attempt:
                data = None if body is None else orjson.dumps(body)
                return self._perform(method, path, data, _JSON)
        raise AssertionError  # the loop returns or raises

    def bulk(self, index: str, body: list[bytes]) -> list[dict[str, Any]]:
        """Sends the lines of a bulk request once; returns the response to each."""
        wanted = "items.*.status,items.*.error.type,items.*.error.reason"
        path = f"/{index}/_bulk?filter_path={wanted}"
        answer = self._perform("POST", path, b"".join(body), _LINES)
        return [next(iter(item.values())) for item in answer["items"]]

    def scanned(self, place: str, wanted: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
        """Yields an index or alias page by page, as of the call."""
        self.request("POST", f"/{place}/_refresh")
        query = {"size": READ_DOCUMENTS, "sort": ["_doc"], "query": {"match_all": {}}} | wanted
        page = self.request("POST", f"/{place}/_search?scroll=2m", query)
        try:
            while page["hits"]["hits"]:
                yield page["hits"]["hits"]
                scroll = {"scroll": "2m", "scroll_id": page["_scroll_id"]}
                page = self.request("POST", "/_search/scroll", scroll)
        finally:
            self.request("DELETE", "/_search/scroll", {"scroll_id": [page["_scroll_id"]]})

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def _perform(self, method: str, path: str, body: bytes | None, kind: str) -> Any:
        try:
            return self._client.transport.perform_request(
                method, path, body=body, headers={"content-type": kind}
            )
        except exceptions.ConnectionError as error:
            raise SinkUnavailableError(
                "search does not answer", detail=type(error).__name__
            ) from None
        except exceptions.TransportError as error:
            raise _typed(error) from None


class EngineRefusedError(SinkRefusedError):
    """The engine rejects a request.

    Attributes:
        status: HTTP status.
        kind: The engine's name of the error.
        reason: The engine's text, which may contain a value: only for requests about mappings, and
            for requests by users.
    """

    status: int = 0
    kind: str = ""
    reason: str = ""


def read_only(subject: str, detail: str | None = None) -> SinkReadOnlyError:
    """Returns the error for an index that is read-only."""
    return SinkReadOnlyError(f"{subject}: search is read-only", detail=detail, hint=_READ_ONLY_HINT)


def _typed(error: exceptions.TransportError) -> Exception:
    status, kind = error.status_code, str(error.error)
    if kind == BLOCKED and status in (_FORBIDDEN, 429):
        return read_only("a request", f"status {status}")
    if status in LATER:
        return SinkUnavailableError("search is too busy", detail=f"status {status} {kind}"[:80])
    refused = EngineRefusedError("search refuses a request", detail=f"status {status} {kind[:80]}")
    refused.status, refused.kind, refused.reason = int(status), kind[:80], _reason(error.info)
    return refused


def _reason(info: object) -> str:
    """Returns the innermost cause in the engine's words."""
    text = ""
    cause: object = info
    while isinstance(cause, dict):
        reason: Mapping[str, Any] | object = cause.get("error", cause)
        if isinstance(reason, dict):
            text = str(reason.get("reason", text))
            roots = reason.get("root_cause")
            cause = reason.get("caused_by") or (roots[0] if roots else None)
        else:
            cause = None
    return text
