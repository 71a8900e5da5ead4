"""The search sink: OpenSearch, one document per row, versions kept by the engine."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from projections.changes.documents import DocumentForm
from projections.changes.row_batch import parts
from projections.changes.row_change import Applied, Refused, completed_version, may_complete
from projections.changes.sink import StoredKey
from projections.definition.columns import DELETED_FIELD
from projections.errors import (
    IndexLostError,
    IndexRefusedError,
    NoStoredRowError,
    SinkRefusedError,
    SinkUnavailableError,
    UnholdableValueError,
)
from projections.stores.opensearch.bulk import PATIENCE_S, TOO_LARGE, BulkSender
from projections.stores.opensearch.client import (
    NOT_FOUND,
    READ_DOCUMENTS,
    EngineRefusedError,
    SearchEngine,
)
from projections.stores.opensearch.lookup import NO_ROW, StoredDocuments
from projections.stores.opensearch.mapping import LIVE, index_body
from projections.stores.opensearch.reindex import remap, spare_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from projections.changes.row_batch import RowPart
    from projections.changes.row_change import ReadSpan, RowChange
    from projections.errors import SinkError
    from projections.planning.view_plan import ViewPlan
    from projections.stores.opensearch.lookup import Stored

ID_BYTES: Final = 512
_CONFLICT: Final = 409
_BAD_DOCUMENT: Final = 400
_FLOOR: Final = "headwater_floor"
_MARK: Final = "headwater_index"
_FIELD: Final = re.compile(r"field(?: \[|=\")([^\]\"]{1,63})[\]\"]")
_STATE: Final = "filter_path=*.mappings._meta,*.settings.index.uuid,*.settings.index.history_uuid"
_EXISTS: Final = "resource_already_exists_exception"
_TAKEN: Final = "invalid_alias_name_exception"
_TAKEN_HINT: Final = (
    "another program created an index with the name of the alias {view}: remove or rename it,"
    " and restart the job"
)
_OPTIONS_HINT: Final = (
    "correct search=SearchOptions(...) of the view: analyzers are the engine's own, or described in"
    " its analysis"
)
_ACTION: Final = b'{"index":{"_id":%b,"version":%d,"version_type":"external"}}'
_DELETED: Final = orjson.dumps({DELETED_FIELD: True})
_LOST_HINT: Final = (
    "start the job again (headwater down, headwater up): it snapshots the view's table again and"
    " fills the index"
)


class SearchSink:
    """Writes each row as a document of the index `<view>-v1`, read through the alias `<view>`.

    The engine compares versions (`version_type=external`). It forgets the version of a deleted
    document within a minute, so a delete is a document too: `{"_deleted": true}`, which the alias
    hides. The mapping's `_meta` stores the version of the last sweep, which replaces older delete
    markers. A write is on disk when acknowledged, and found within a second.

    The index stores the engine's own ids of it as its identity mark. After a delete, or a restore
    from a backup, the mark no longer matches: nothing is written until `prepare` has run.

    Two bodies of 1 MiB are in flight at a time, smaller when the engine is too busy; a larger
    document is sent alone. A document of more than 96 MiB is refused.

    Args:
        url: `http[s]://[user:password@]host:port`.
        patience_s: Longest time that the engine may reject everything as too busy, seconds.
    """

    def __init__(self, url: str, *, patience_s: float = PATIENCE_S) -> None:
        self.engine = SearchEngine(url)
        self._sender: BulkSender[RowChange] = BulkSender(self.engine, patience_s)
        self._forms: dict[str, DocumentForm] = {}

    def prepare(self, plan: ViewPlan) -> None:
        """Creates index and alias if missing, and migrates the index to the view's fields.

        Raises:
            IndexRefusedError: The engine lacks something that the view's search options name, or a
                foreign index has the view's name.
            IndexLostError: The index was migrated, and lost documents.
            SinkError: The engine refuses or cannot be reached.
        """
        index = index_name(plan)
        # readers may have moved to another version since the plan was created
        plan = replace(plan, active=plan.active and not self._active_elsewhere(plan))
        try:
            try:
                self.engine.request("PUT", f"/{index}", index_body(plan))
            except EngineRefusedError as error:
                if error.kind != _EXISTS:
                    raise
            remap(self.engine, plan, index)
        except EngineRefusedError as error:
            if error.status != _BAD_DOCUMENT:
                raise
            taken = error.kind == _TAKEN
            raise IndexRefusedError(
                f"view {plan.name}: search refuses its index",
                detail=error.reason[:300] or error.detail,
                hint=_TAKEN_HINT.format(view=plan.name) if taken else _OPTIONS_HINT,
            ) from None
        mark, meta = self._state(index)
        if meta.get(_MARK) != mark:
            self._note(index, meta | {_MARK: mark})

    def mark(self, plan: ViewPlan) -> str | None:
        """Returns the identity mark of a view's index; None if there is none."""
        try:
            mark, meta = self._state(index_name(plan))
        except IndexLostError:
            return None
        return mark if meta.get(_MARK) == mark else None

    def apply(self, plan: ViewPlan, changes: Sequence[RowChange]) -> Applied:
        """Writes changes in bulk; see `Sink.apply`."""
        floor = self._floor(plan)
        writing = _Writing(plan, self._form(plan), StoredDocuments(self.engine, index_name(plan)))
        for change, answer in self._sender.send(index_name(plan), writing.lines(changes, floor)):
            writing.note(change, answer)
        self._sweep_own(plan, changes, floor)
        return writing.applied

    def documents(self, plan: ViewPlan) -> Iterator[Mapping[str, object]]:
        """Reads every live row; see `Sink.documents`."""
        return (document for _, document in self.versioned(plan))

    def parts(self, plan: ViewPlan) -> Iterator[RowPart]:
        """Reads every live row; see `Sink.parts`."""
        return parts(plan, self.documents(plan))

    def versioned(self, plan: ViewPlan) -> Iterator[tuple[int, Mapping[str, object]]]:
        """Reads every live row with its version; see `Sink.versioned`."""
        for page in self.engine.scanned(index_name(plan), {"version": True, "query": LIVE}):
            for hit in page:
                yield hit["_version"], hit["_source"]

    def versions(self, plan: ViewPlan, changes: Sequence[RowChange]) -> list[int]:
        """Looks the documents up; see `Sink.versions`."""
        floor = max(0, self._floor(plan) - 1)
        form = self._form(plan)
        ids = [document_id(form.name(change)) for change in changes]
        stored = StoredDocuments(self.engine, index_name(plan)).versions(ids)
        return [max(floor, stored.get(place, 0)) for place in ids]

    def stored(self, plan: ViewPlan, keys: Sequence[tuple[object, ...]]) -> list[StoredKey]:
        """Looks the documents up; see `Sink.stored`."""
        floor, form = max(0, self._floor(plan) - 1), self._form(plan)
        ids = [document_id(form.name_of(key)) for key in keys]
        stored: dict[str, StoredKey] = {}
        for part in StoredDocuments(self.engine, index_name(plan)).fields(ids, ()):
            for row_id, (version, fields) in part.items():
                live = () if DELETED_FIELD in fields else (fields,)
                stored[row_id] = StoredKey(max(floor, version), live)
        return [stored[row_id] for row_id in ids]

    def sweep(
        self,
        plan: ViewPlan,
        below_version: int,
        reads: Sequence[ReadSpan] = (),  # noqa: ARG002  # a history's
    ) -> int:
        """Stores the version in the index's mapping, then deletes documents; see `Sink.sweep`."""
        index = index_name(plan)
        if self._floor(plan) < below_version:
            _, meta = self._state(index)
            self._note(index, meta | {_FLOOR: str(below_version)})
        removed = 0
        wanted = {"version": True, "_source": [DELETED_FIELD]}
        for page in self.engine.scanned(index, wanted):
            old = [hit for hit in page if hit["_version"] < below_version]
            self._remove(plan, [hit["_id"] for hit in old], below_version)
            removed += sum(DELETED_FIELD not in hit["_source"] for hit in old)
        return removed

    def close(self) -> None:
        """Closes the connections."""
        self._sender.close()
        self.engine.close()

    def activate(self, plan: ViewPlan) -> None:
        """Makes this version the active one for readers, in one step.

        Raises:
            SinkError: The engine refuses or cannot be reached; nothing was changed.
        """
        # refreshed first: readers must not see less than before
        self.engine.request("POST", f"/{index_name(plan)}/_refresh")
        add = {"add": {"index": index_name(plan), "alias": plan.view, "filter": LIVE}}
        others = self._aliased(plan.view) - {index_name(plan)}
        remove = [{"remove": {"index": index, "alias": plan.view}} for index in sorted(others)]
        self.engine.request("POST", "/_aliases", {"actions": [add, *remove]})

    def is_active(self, plan: ViewPlan) -> bool:
        """Returns whether this version is the active one."""
        return self._aliased(plan.view) == {index_name(plan)}

    def deactivate(self, view: str) -> None:
        """Removes the view's alias, in one step; see `ActiveVersionPointer`."""
        if aliased := sorted(self._aliased(view)):
            remove = [{"remove": {"index": index, "alias": view}} for index in aliased]
            self.engine.request("POST", "/_aliases", {"actions": remove})

    def drop(self, plan: ViewPlan) -> None:
        """Deletes an inactive version."""
        for index in (index_name(plan), spare_of(index_name(plan))):
            try:
                self.engine.request("DELETE", f"/{index}")
            except EngineRefusedError as error:
                if error.status != NOT_FOUND:
                    raise

    def _active_elsewhere(self, plan: ViewPlan) -> bool:
        own = index_name(plan)
        return bool(self._aliased(plan.view) - {own, spare_of(own)})

    def _aliased(self, view: str) -> set[str]:
        """Returns the indices behind a view's alias."""
        try:
            return set(self.engine.request("GET", f"/_alias/{view}"))
        except EngineRefusedError as error:
            if error.status != NOT_FOUND:
                raise
            return set()

    def _sweep_own(self, plan: ViewPlan, changes: Sequence[RowChange], floor: int) -> None:
        """Removes what this call wrote while another instance swept, unseen by that sweep."""
        now = self._floor(plan)
        if now > floor:
            name_of = self._form(plan).name_of
            late = [document_id(name_of(c.key)) for c in changes if floor <= c.version < now]
            self._remove(plan, late, now)

    def _remove(self, plan: ViewPlan, ids: Sequence[str], below_version: int) -> None:
        """Deletes older documents, unless they became newer meanwhile."""
        version = {"version": below_version - 1, "version_type": "external_gte"}
        body = [orjson.dumps({"delete": {"_id": each, **version}}) + b"\n" for each in ids]
        for start in range(0, len(body), READ_DOCUMENTS):
            answers = self.engine.bulk(index_name(plan), body[start : start + READ_DOCUMENTS])
            failed = {a["status"] for a in answers} - {200, NOT_FOUND, _CONFLICT}
            if failed:
                raise SinkUnavailableError(
                    f"view {plan.name}: search does not remove old documents",
                    detail=f"status {min(failed)}",
                )

    def _floor(self, plan: ViewPlan) -> int:
        """Returns the version below which the view refuses changes.

        Raises:
            IndexLostError: The index is not the one that the view was prepared in.
        """
        mark, meta = self._state(index_name(plan))
        if meta.get(_MARK) != mark:
            raise _lost(index_name(plan), "another program created or restored it")
        return int(meta.get(_FLOOR, "0"))

    def _state(self, index: str) -> tuple[str, dict[str, str]]:
        """Returns the engine's ids of an index, and our metadata in it."""
        try:
            indices = self.engine.request("GET", f"/{index}?{_STATE}")
        except EngineRefusedError as error:
            if error.status != NOT_FOUND:
                raise
            raise _lost(index, "it was deleted") from None
        for name, index_of in indices.items():
            if name == index:
                ids = index_of["settings"]["index"]
                metadata = index_of.get("mappings", {}).get("_meta", {})
                return f"{ids['uuid']}/{ids.get('history_uuid', '')}", metadata
        raise _lost(index, "the name belongs to another index")

    def _note(self, index: str, meta: Mapping[str, str]) -> None:
        self.engine.request("PUT", f"/{index}/_mapping", {"_meta": meta})

    def _form(self, plan: ViewPlan) -> DocumentForm:
        form = self._forms.get(plan.name)
        if form is None or form.plan != plan:
            form = self._forms[plan.name] = DocumentForm(plan)
        return form


