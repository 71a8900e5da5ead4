"""View definitions as data: kept when a view's declaration changes, so that the old one goes on.

A declared view is made of frozen values, and so is what is kept of it: a JSON document that says of
each value which it is. Only the classes listed here are ever made from one, so a document that
somebody has altered can name a wrong column and cannot run anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import timedelta
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from cdc.table import Column, ColumnKind, TableName
from eventstore.registry import declared as declared_events
from projections.cache_options import CacheLayout, CacheOptions
from projections.errors import DeclarationError, DefinitionUnreadableError
from projections.expectation.expectation import Expectation, OnFail
from projections.extent import Extent, Span
from projections.pattern import Pattern, PatternQuery, Step
from projections.search.options import Keyword, SearchOptions, Stored, Text
from projections.standing_query import Percolation
from projections.view import (
    ChangeTime,
    DerivedView,
    EventsRef,
    EventsView,
    HistoryColumns,
    MirrorView,
    SchemaPolicy,
    Store,
)
from projections.view_function import ViewFunction, part_told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from projections.view import AnyView, View

_KNOWN: Final[Mapping[str, type[Any]]] = MappingProxyType(
    {
        known.__name__: known
        for known in (
            *(MirrorView, EventsView, EventsRef, HistoryColumns, Expectation, TableName, Column),
            *(DerivedView, PatternQuery, Pattern, Step, Percolation, Extent, Span),
            *(CacheOptions, SearchOptions, Text, Keyword, Stored),
            *(Store, SchemaPolicy, OnFail, CacheLayout, ColumnKind, ChangeTime),
        )
    }
)
_KIND: Final = "is"
_UNSAID: Final = frozenset({"registry", "function"})
"""Fields that are the program's own, and no part of what was declared."""


class ChangeKind(StrEnum):
    """What a changed definition asks for."""

    NONE = "none"  # it says the same
    IN_PLACE = "in place"  # the rows stay as they are: the view follows as it stands
    REBUILD = "rebuild"  # other rows, or rows laid out otherwise: a new version of the view


class DefinitionChange(NamedTuple):
    """How a definition differs from another.

    Attributes:
        kind: What that asks for.
        said: What differs, in words.
        columns: Columns of which it explains that they appear, are gone, or have another type.
        rows: Whether it explains that rows appear or are gone: those that only one of the two
            definitions lets in, as far as a row tells that.
    """

    kind: ChangeKind
    said: tuple[str, ...] = ()
    columns: frozenset[str] = frozenset()
    rows: bool = False


def encoded(view: AnyView) -> Any:
    """Returns a view's definition as a JSON document.

    Of a function there is only what tells it from another: it is the program's own.

    Raises:
        PlanError: Its events are not declared, or disagree on a column.
    """
    if isinstance(view, EventsView):
        view = replace(view, events=view.events.as_declared())
    return _out(view)


def decoded(document: Any) -> AnyView:
    """Returns the view that a document defines.

    Raises:
        DefinitionUnreadableError: It was kept by another version of this program, or altered.
    """
    try:
        view = _in(document)
    except (KeyError, TypeError, ValueError, DeclarationError) as error:
        raise DefinitionUnreadableError(
            "a kept definition of a view cannot be read",
            detail=type(error).__name__,
            hint="declare the view as it was, or drop that version: headwater view drop",
        ) from None
    if not isinstance(view, MirrorView | EventsView | DerivedView):
        raise DefinitionUnreadableError("a kept definition is of no view")
    return view


