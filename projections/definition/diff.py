"""The difference between two definitions of a view, and whether it requires a new version."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from projections.definition.codec import decoded, encoded
from projections.definition.derived.view_function import ViewFunction, digest_in
from projections.definition.views import DerivedView, EventsRef, EventsView, MirrorView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cdc.table import TableName
    from projections.definition.cache_options import CacheOptions
    from projections.definition.expectations.expectation import Expectation
    from projections.definition.views import AnyView, View


class DefinitionChangeKind(StrEnum):
    """The work that a changed definition requires."""

    NONE = "none"  # nothing: both definitions mean the same
    IN_PLACE = "in place"  # nothing to recompute: the view continues with its rows
    REBUILD = "rebuild"  # a new version: rows or their layout differ


class DefinitionChange(NamedTuple):
    """How one definition differs from another.

    Attributes:
        kind: The work that the difference requires.
        differences: The differences, in words.
        columns: Columns whose addition, removal or retyping the difference explains.
        rows: Whether it explains added or removed rows: those that only one definition admits, as
            far as a row shows that.
    """

    kind: DefinitionChangeKind
    differences: tuple[str, ...] = ()
    columns: frozenset[str] = frozenset()
    rows: bool = False


def difference(
    old: AnyView, new: AnyView, *, gone: Callable[[TableName], bool]
) -> DefinitionChange:
    """Compares a definition with the one before.

    Args:
        old: The definition by which the view is maintained.
        new: Another definition of the same view.
        gone: Whether the source no longer has a table of that name. A new name then belongs to a
            renamed table and requires nothing.
    """
    old = _with_new_digest(old, new)
    # a stored definition has tuples where a declaration may have lists
    old, new = decoded(encoded(old)), decoded(encoded(new))
    parts = [
        part
        for part in (*_general(old, new), *_of_rows(old, new, gone))
        if part.kind is not DefinitionChangeKind.NONE
    ]
    if not parts:
        return DefinitionChange(DefinitionChangeKind.NONE)
    rebuilt = any(part.kind is DefinitionChangeKind.REBUILD for part in parts)
    if isinstance(old, DerivedView) and is_function(old) and digest_in(old.text) is None:
        rebuilt = False  # the module has lost the former function, so it cannot maintain the view
    return DefinitionChange(
        DefinitionChangeKind.REBUILD if rebuilt else DefinitionChangeKind.IN_PLACE,
        tuple(differences for part in parts for differences in part.differences),
        frozenset[str]().union(*(part.columns for part in parts)),
        any(part.rows for part in parts),
    )


def _with_new_digest(old: AnyView, new: AnyView) -> AnyView:
    """Gives the old view the new digest if the old digest covered a module that is unchanged."""
    if not isinstance(old, DerivedView) or not isinstance(new, DerivedView):
        return old
    function = new.function
    same = isinstance(function, ViewFunction) and is_function(old) and old.text == function.former
    return replace(old, text=new.text) if same else old


def _general(old: AnyView, new: AnyView) -> Iterator[DefinitionChange]:
    """Compares the parts that every view has."""
    if type(old) is not type(new):
        yield DefinitionChange(
            DefinitionChangeKind.REBUILD, ("it is another kind of view",), rows=True
        )
    if old.to != new.to:
        stores = f"stores: {_listed(old.to)} -> {_listed(new.to)}"
        yield DefinitionChange(DefinitionChangeKind.IN_PLACE, (stores,))
    if old.search != new.search:
        yield DefinitionChange(
            DefinitionChangeKind.IN_PLACE, ("how its fields are indexed for search",)
        )
    before, after = _withholding(old), _withholding(new)
    if before != after:
        differences = [f"no longer: {each}" for each in before if each not in after]
        differences += [f"expects {each}" for each in after if each not in before]
        yield DefinitionChange(
            DefinitionChangeKind.REBUILD,
            tuple(differences) or ("expectations in another order",),
            rows=True,
        )
    elif old.expectations != new.expectations:
        yield DefinitionChange(
            DefinitionChangeKind.IN_PLACE, ("expectations that only count rows",)
        )


def _of_rows(
    old: AnyView, new: AnyView, gone: Callable[[TableName], bool]
) -> Iterator[DefinitionChange]:
    """Compares the parts that determine the rows of a mirror or a view of events."""
    if isinstance(old, EventsView) and isinstance(new, EventsView):
        yield from _of_events(old.events, new.events)
        yield from _of_times(old, new)
        return
    if isinstance(old, DerivedView) and isinstance(new, DerivedView):
        yield from _of_query(old, new)
        return
    if not isinstance(old, MirrorView) or not isinstance(new, MirrorView):
        return
    if old.table != new.table:
        kind = DefinitionChangeKind.IN_PLACE if gone(old.table) else DefinitionChangeKind.REBUILD
        yield DefinitionChange(kind, (f"table: {old.table} -> {new.table}",), rows=True)
    if old.on_schema_change != new.on_schema_change:
        yield DefinitionChange(
            DefinitionChangeKind.IN_PLACE, ("its reaction to a change of its table",)
        )
    if changed := frozenset(old.left_out) ^ frozenset(new.left_out):
        change = f"columns left out: {_listed(old.left_out)} -> {_listed(new.left_out)}"
        yield DefinitionChange(DefinitionChangeKind.REBUILD, (change,), changed)
    yield from _of_times(old, new)
    if old.history != new.history:
        yield DefinitionChange(
            DefinitionChangeKind.REBUILD, ("the rules of its history",), rows=True
        )
    yield from _of_cache(old.cache, new.cache)


def _of_times(old: View, new: View) -> Iterator[DefinitionChange]:
    if names := frozenset(name for name, _ in {*old.times} ^ {*new.times}):
        change = f"times of changes: {_listed(names)}"
        yield DefinitionChange(DefinitionChangeKind.REBUILD, (change,), names)


def _of_events(old: EventsRef, new: EventsRef) -> Iterator[DefinitionChange]:
    if old.types != new.types:
        types = f"events: {_listed(old.types)} -> {_listed(new.types)}"
        yield DefinitionChange(DefinitionChangeKind.REBUILD, (types,), rows=True)
    was, now = old.versions or {}, new.versions or {}
    differences = [
        f"event {name}: version {was[name]} -> {now[name]}"
        for name in sorted(was.keys() & now.keys())
        if was[name] != now[name]
    ]
    columns = {*(old.columns or ())} ^ {*(new.columns or ())}
    if columns and not differences:
        differences = [f"fields of its events: {_listed({column.name for column in columns})}"]
    if differences:
        names = frozenset(column.name for column in columns)
        yield DefinitionChange(DefinitionChangeKind.REBUILD, tuple(differences), names)


def _of_query(old: DerivedView, new: DerivedView) -> Iterator[DefinitionChange]:
    """Compares the parts that determine the rows of a derived view."""
    if old.inputs != new.inputs:
        reads = f"reads: {_listed(old.inputs)} -> {_listed(new.inputs)}"
        yield DefinitionChange(DefinitionChangeKind.REBUILD, (reads,), rows=True)
    if old.keys != new.keys:
        keys = f"keys: {', '.join(old.keys)} -> {', '.join(new.keys)}"
        yield DefinitionChange(DefinitionChangeKind.REBUILD, (keys,), rows=True)
    if is_function(old) != is_function(new):
        yield DefinitionChange(
            DefinitionChangeKind.REBUILD,
            ("a query instead of a function, or the reverse",),
            rows=True,
        )
    elif is_function(old) and old.text != new.text:
        known = digest_in(old.text) is not None and digest_in(new.text) is not None
        change = "its function" if known else "its function, or other code of its module"
        yield DefinitionChange(DefinitionChangeKind.REBUILD, (change,), rows=True)
    elif _query(old) != _query(new):
        yield DefinitionChange(DefinitionChangeKind.REBUILD, ("its query",), rows=True)
    yield from _of_cache(old.cache, new.cache)


def _query(view: DerivedView) -> tuple[object, ...]:
    return view.sql, view.pattern, view.percolation


def is_function(view: DerivedView) -> bool:
    """Returns whether a function of the program defines the view."""
    return view.sql is None and view.pattern is None and view.percolation is None


def _of_cache(old: CacheOptions, new: CacheOptions) -> Iterator[DefinitionChange]:
    differences = [
        f"{name} in the cache"
        for name in ("layout", "lookups", "counters", "leaderboards")
        if getattr(old, name) != getattr(new, name)
    ]
    if differences:
        yield DefinitionChange(DefinitionChangeKind.REBUILD, tuple(differences))
    elif old.ttl != new.ttl:
        yield DefinitionChange(DefinitionChangeKind.IN_PLACE, ("how long rows stay in the cache",))


def _withholding(view: AnyView) -> tuple[Expectation, ...]:
    return tuple(each for each in view.expectations if each.withholds)


def _listed(names: Any) -> str:
    return ", ".join(sorted(map(str, names))) or "none"