class _Writing:
    """Tracks the changes of one call: lines of bulk requests, built as they are sent."""

    def __init__(self, plan: ViewPlan, form: DocumentForm, stored: StoredDocuments) -> None:
        self._plan = plan
        self._form = form
        self._stored = stored
        # counted separately: summing values of each document would cost as much as encoding it
        self._upserted = self._deleted = self._stale = self._size_bytes = 0
        self._refused: list[Refused] = []

    def lines(self, changes: Sequence[RowChange], floor: int) -> Iterator[tuple[RowChange, bytes]]:
        partial = [
            change for change in changes if change.unchanged_columns and change.version >= floor
        ]
        # rows that changed their key: stored values are read before anything overwrites them
        lent = dict(self._bases([change for change in partial if change.base is not None]))
        for change in changes:
            if change.version < floor:
                self._stale += 1
            elif change.row is None or not change.unchanged_columns:
                yield from self._made(change, NO_ROW, NO_ROW)
        ids = {document_id(self._form.name(change)): change for change in partial}
        names = {name for change in partial for name in change.unchanged_columns}
        for documents in self._stored.fields(list(ids), names):
            for row_id, own in documents.items():
                change = ids[row_id]
                base = own if change.base is None else lent.get(row_id, NO_ROW)
                yield from self._made(change, own, base)

    @property
    def applied(self) -> Applied:
        """Returns the result of the changes."""
        return Applied(
            self._upserted, self._deleted, self._stale, tuple(self._refused), self._size_bytes
        )

    def note(self, change: RowChange, answer: Mapping[str, Any]) -> None:
        """Records the response to one change.

        Raises:
            SinkError: The rejection is not caused by the document.
        """
        status = answer["status"]
        if status == _CONFLICT:
            self._stale += 1
        elif status >= 300:  # noqa: PLR2004  # the range of HTTP's successes
            self._refused.append(Refused(change, _refusal(self._plan, answer)))
        elif change.row is None:
            self._deleted += 1
        else:
            self._upserted += 1

    def _bases(self, moved: Sequence[RowChange]) -> Iterator[tuple[str, Stored]]:
        if not moved:
            return
        names = {name for change in moved for name in change.unchanged_columns}
        wanted = {document_id(self._form.name_of(change.base or ())) for change in moved}
        bases: dict[str, Stored] = {}
        for part in self._stored.fields(list(wanted), names):
            bases |= part
        for change in moved:
            base = document_id(self._form.name_of(change.base or ()))
            yield document_id(self._form.name(change)), bases.get(base, NO_ROW)

    def _made(
        self, change: RowChange, own: Stored, base: Stored
    ) -> Iterable[tuple[RowChange, bytes]]:
        try:
            made = _lines(self._form, change, own[0], base)
        except (UnholdableValueError, NoStoredRowError) as error:
            self._refused.append(Refused(change, error))
            return ()
        self._size_bytes += len(made)
        return ((change, made),)


