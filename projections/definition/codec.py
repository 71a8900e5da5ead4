"""View definitions as JSON: a stored definition lets a view continue after its declaration changes.

A stored definition is a JSON document that names the class of each declared value. `decoded`
creates only the classes listed here, so an altered document can name a wrong column but cannot run
code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import timedelta
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import orjson

from cdc.table import Column, ColumnKind, TableName
from eventstore.serialization.registry import declared as declared_events
from projections.definition.cache_options import CacheLayout, CacheOptions
from projections.definition.expectations.expectation import Expectation, OnFail
from projections.definition.operators.pattern import Pattern, PatternQuery, Step
from projections.definition.operators.standing_query import Percolation
from projections.definition.operators.time_bounds import Extent, Span
from projections.definition.search_options import Keyword, SearchOptions, Stored, Text
from projections.definition.views import (
    ChangeTime,
    DerivedView,
    EventsRef,
    EventsView,
    HistoryColumns,
    MirrorView,
    SchemaPolicy,
    Store,
)
from projections.errors import DeclarationError, DefinitionUnreadableError

if TYPE_CHECKING:
    from projections.definition.views import AnyView

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
"""Fields that the program computes; they are not part of a declaration."""


def encoded(view: AnyView) -> Any:
    """Returns a view's definition as a JSON document.

    A function is represented by its digest only, since its code is the program's own.

    Raises:
        PlanError: A view's events are not declared, or disagree on a column.
    """
    if isinstance(view, EventsView):
        view = replace(view, events=view.events.as_declared())
    return _out(view)


def decoded(document: Any) -> AnyView:
    """Returns the view that a document defines.

    Raises:
        DefinitionUnreadableError: Another version of this program stored it, or it was altered.
    """
    try:
        view = _in(document)
    except (KeyError, TypeError, ValueError, DeclarationError) as error:
        raise DefinitionUnreadableError(
            "a stored definition of a view cannot be read",
            detail=type(error).__name__,
            hint="declare the view as before, or drop that version with headwater view drop",
        ) from None
    if not isinstance(view, MirrorView | EventsView | DerivedView):
        raise DefinitionUnreadableError("a stored definition does not describe a view")
    return view


def digest(view: AnyView) -> str:
    """Returns a digest of a definition, without the view's name."""
    document = {**encoded(view), "name": ""}
    document.pop("span", None)  # follows from the query; earlier versions did not store it
    if isinstance(view, EventsView) and not view.times:
        del document["times"]  # likewise
    return hashlib.sha256(orjson.dumps(document, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def _out(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_out(each) for each in value]
    encoded_value = _named(value)
    if encoded_value is None and not isinstance(value, str | int | float | bool | None):
        raise TypeError(f"a definition contains a {type(value).__name__}")
    return value if encoded_value is None else encoded_value


def _named(value: Any) -> dict[str, Any] | None:
    """Returns the class name of a value; None for a plain JSON value."""
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
    arguments = {name: _in(value) for name, value in given.items()}
    if known is EventsRef:
        arguments["registry"] = declared_events
    return known(**arguments)


_PLAIN: Final[Mapping[str, Callable[[dict[str, Any]], Any]]] = {
    "set": lambda given: frozenset(_in(each) for each in given["values"]),
    "time": lambda given: timedelta(microseconds=given["us"]),
    "map": lambda given: {_in(key): _in(value) for key, value in given["items"]},
}
