"""The search sink: OpenSearch, one document per row, versions kept by the engine."""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import opensearchpy
import orjson
import stamina
from opensearchpy import exceptions

from projections.change import Applied
from projections.documents import DocumentForm
from projections.errors import SinkRefusedError, SinkUnavailableError
from projections.plan import DELETED_FIELD
from projections.sinks.mapping import index_body

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cdc.values import Json
    from projections.change import RowChange
    from projections.plan import ViewPlan

BULK_BYTES: Final = 4 << 20
"""Body of one bulk request; past about 5 MB the engine gains nothing."""

ATTEMPTS: Final = 6
"""Tries of a request that is told to come back later, about 6 s in all."""

ID_BYTES: Final = 512
READ_DOCUMENTS: Final = 5000
_TIMEOUT_S: Final = 30.0
_CONFLICT: Final = 409
_LATER: Final = frozenset((429, 502, 503, 504))
_FIELD: Final = re.compile(r"field \[([^\]]{1,63})\]")

logging.getLogger("opensearch").setLevel(logging.ERROR)  # it warns of each answer we handle


class SearchSink:
    """Keeps a row as a document of the index `<view>-v1`, read through the alias `<view>`.

    The engine compares versions (`version_type=external`). It forgets the version of a deleted
    document within a minute, so a delete is a document too: `{"_deleted": true}`, which the
    alias hides. A write is on disk when it is acknowledged and found within a second.

    Args:
        url: `http[s]://[user:password@]host:port`.
    """

    def __init__(self, url: str) -> None:
        self._client = opensearchpy.OpenSearch(
            hosts=[url], timeout=_TIMEOUT_S, max_retries=0, http_compress=False
        )
        self._forms: dict[str, DocumentForm] = {}

    def prepare(self, plan: ViewPlan) -> None:
        """Makes index and alias unless they are there."""
        try:
            self._request("PUT", f"/{index_name(plan)}", index_body(plan))
        except SinkRefusedError as error:
            if error.detail is None or "resource_already_exists" not in error.detail:
                raise

    def apply(self, plan: ViewPlan, changes: Sequence[RowChange]) -> Applied:
        """Writes changes in bulk; see `Sink.apply`."""
        form = self._form(plan)
        stored = self._stored(plan, [change for change in changes if change.kept])
        total = Applied()
        body: list[bytes] = []
        deletes: list[bool] = []
        size = 0
        for change in changes:
            row_id = document_id(form.name(change))
            lines = _lines(form, change, row_id, stored.get(row_id))
            body.append(lines)
            deletes.append(change.row is None)
            size += len(lines)
            if size >= BULK_BYTES:
                total += self._bulk(plan, body, deletes)
                body, deletes, size = [], [], 0
        return total + self._bulk(plan, body, deletes) if body else total

    def documents(self, plan: ViewPlan) -> Iterator[Mapping[str, object]]:
        """Reads every live row through the alias; see `Sink.documents`."""
        self._request("POST", f"/{plan.name}/_refresh")
        query = {"size": READ_DOCUMENTS, "sort": ["_doc"], "query": {"match_all": {}}}
        page = self._request("POST", f"/{plan.name}/_search?scroll=2m", query)
        try:
            while page["hits"]["hits"]:
                for hit in page["hits"]["hits"]:
                    yield hit["_source"]
                scroll = {"scroll": "2m", "scroll_id": page["_scroll_id"]}
                page = self._request("POST", "/_search/scroll", scroll)
        finally:
            self._request("DELETE", "/_search/scroll", {"scroll_id": [page["_scroll_id"]]})

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def _bulk(self, plan: ViewPlan, body: list[bytes], deletes: list[bool]) -> Applied:
        """Sends changes; those that are told to come back later are sent again."""
        waiting = list(range(len(body)))
        total = Applied(size_bytes=sum(map(len, body)))
        refused: Counter[str] = Counter()
        for attempt in stamina.retry_context(
            on=SinkUnavailableError, attempts=ATTEMPTS, timeout=None, wait_initial=0.1, wait_max=2.0
        ):
            with attempt:
                answers = self._send(plan, [body[place] for place in waiting])
                later = []
                for place, answer in zip(waiting, answers, strict=True):
                    status = answer["status"]
                    if status < 300:  # noqa: PLR2004  # the range of HTTP's successes
                        total += Applied(deleted=1) if deletes[place] else Applied(upserted=1)
                    elif status == _CONFLICT:
                        total += Applied(stale=1)
                    elif status in _LATER:
                        later.append(place)
                    else:
                        refused[_cause(answer)] += 1
                waiting = later
                if waiting:
                    raise SinkUnavailableError(
                        f"view {plan.name}: search is too busy", detail=f"{len(waiting)} documents"
                    )
        if refused:
            raise SinkRefusedError(
                f"view {plan.name}: search refuses {refused.total()} documents",
                detail="; ".join(f"{count} x {cause}" for cause, count in refused.most_common(3)),
            )
        return total

    def _send(self, plan: ViewPlan, body: list[bytes]) -> list[dict[str, Any]]:
        wanted = "items.*.status,items.*.error.type,items.*.error.reason"
        path = f"/{index_name(plan)}/_bulk?filter_path={wanted}"
        answer = self._perform("POST", path, b"".join(body), "application/x-ndjson")
        return [item["index"] for item in answer["items"]]

    def _form(self, plan: ViewPlan) -> DocumentForm:
        if plan.name not in self._forms:
            self._forms[plan.name] = DocumentForm(plan)
        return self._forms[plan.name]

    def _stored(
        self, plan: ViewPlan, changes: Sequence[RowChange]
    ) -> dict[str, tuple[int, dict[str, Json]]]:
        """Version and document that rows with unchanged values have now."""
        if not changes:
            return {}
        ids = [document_id(self._form(plan).name(change)) for change in changes]
        answer = self._request("POST", f"/{index_name(plan)}/_mget", {"ids": ids})
        return {
            found["_id"]: (found["_version"], found["_source"])
            for found in answer["docs"]
            if found.get("found")
        }

    def _request(self, method: str, path: str, body: object = None) -> Any:
        for attempt in stamina.retry_context(
            on=SinkUnavailableError, attempts=3, timeout=None, wait_initial=0.2, wait_max=1.0
        ):
            with attempt:
                data = None if body is None else orjson.dumps(body)
                return self._perform(method, path, data, "application/json")
        raise AssertionError  # the loop returns or raises

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
            if error.status_code in _LATER:
                raise SinkUnavailableError(
                    "search asks to come back later", detail=f"status {error.status_code}"
                ) from None
            raise SinkRefusedError(
                "search refuses a request", detail=f"status {error.status_code} {error.error}"
            ) from None