def index_name(plan: ViewPlan) -> str:
    """Returns the physical index of a view; readers use the alias, which is the view's name."""
    return index_of(plan.name)


def index_of(place: str) -> str:
    """Returns the physical index of a version by its physical name."""
    return f"{place}-v1"


def document_id(name: str) -> str:
    """Returns the `_id` of a key's text; a hash if the engine cannot use the text as an id."""
    data = name.encode()
    if 0 < len(data) <= ID_BYTES:
        return name
    return "h:" + hashlib.blake2b(data, digest_size=32).hexdigest()


def _lines(form: DocumentForm, change: RowChange, own_stored: int, base: Stored) -> bytes:
    """Returns the two lines of a bulk request for a change."""
    row_id, own_version = document_id(form.name(change)), change.version
    if change.row is None:
        document = _DELETED
    else:
        fields = form.fields(change.row)
        if change.unchanged_columns and own_stored < change.version:
            version, row = base
            if DELETED_FIELD in row or not may_complete(change, version, form.plan.kept_since):
                raise form.missing_values(change)
            fields |= {name: row[name] for name in change.unchanged_columns}
            own_version = completed_version(change, version)
        document = orjson.dumps(fields)
    action = _ACTION % (orjson.dumps(row_id), own_version)
    return b"%b\n%b\n" % (action, document)


