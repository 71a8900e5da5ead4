"""Adapts a search index to the present columns of its view.

A new field is added to the mapping. The type of a field, and the analysis of its text, cannot be
changed in place: documents are copied, with their versions, to a second index and back, and the
alias is moved in one step each time. After a kill in between, the next process continues: the
second index shows that work is unfinished. Other differences, such as a missing alias or dynamic
fields, are corrected as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson
import structlog

from projections.errors import IndexLostError, SinkUnavailableError
from projections.stores.opensearch.fields import KIND
from projections.stores.opensearch.mapping import LIVE, fields_limit, index_body

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from projections.planning.view_plan import ViewPlan

_CONFLICT: Final = 409
_DONE: Final = frozenset((200, 201, _CONFLICT))
_BAD_DOCUMENT: Final = 400
_STRICT: Final = "strict"
_DESCRIBED_KEYS: Final = ("analyzer", "search_analyzer", "normalizer", "index")
_log = structlog.get_logger(__name__)


class Engine(Protocol):
    """The requests to a search engine that this module needs."""

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Sends a request; returns the response."""
        ...

    def bulk(self, index: str, body: list[bytes]) -> list[dict[str, Any]]:
        """Sends the lines of a bulk request; returns the response to each."""
        ...

    def scanned(self, place: str, wanted: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
        """Yields an index page by page."""
        ...


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field, or the analyzers, that the index cannot adopt in place.

    Attributes:
        name: The field.
        old: Mapping in the index.
        new: Mapping that the view needs.
    """

    name: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.name}: {self.old} -> {self.new}"


def changes(had: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[FieldChange]:
    """Returns the differences that require a copy of the documents.

    Args:
        had: Settings and mappings of the index, as the engine returns them.
        wanted: The body with which a new index would be created.
    """
    before = had["mappings"].get("properties", {})
    after = wanted["mappings"]["properties"]
    differences = [
        FieldChange(name, _described(before[name]), _described(field))
        for name, field in after.items()
        if name in before and _bare(before[name]) != _bare(field)
    ]
    analysis = had.get("settings", {}).get("index", {}).get("analysis", {})
    declared = _as_stored(wanted["settings"].get("analysis", {}))
    if analysis != declared:
        differing = sorted(
            f"{kind}.{name}"
            for kind in {*analysis, *declared}
            for name in {*analysis.get(kind, {}), *declared.get(kind, {})}
            if analysis.get(kind, {}).get(name) != declared.get(kind, {}).get(name)
        )
        differences.append(FieldChange("analysis", "as it was", ", ".join(differing)))
    return differences


def spare_of(index: str) -> str:
    """Returns the name of the second index of a view."""
    return f"{index}-spare"


def remap(engine: Engine, plan: ViewPlan, index: str) -> None:
    """Migrates a view's index to the view's fields.

    Raises:
        IndexLostError: The migration is done, but documents that do not fit were left out: the view
            needs a new snapshot.
        SinkError: The engine refuses or cannot be reached.
    """
    spare = spare_of(index)
    body = index_body(plan)
    state = engine.request("GET", f"/{index}")[index]
    mapping = state["mappings"]
    had, wanted = mapping.get("properties", {}), body["mappings"]["properties"]
    differing = changes(state, body)
    copied = bool(engine.request("GET", f"/_cat/indices/{spare}*?format=json"))
    left_out = 0
    if differing:
        _log.warning(
            "search index is created again for fields that changed",
            view=plan.name,
            changes="; ".join(map(str, differing)),
        )
        body["mappings"]["_meta"] = mapping.get("_meta", {})
        del body["aliases"]  # the alias moves once the copy is complete
        if copied:
            engine.request("DELETE", f"/{spare}")  # an unfinished copy
        engine.request("PUT", f"/{spare}", body)
        left_out += _copy(engine, plan, index, spare, _carried(plan, had, wanted))
        _move(engine, plan, index, spare)
        engine.request("PUT", f"/{index}", body)
        copied = True
    elif lacking := {name: wanted[name] for name in wanted if had.get(name) != wanted[name]}:
        limit = {"index.mapping.total_fields.limit": fields_limit(had | wanted)}
        engine.request("PUT", f"/{index}/_settings", limit)
        engine.request("PUT", f"/{index}/_mapping", {"properties": lacking})
    if copied:
        left_out += _copy(engine, plan, spare, index, {name: name for name in wanted})
        _move(engine, plan, spare, index)
    else:
        _correct_settings(engine, plan, index, state)
    if left_out:
        raise IndexLostError(
            f"view {plan.name}: documents of its index do not fit its present fields",
            detail=f"{left_out} left out; {'; '.join(map(str, differing))}",
            hint=("the job takes a new snapshot of the table, and quarantines what does not fit"),
        )


def _correct_settings(engine: Engine, plan: ViewPlan, index: str, state: Mapping[str, Any]) -> None:
    """Corrects settings of an index that do not affect its documents."""
    if state["mappings"].get("dynamic") != _STRICT:
        engine.request("PUT", f"/{index}/_mapping", {"dynamic": _STRICT})
    alias = index_body(plan)["aliases"].get(plan.view)
    if alias is not None and state.get("aliases", {}).get(plan.view) != alias:
        add = {"add": {"index": index, "alias": plan.view, **alias}}
        engine.request("POST", "/_aliases", {"actions": [add]})


def _bare(field: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a field's mapping without the parts that can change in place."""
    return {key: value for key, value in field.items() if key != "meta"}


def _described(field: Mapping[str, Any]) -> str:
    settings = [f"{key}={value}" for key, value in _bare(field).items() if key in _DESCRIBED_KEYS]
    below = [f"+{name}" for name in field.get("fields", {})]
    return " ".join([str(field.get("type", "object")), *settings, *below])


def _as_stored(setting: Any) -> Any:
    """Converts a setting to the engine's form: numbers and booleans as text."""
    if isinstance(setting, dict):
        return {name: _as_stored(value) for name, value in setting.items()}
    if isinstance(setting, list | tuple):
        return [_as_stored(value) for value in setting]
    return str(setting).lower() if isinstance(setting, bool) else str(setting)


def _carried(plan: ViewPlan, had: dict[str, Any], wanted: dict[str, Any]) -> dict[str, str]:
    """Returns the fields whose values are copied; values of another form come with the snapshot."""
    carried = {name: name for name in wanted if name in had and _same_form(had[name], wanted[name])}
    for name, older in plan.older_names.items():
        place = next((old for old in older if old in had and old not in wanted), None)
        if place is not None and name not in had:
            carried[place] = name
    return carried


def _same_form(had: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Returns whether values have the same stored form, even if indexed differently."""
    kind = had.get("meta", {}).get(KIND)
    if kind is None:  # from a release that recorded only the type
        return bool(had.get("type") == wanted.get("type"))
    return bool(kind == wanted.get("meta", {}).get(KIND))


def _copy(engine: Engine, plan: ViewPlan, source: str, target: str, carried: dict[str, str]) -> int:
    """Copies documents; returns how many do not fit the new mapping."""
    left_out = 0
    for page in engine.scanned(source, {"version": True}):
        lines = []
        for hit in page:
            version = {"version": hit["_version"], "version_type": "external_gte"}
            fields = {carried[name]: v for name, v in hit["_source"].items() if name in carried}
            action = orjson.dumps({"index": {"_id": hit["_id"], **version}})
            lines.append(action + b"\n" + orjson.dumps(fields) + b"\n")
        failed = [answer["status"] for answer in engine.bulk(target, lines)]
        left_out += failed.count(_BAD_DOCUMENT)
        if others := set(failed) - _DONE - {_BAD_DOCUMENT}:
            raise SinkUnavailableError(
                f"view {plan.name}: search cannot copy its documents into another index",
                detail=f"status {min(others)}",
            )
    return left_out


def _move(engine: Engine, plan: ViewPlan, source: str, target: str) -> None:
    """Deletes an index and moves its alias, if it has one, in one step."""
    borne = engine.request("GET", f"/{source}/_alias")[source]["aliases"]
    actions: list[dict[str, Any]] = []
    if plan.view in borne or plan.active:
        actions.append({"add": {"index": target, "alias": plan.view, "filter": LIVE}})
    actions.append({"remove_index": {"index": source}})
    engine.request("POST", "/_aliases", {"actions": actions})