def digest(view: AnyView) -> str:
    """Returns what tells a definition from another; its name is no part of it."""
    document = {**encoded(view), "name": ""}
    document.pop("span", None)  # follows from the query, and was not said by earlier versions
    if isinstance(view, EventsView) and not view.times:
        del document["times"]  # nor was that
    return hashlib.sha256(orjson.dumps(document, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def difference(
    old: AnyView, new: AnyView, *, gone: Callable[[TableName], bool]
) -> DefinitionChange:
    """Says how a definition differs from the one before.

    Args:
        old: The one that a view is kept by.
        new: Another one of the same view.
        gone: Whether the source has no table of that name any more: then a new name is the table's
            own, and asks for nothing.
    """
    old = _told_as(old, new)
    # what was kept has tuples where a declaration may have lists
    old, new = decoded(encoded(old)), decoded(encoded(new))
    found = [
        part
        for part in (*_general(old, new), *_of_rows(old, new, gone))
        if part.kind is not ChangeKind.NONE
    ]
    if not found:
        return DefinitionChange(ChangeKind.NONE)
    rebuilt = any(part.kind is ChangeKind.REBUILD for part in found)
    if isinstance(old, DerivedView) and is_function(old) and part_told(old.text) is None:
        rebuilt = False  # what it was is in the module no more: nobody could keep it
    return DefinitionChange(
        ChangeKind.REBUILD if rebuilt else ChangeKind.IN_PLACE,
        tuple(said for part in found for said in part.said),
        frozenset[str]().union(*(part.columns for part in found)),
        any(part.rows for part in found),
    )


def _told_as(old: AnyView, new: AnyView) -> AnyView:
    """What was told by all of its module is told as now, if that module is the same."""
    if not isinstance(old, DerivedView) or not isinstance(new, DerivedView):
        return old
    function = new.function
    same = isinstance(function, ViewFunction) and is_function(old) and old.text == function.former
    return replace(old, text=new.text) if same else old


def _general(old: AnyView, new: AnyView) -> Iterator[DefinitionChange]:
    """What every view has."""
    if type(old) is not type(new):
        yield DefinitionChange(ChangeKind.REBUILD, ("it is another kind of view",), rows=True)
    if old.to != new.to:
        stores = f"stores: {_listed(old.to)} -> {_listed(new.to)}"
        yield DefinitionChange(ChangeKind.IN_PLACE, (stores,))
    if old.search != new.search:
        yield DefinitionChange(ChangeKind.IN_PLACE, ("how its fields are indexed for search",))
    before, after = _withholding(old), _withholding(new)
    if before != after:
        said = [f"no longer: {each}" for each in before if each not in after]
        said += [f"expects {each}" for each in after if each not in before]
        yield DefinitionChange(
            ChangeKind.REBUILD, tuple(said) or ("expectations in another order",), rows=True
        )
    elif old.expectations != new.expectations:
        yield DefinitionChange(ChangeKind.IN_PLACE, ("what is only counted of its rows",))


def _of_rows(
    old: AnyView, new: AnyView, gone: Callable[[TableName], bool]
) -> Iterator[DefinitionChange]:
    """What makes a mirror's or an events' view's rows."""
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
        kind = ChangeKind.IN_PLACE if gone(old.table) else ChangeKind.REBUILD
        yield DefinitionChange(kind, (f"table: {old.table} -> {new.table}",), rows=True)
    if old.on_schema_change != new.on_schema_change:
        yield DefinitionChange(ChangeKind.IN_PLACE, ("what it does when its table changes",))
    if changed := frozenset(old.left_out) ^ frozenset(new.left_out):
        said = f"columns left out: {_listed(old.left_out)} -> {_listed(new.left_out)}"
        yield DefinitionChange(ChangeKind.REBUILD, (said,), changed)
    yield from _of_times(old, new)
    if old.history != new.history:
        yield DefinitionChange(
            ChangeKind.REBUILD, ("what makes a state of its history",), rows=True
        )
    yield from _of_cache(old.cache, new.cache)


def _of_times(old: View, new: View) -> Iterator[DefinitionChange]:
    if names := frozenset(name for name, _ in {*old.times} ^ {*new.times}):
        said = f"times of changes: {_listed(names)}"
        yield DefinitionChange(ChangeKind.REBUILD, (said,), names)


def _of_events(old: EventsRef, new: EventsRef) -> Iterator[DefinitionChange]:
    if old.types != new.types:
        types = f"events: {_listed(old.types)} -> {_listed(new.types)}"
        yield DefinitionChange(ChangeKind.REBUILD, (types,), rows=True)
    was, now = old.versions or {}, new.versions or {}
    said = [
        f"event {name}: version {was[name]} -> {now[name]}"
        for name in sorted(was.keys() & now.keys())
        if was[name] != now[name]
    ]
    columns = {*(old.columns or ())} ^ {*(new.columns or ())}
    if columns and not said:
        said = [f"fields of its events: {_listed({column.name for column in columns})}"]
    if said:
        names = frozenset(column.name for column in columns)
        yield DefinitionChange(ChangeKind.REBUILD, tuple(said), names)


def _of_query(old: DerivedView, new: DerivedView) -> Iterator[DefinitionChange]:
    """What makes the rows of a view from those of others."""
    if old.inputs != new.inputs:
        reads = f"reads: {_listed(old.inputs)} -> {_listed(new.inputs)}"
        yield DefinitionChange(ChangeKind.REBUILD, (reads,), rows=True)
    if old.keys != new.keys:
        keys = f"keys: {', '.join(old.keys)} -> {', '.join(new.keys)}"
        yield DefinitionChange(ChangeKind.REBUILD, (keys,), rows=True)
    if is_function(old) != is_function(new):
        yield DefinitionChange(ChangeKind.REBUILD, ("it is made in another way",), rows=True)
    elif is_function(old) and old.text != new.text:
        known = part_told(old.text) is not None and part_told(new.text) is not None
        said = "its function" if known else "its function, or what stands beside it in its module"
        yield DefinitionChange(ChangeKind.REBUILD, (said,), rows=True)
    elif _query(old) != _query(new):
        yield DefinitionChange(ChangeKind.REBUILD, ("its query",), rows=True)
    yield from _of_cache(old.cache, new.cache)


def _query(view: DerivedView) -> tuple[object, ...]:
    return view.sql, view.pattern, view.percolation


def is_function(view: DerivedView) -> bool:
    """Whether a view is made by a function of the program."""
    return view.sql is None and view.pattern is None and view.percolation is None


def _of_cache(old: CacheOptions, new: CacheOptions) -> Iterator[DefinitionChange]:
    said = [
        f"{name} in the cache"
        for name in ("layout", "lookups", "counters", "leaderboards")
        if getattr(old, name) != getattr(new, name)
    ]
    if said:
        yield DefinitionChange(ChangeKind.REBUILD, tuple(said))
    elif old.ttl != new.ttl:
        yield DefinitionChange(ChangeKind.IN_PLACE, ("how long rows stay in the cache",))


def _withholding(view: AnyView) -> tuple[Expectation, ...]:
    return tuple(each for each in view.expectations if each.withholds)


def _listed(names: Any) -> str:
    return ", ".join(sorted(map(str, names))) or "none"


def _out(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_out(each) for each in value]
    said = _named(value)
    if said is None and not isinstance(value, str | int | float | bool | None):
        raise TypeError(f"a definition holds a {type(value).__name__}")
    return value if said is None else said


def _named(value: Any) -> dict[str, Any] | None:
    """What says of itself which it is; None of what JSON has itself."""
    if isinstance(value, Enum):
        return {_KIND: type(value).__name__, "value": value.value}
    if is_dataclass(value):
        names = [each.name for each in fields(value) if each.name not in _UNSAID]
        return {_KIND: type(value).__name__, **{n: _out(getattr(value, n)) for n in names}}
    if isinstance(value, frozenset):
        return {_KIND: "set", "values": [_out(each) for each in sorted(value)]}
    if isinstance(value, timedelta):
        return {_KIND: "time", "us": value // timedelta(microseconds=1)}
    if isinstance(value, Mapping):
        return {_KIND: "map", "items": [[_out(k), _out(v)] for k, v in value.items()]}
    return None


def _in(document: Any) -> Any:
    if isinstance(document, list):
        return tuple(_in(each) for each in document)
    if not isinstance(document, dict):
        return document
    given = dict(document)
    kind = given.pop(_KIND)
    if kind in _PLAIN:
        return _PLAIN[kind](given)
    known = _KNOWN[kind]
    if issubclass(known, Enum):
        return known(given["value"])
    said = {name: _in(value) for name, value in given.items()}
    if known is EventsRef:
        said["registry"] = declared_events
    return known(**said)


_PLAIN: Final[Mapping[str, Callable[[dict[str, Any]], Any]]] = {
    "set": lambda given: frozenset(_in(each) for each in given["values"]),
    "time": lambda given: timedelta(microseconds=given["us"]),
    "map": lambda given: {_in(key): _in(value) for key, value in given["items"]},
}