def index_name(plan: ViewPlan) -> str:
    """Returns the physical index of a view; readers use the alias, the view's name."""
    return f"{plan.name}-v1"


def document_id(name: str) -> str:
    """Returns the `_id` of a key's text; what the engine refuses as an id goes by its hash."""
    data = name.encode()
    if 0 < len(data) <= ID_BYTES:
        return name
    return "h:" + hashlib.blake2b(data, digest_size=32).hexdigest()


def _lines(
    form: DocumentForm,
    change: RowChange,
    row_id: str,
    stored: tuple[int, dict[str, Json]] | None,
) -> bytes:
    """The two lines of a bulk request that write a change."""
    if change.row is None:
        fields: dict[str, Json] = {DELETED_FIELD: True}
    else:
        fields = form.fields(change.row)
        if change.kept and (stored is None or stored[0] < change.version):
            base = None if stored is None or DELETED_FIELD in stored[1] else stored[1]
            fields = form.complete(change, fields, base)
    action = {"index": {"_id": row_id, "version": change.version, "version_type": "external"}}
    return orjson.dumps(action) + b"\n" + orjson.dumps(fields) + b"\n"


def _cause(answer: Mapping[str, Any]) -> str:
    """Names what an item was refused for; the engine's own text shows the value."""
    error = answer.get("error", {})
    field = _FIELD.search(error.get("reason", ""))
    return str(error.get("type", answer["status"])) + (f" in field {field[1]}" if field else "")