def _refusal(plan: ViewPlan, answer: Mapping[str, Any]) -> SinkError:
    """Returns why a document was not written; raises if the document is not the cause."""
    status = answer["status"]
    if status == TOO_LARGE:
        return _too_large(plan, answer)
    if status == NOT_FOUND:
        raise _lost(index_name(plan), "it was deleted")
    error = SinkRefusedError(
        f"view {plan.name}: search refuses a document",
        detail=_cause(answer),
        hint="correct the row at the source, then run headwater quarantine retry",
    )
    if status != _BAD_DOCUMENT:
        raise error
    return error


def _cause(answer: Mapping[str, Any]) -> str:
    """Returns the cause of a rejection without the engine's own text, which contains the value."""
    error = answer.get("error", {})
    field = _FIELD.search(error.get("reason", ""))
    return str(error.get("type", answer["status"])) + (f" in field {field[1]}" if field else "")


def _too_large(plan: ViewPlan, answer: Mapping[str, Any]) -> UnholdableValueError:
    return UnholdableValueError(
        f"view {plan.name}: a document is too large for search",
        detail=_cause(answer),
        hint="exclude the large column from the view, or remove search from its stores",
    )


def _lost(index: str, how: str) -> IndexLostError:
    return IndexLostError(f"search index {index} is lost", detail=how, hint=_LOST_HINT)
