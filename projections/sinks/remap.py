"""A search index takes the columns that its view has now.

A field that comes on top is added to the mapping. The type of a field cannot be changed: then the
documents are copied, with their versions, to an index beside it and back, and readers are moved
from one to the other in one step each time. Whoever is killed in between is followed by somebody
who goes on: the second index says that there is something to be finished.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from projections.errors import SinkUnavailableError
from projections.sinks.mapping import index_body

if TYPE_CHECKING:
    from collections.abc import Iterator

    from projections.plan import ViewPlan

_CONFLICT: Final = 409
_DONE: Final = frozenset((200, 201, _CONFLICT))


class Engine(Protocol):
    """What is asked of a search engine."""

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Sends a request; returns its answer."""
        ...

    def bulk(self, index: str, body: list[bytes]) -> list[dict[str, Any]]:
        """Sends the lines of a bulk request; returns the answer to each."""
        ...

    def scanned(self, place: str, wanted: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
        """Reads an index page by page."""
        ...


def remap(engine: Engine, plan: ViewPlan, index: str) -> None:
    """Gives the index of a view the view's fields.

    Args:
        engine: The search engine.
        plan: The view.
        index: Its index, which exists.

    Raises:
        SinkError: The engine refuses or cannot be reached.
    """
    spare = f"{index}-spare"
    body = index_body(plan)
    mapping = engine.request("GET", f"/{index}/_mapping")[index]["mappings"]
    had, wanted = mapping.get("properties", {}), body["mappings"]["properties"]
    retyped = [
        name for name in wanted if had.get(name, wanted[name])["type"] != wanted[name]["type"]
    ]
    copied = bool(engine.request("GET", f"/_cat/indices/{spare}*?format=json"))
    if retyped:
        body["mappings"]["_meta"] = mapping.get("_meta", {})
        alias = body.pop("aliases")
        if copied:
            engine.request("DELETE", f"/{spare}")  # a copy that was not finished
        engine.request("PUT", f"/{spare}", body)
        _copy(engine, plan, index, spare, _carried(plan, had, wanted, retyped))
        _move(engine, plan, index, spare, alias)
        engine.request("PUT", f"/{index}", body)
        copied = True
    elif lacking := {name: wanted[name] for name in wanted if name not in had}:
        engine.request("PUT", f"/{index}/_mapping", {"properties": lacking})
    if copied:
        _copy(engine, plan, spare, index, {name: name for name in wanted})
        _move(engine, plan, spare, index, index_body(plan)["aliases"])


def _carried(
    plan: ViewPlan, had: dict[str, Any], wanted: dict[str, Any], retyped: list[str]
) -> dict[str, str]:
    """Fields whose values stay, and as what; those of another type come with the read."""
    carried = {name: name for name in wanted if name in had and name not in retyped}
    for name, older in plan.older_names.items():
        place = next((old for old in older if old in had and old not in wanted), None)
        if place is not None and name not in had:
            carried[place] = name
    return carried


def _copy(
    engine: Engine, plan: ViewPlan, source: str, target: str, carried: dict[str, str]
) -> None:
    for page in engine.scanned(source, {"version": True}):
        lines = []
        for hit in page:
            version = {"version": hit["_version"], "version_type": "external_gte"}
            fields = {carried[name]: v for name, v in hit["_source"].items() if name in carried}
            action = orjson.dumps({"index": {"_id": hit["_id"], **version}})
            lines.append(action + b"\n" + orjson.dumps(fields) + b"\n")
        failed = {answer["status"] for answer in engine.bulk(target, lines)} - _DONE
        if failed:
            raise SinkUnavailableError(
                f"view {plan.name}: search does not take its documents into another index",
                detail=f"status {min(failed)}",
            )


def _move(engine: Engine, plan: ViewPlan, source: str, target: str, alias: dict[str, Any]) -> None:
    """Lets readers see another index instead, in one step, and removes the old one."""
    shown = {"index": target, "alias": plan.name, **alias[plan.name]}
    actions = [{"add": shown}, {"remove_index": {"index": source}}]
    engine.request("POST", "/_aliases", {"actions": actions})
