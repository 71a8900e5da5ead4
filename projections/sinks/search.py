"""The search sink: OpenSearch, one document per row, versions kept by the engine."""

from __future__ import annotations

import hashlib
import logging
import re
from typing import TYPE_CHECKING, Any, Final

import opensearchpy
import orjson
import stamina
from opensearchpy import exceptions

from projections.change import Applied, Refused, completed_version, may_complete
from projections.documents import DocumentForm
from projections.errors import (
    NoStoredRowError,
    SinkRefusedError,
    SinkUnavailableError,
    UnholdableValueError,
)
from projections.plan import DELETED_FIELD
from projections.sinks.mapping import index_body
from projections.sinks.remap import remap

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
_BAD_DOCUMENT: Final = 400
_LATER: Final = frozenset((429, 502, 503, 504))
_FLOOR: Final = "headwater_floor"
_FIELD: Final = re.compile(r"field \[([^\]]{1,63})\]")

logging.getLogger("opensearch").setLevel(logging.ERROR)  # it warns of each answer we handle


class SearchSink:
    """Keeps a row as a document of the index `<view>-v1`, read through the alias `<view>`.

    The engine compares versions (`version_type=external`). It forgets the version of a deleted
    document within a minute, so a delete is a document too: `{"_deleted": true}`, which the
    alias hides. What `sweep` was given last is in the mapping's `_meta`; it takes the place of
    older such memories. A write is on disk when it is acknowledged and found within a second.

    Args:
        url: `http[s]://[user:password@]host:port`.
    """

    def __init__(self, url: str) -> None:
        self._client = opensearchpy.OpenSearch(
            hosts=[url], timeout=_TIMEOUT_S, max_retries=0, http_compress=False
        )
        self._forms: dict[str, DocumentForm] = {}

    def prepare(self, plan: ViewPlan) -> None:
        """Makes index and alias unless they are there; gives the index the view's fields."""
        try:
            self.request("PUT", f"/{index_name(plan)}", index_body(plan))
        except SinkRefusedError as error:
            if error.detail is None or "resource_already_exists" not in error.detail:
                raise
        remap(self, plan, index_name(plan))

    def apply(self, plan: ViewPlan, changes: Sequence[RowChange]) -> Applied:
        """Writes changes in bulk; see `Sink.apply`."""
        form = self._form(plan)
        floor = self._floor(plan)
        kept = [change for change in changes if change.kept]
        stored = self._stored(plan, [key for c in kept for key in (c.key, c.base or c.key)])
        total = Applied()
        waiting: list[tuple[RowChange, bytes]] = []
        size = 0
        for change in changes:
            if change.version < floor:
                total += Applied(stale=1)
                continue
            try:
                lines = _lines(form, change, stored)
            except (UnholdableValueError, NoStoredRowError) as error:
                total += Applied(refused=(Refused(change, error),))
                continue
            waiting.append((change, lines))
            size += len(lines)
            if size >= BULK_BYTES:
                total += self._bulk(plan, waiting)
                waiting, size = [], 0
        if waiting:
            total += self._bulk(plan, waiting)
        self._sweep_own(plan, changes, floor)
        return total

    def documents(self, plan: ViewPlan) -> Iterator[Mapping[str, object]]:
        """Reads every live row through the alias; see `Sink.documents`."""
        for page in self.scanned(plan.name, {}):
            for hit in page:
                yield hit["_source"]

    def versions(self, plan: ViewPlan, changes: Sequence[RowChange]) -> list[int]:
        """Looks the documents up; see `Sink.versions`."""
        floor = max(0, self._floor(plan) - 1)
        stored = self._stored(plan, [change.key for change in changes])
        form = self._form(plan)
        ids = [document_id(form.name(change)) for change in changes]
        return [max(floor, stored[place][0] if place in stored else 0) for place in ids]

    def sweep(self, plan: ViewPlan, below_version: int) -> int:
        """Notes the version in the index's mapping, then deletes documents; see `Sink.sweep`."""
        if self._floor(plan) < below_version:
            mapping = {"_meta": {_FLOOR: str(below_version)}}
            self.request("PUT", f"/{index_name(plan)}/_mapping", mapping)
        removed = 0
        wanted = {"version": True, "_source": [DELETED_FIELD]}
        for page in self.scanned(index_name(plan), wanted):
            old = [hit for hit in page if hit["_version"] < below_version]
            self._remove(plan, [hit["_id"] for hit in old], below_version)
            removed += sum(DELETED_FIELD not in hit["_source"] for hit in old)
        return removed

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def _bulk(self, plan: ViewPlan, waiting: Sequence[tuple[RowChange, bytes]]) -> Applied:
        """Sends changes; those that are told to come back later are sent again."""
        total = Applied(size_bytes=sum(len(lines) for _, lines in waiting))
        for attempt in stamina.retry_context(
            on=SinkUnavailableError, attempts=ATTEMPTS, timeout=None, wait_initial=0.1, wait_max=2.0
        ):
            with attempt:
                answers = self.bulk(index_name(plan), [lines for _, lines in waiting])
                later = []
                for (change, lines), answer in zip(waiting, answers, strict=True):
                    if answer["status"] in _LATER:
                        later.append((change, lines))
                    else:
                        total += _outcome(plan, change, answer)
                waiting = later
                if waiting:
                    raise SinkUnavailableError(
                        f"view {plan.name}: search is too busy", detail=f"{len(waiting)} documents"
                    )
        return total

    def _sweep_own(self, plan: ViewPlan, changes: Sequence[RowChange], floor: int) -> None:
        """Removes what was written while another instance swept: it has not seen that."""
        now = self._floor(plan)
        if now > floor:
            name_of = self._form(plan).name_of
            late = [document_id(name_of(c.key)) for c in changes if floor <= c.version < now]
            self._remove(plan, late, now)

    def _remove(self, plan: ViewPlan, ids: Sequence[str], below_version: int) -> None:
        """Deletes documents that are older; one that became newer meanwhile stays."""
        version = {"version": below_version - 1, "version_type": "external_gte"}
        body = [orjson.dumps({"delete": {"_id": each, **version}}) + b"\n" for each in ids]
        for start in range(0, len(body), READ_DOCUMENTS):
            answers = self.bulk(index_name(plan), body[start : start + READ_DOCUMENTS])
            failed = {a["status"] for a in answers} - {200, 404, _CONFLICT}
            if failed:
                raise SinkUnavailableError(
                    f"view {plan.name}: search does not remove old documents",
                    detail=f"status {min(failed)}",
                )

    def bulk(self, index: str, body: list[bytes]) -> list[dict[str, Any]]:
        """Sends the lines of a bulk request; returns the answer to each."""
        wanted = "items.*.status,items.*.error.type,items.*.error.reason"
        path = f"/{index}/_bulk?filter_path={wanted}"
        answer = self._perform("POST", path, b"".join(body), "application/x-ndjson")
        return [next(iter(item.values())) for item in answer["items"]]

    def scanned(self, place: str, wanted: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
        """Reads an index or alias page by page, as it is now."""
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

    def _floor(self, plan: ViewPlan) -> int:
        """Version below which the view takes no change any more."""
        path = f"/{index_name(plan)}/_mapping?filter_path=*.mappings._meta"
        for index in (self.request("GET", path) or {}).values():
            return int(index["mappings"]["_meta"].get(_FLOOR, "0"))
        return 0

    def _form(self, plan: ViewPlan) -> DocumentForm:
        form = self._forms.get(plan.name)
        if form is None or form.plan != plan:
            form = self._forms[plan.name] = DocumentForm(plan)
        return form

    def _stored(
        self, plan: ViewPlan, keys: Sequence[tuple[object, ...]]
    ) -> dict[str, tuple[int, dict[str, Json]]]:
        """Version and document that keys have now, by document id."""
        if not keys:
            return {}
        ids = list({document_id(self._form(plan).name_of(key)) for key in keys})
        answer = self.request("POST", f"/{index_name(plan)}/_mget", {"ids": ids})
        return {
            found["_id"]: (found["_version"], found["_source"])
            for found in answer["docs"]
            if found.get("found")
        }

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Sends a request, again if the engine asks for that; returns its answer."""
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
    form: DocumentForm, change: RowChange, stored: Mapping[str, tuple[int, dict[str, Json]]]
) -> bytes:
    """The two lines of a bulk request that write a change."""
    row_id, own_version = document_id(form.name(change)), change.version
    if change.row is None:
        fields: dict[str, Json] = {DELETED_FIELD: True}
    else:
        fields = form.fields(change.row)
        if change.kept and stored.get(row_id, (0, {}))[0] < change.version:
            base = document_id(form.name_of(change.base or change.key))
            version, row = stored.get(base, (0, {DELETED_FIELD: True}))
            if DELETED_FIELD in row or not may_complete(change, version, form.plan.kept_since):
                raise form.missing_values(change)
            fields |= {name: row[name] for name in change.kept}
            own_version = completed_version(change, version)
    action = {"index": {"_id": row_id, "version": own_version, "version_type": "external"}}
    return orjson.dumps(action) + b"\n" + orjson.dumps(fields) + b"\n"


def _outcome(plan: ViewPlan, change: RowChange, answer: Mapping[str, Any]) -> Applied:
    """Reads the answer to one change; what is not the document's fault is raised."""
    status = answer["status"]
    if status < 300:  # noqa: PLR2004  # the range of HTTP's successes
        return Applied(deleted=1) if change.row is None else Applied(upserted=1)
    if status == _CONFLICT:
        return Applied(stale=1)
    error = SinkRefusedError(
        f"view {plan.name}: search refuses a document",
        detail=_cause(answer),
        hint="correct the row at the source, then headwater quarantine retry",
    )
    if status != _BAD_DOCUMENT:
        raise error
    return Applied(refused=(Refused(change, error),))


def _cause(answer: Mapping[str, Any]) -> str:
    """Names what an item was refused for; the engine's own text shows the value."""
    error = answer.get("error", {})
    field = _FIELD.search(error.get("reason", ""))
    return str(error.get("type", answer["status"])) + (f" in field {field[1]}" if field else "")
