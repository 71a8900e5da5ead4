"""Explanation: how a view is maintained, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from projections.definition.cache_options import DEFAULT_OPTIONS
from projections.definition.views import Store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from projections.definition.views import DerivedView
    from projections.planning.view_plan import ViewPlan

_PLACES: Final = {
    Store.TABLE: "Delta table {name}",
    Store.SEARCH: "OpenSearch alias {name}",
    Store.CACHE: "keys {source}:{name}:<key>",
}


@dataclass(frozen=True, slots=True)
class ViewExplanation:
    """How a view is maintained.

    Attributes:
        view: Its name.
        kind: `mirror`, `history`, `events` or `derived`.
        inputs: The tables that it reads.
        keys: Columns that identify a row.
        strategy: How a change of an input changes the view.
        group: The views whose tables are published together with its own; empty if it has no table.
        sinks: For each store, its name there, and the structures beside its rows.
        expectations: Its expectations, and what happens to rows that do not meet them.
        without: Columns of its table that it excludes.
    """

    view: str
    kind: str
    inputs: tuple[str, ...]
    keys: tuple[str, ...]
    strategy: str
    group: tuple[str, ...]
    sinks: dict[str, tuple[str, ...]]
    expectations: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


def explain(
    plan: ViewPlan, others: Iterable[ViewPlan], unlogged: Iterable[str] = ()
) -> ViewExplanation:
    """Describes how a view is maintained.

    Args:
        plan: The view.
        others: All views of its source, which may include it.
        unlogged: Columns of its table that are not in the source's log.
    """
    tables = sorted(other.name for other in others if Store.TABLE in other.to)
    return ViewExplanation(
        plan.name,
        _kind(plan),
        tuple(dict.fromkeys(str(schema.table) for schema in plan.topics.values())),
        plan.keys,
        _strategy(plan),
        tuple(tables) if Store.TABLE in plan.to else (),
        {str(store): _sink(plan, plan.source, store) for store in sorted(plan.to)},
        tuple(str(each) for each in plan.expectations),
        (*(column.name for column in plan.left_out), *unlogged),
    )


def explain_derived(
    view: DerivedView, source: str, status: Mapping[str, Any], group: Iterable[str]
) -> ViewExplanation:
    """Describes how a derived view is maintained.

    Args:
        view: The view.
        source: Name of its source.
        status: The job's report on it; empty if the job has not maintained it yet.
        group: The views whose tables are published together with its own.
    """
    strategy = "unknown until the job has maintained it"
    if status.get("strategy") == "keyed":
        ways = [f"{name}: {way}" for name, paths in status["paths"].items() for way in paths]
        along = view.along
        onward = (
            "" if along is None else f" and, of many rows, from the {along.time} of a change on"
        )
        near = f"; rows near a change by {', '.join(status['near'])}" if status.get("near") else ""
        strategy = f"by {', '.join(status['by'])}{onward}; " + "; ".join(ways) + near
    elif status.get("strategy") and view.along is not None and not view.along.by:
        strategy = f"from the {view.along.time} of a change on"
    elif status.get("strategy"):
        strategy = f"computed as a whole: {status['reason']}"
    return ViewExplanation(
        view.name,
        "derived",
        view.inputs,
        view.keys,
        strategy,
        tuple(sorted(group)),
        {
            str(store): _sink(view, source, store) + _trouble(status, store)
            for store in sorted(view.to)
        },
        tuple(str(each) for each in view.expectations),
    )


def _kind(plan: ViewPlan) -> str:
    if plan.events is not None:
        return "events"
    return "mirror" if plan.history is None else "history"


def _strategy(plan: ViewPlan) -> str:
    if plan.events is not None:
        types = ", ".join(sorted(plan.events.form.names))
        return f"one row for each event of {types}"
    if plan.append_only:
        return "one row for each insert: the table has no key"
    if plan.history is None:
        return "the newest change of each key, by its position in the source's log"
    by = plan.history.sequence_by or "the commit"
    return f"every state of each key, valid since {by}"


def _trouble(status: Mapping[str, Any], store: Store) -> tuple[str, ...]:
    """Returns why a derived view is missing from a store."""
    in_store = status if store is Store.TABLE else status.get("stores", {}).get(str(store), {})
    error = in_store.get("error")
    if error is None:
        return ()
    seen = [text for text in (error["detail"], error["hint"]) if text]
    return (": ".join([f"{error['code']} {error['message']}", *seen]),)


def _sink(view: ViewPlan | DerivedView, source: str, store: Store) -> tuple[str, ...]:
    structures = [_PLACES[store].format(name=view.name, source=source)]
    if store is Store.SEARCH:
        structures += [f"{name}: {option}" for name, option in sorted(view.search.fields.items())]
    if store is Store.CACHE and view.cache != DEFAULT_OPTIONS:
        cache = view.cache
        structures += [f"layout {cache.layout}"]
        structures += [] if cache.ttl is None else [f"gone {cache.ttl} after its last change"]
        structures += [f"lookup {pattern}" for pattern in cache.lookups]
        structures += [f"counter {pattern}: {of}" for pattern, of in sorted(cache.counters.items())]
        structures += [
            f"leaderboard {pattern}: {by}" for pattern, by in sorted(cache.leaderboards.items())
        ]
    return tuple(structures)
