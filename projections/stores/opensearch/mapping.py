"""Mapping of a view's search index: from the kinds of its columns, and its search options.

The field's `meta` records the column's kind, which decides whether stored values still have the
right form, and its weight in a search.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from cdc.table import ColumnKind
from projections.definition.columns import DELETED_FIELD
from projections.definition.search_options import Keyword, Stored, Text, refuse_unsearchable
from projections.stores.opensearch.fields import BOOST, KIND

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cdc.table import Column
    from projections.definition.search_options import SearchOptions
    from projections.planning.view_plan import Nested, ViewPlan

KEYWORD_CHARACTERS: Final = 8191
"""Longest text that is also indexed as one term: a term holds 32,766 bytes."""

FIELDS_LEAST: Final = 1000

LIVE: Final = {"bool": {"must_not": {"term": {DELETED_FIELD: True}}}}
"""Filter of the alias that readers use: excludes markers of deletes."""

_EXACT: Final[dict[str, Any]] = {"type": "keyword", "ignore_above": KEYWORD_CHARACTERS}

# The index is only for finding: the document keeps each value exactly, even where the index
# rounds it (numeric as double) or omits it (NaN, infinity, years beyond the engine's).
FIELDS: Final[dict[ColumnKind, dict[str, Any]]] = {
    ColumnKind.BOOLEAN: {"type": "boolean"},
    ColumnKind.INTEGER: {"type": "long"},
    ColumnKind.NUMERIC: {"type": "double", "ignore_malformed": True},
    ColumnKind.FLOAT: {"type": "double", "ignore_malformed": True},
    ColumnKind.TEXT: {"type": "text", "fields": {"keyword": _EXACT}},
    ColumnKind.UUID: {"type": "keyword"},
    ColumnKind.JSON: {"type": "text"},
    ColumnKind.DATE: {"type": "date", "format": "strict_date", "ignore_malformed": True},
    ColumnKind.TIME: {"type": "keyword"},
    ColumnKind.TIMESTAMP: {
        "type": "date_nanos",
        "format": "strict_date_optional_time_nanos",
        "ignore_malformed": True,
    },
    ColumnKind.TIMESTAMPTZ: {
        "type": "date_nanos",
        "format": "strict_date_optional_time_nanos",
        "ignore_malformed": True,
    },
    ColumnKind.BYTES: {"type": "keyword", "index": False, "doc_values": False},
}


def index_body(plan: ViewPlan) -> dict[str, Any]:
    """Returns settings and mapping of a view's physical index, and its alias if it is active.

    The refresh interval is not set: the engine then refreshes every second while searches arrive,
    and otherwise before it answers the next search, which avoids most refreshes.

    Raises:
        PlanError: The search engine cannot have a field of a column's name.
    """
    refuse_unsearchable(plan.name, plan.field_names())
    options = plan.search
    properties = _properties(plan.schema.columns, plan.nested, options)
    properties[DELETED_FIELD] = {"type": "boolean"}
    settings: dict[str, Any] = {
        "number_of_shards": 1,
        "auto_expand_replicas": "0-1",
        "mapping.total_fields.limit": fields_limit(properties),
    }
    if options.analysis:
        settings["analysis"] = dict(options.analysis)
    return {
        "settings": settings,
        "mappings": {"dynamic": "strict", "properties": properties},
        "aliases": {plan.view: {"filter": LIVE}} if plan.active else {},
    }


def fields_limit(properties: dict[str, Any]) -> int:
    """Returns the limit of fields for an index with these; the engine's own limit is 1,000.

    Subfields count as well: the exact text, and four for suggestions.
    """
    return max(FIELDS_LEAST, 6 * _count(properties))


def _count(properties: Mapping[str, Any]) -> int:
    return sum(1 + _count(field.get("properties", {})) for field in properties.values())


def _properties(
    columns: Iterable[Column],
    nested: Mapping[str, Nested],
    options: SearchOptions,
    above: str = "",
) -> dict[str, Any]:
    return {
        column.name: _nested_mapping(nested[column.name], options, above + column.name)
        if column.name in nested
        else field_mapping(column, options, above)
        for column in columns
    }


def _nested_mapping(nested: Nested, options: SearchOptions, path: str) -> dict[str, Any]:
    if nested.value is not None:  # the engine has no list type: any field can have several values
        return field_mapping(replace(nested.value, name=path), options)
    if not nested.columns:
        return {"type": "object", "enabled": False}  # the names within are data
    mapping: dict[str, Any] = {
        "properties": _properties(nested.columns, nested.inner, options, f"{path}.")
    }
    if nested.many:
        # each struct is searched as a unit, and its words like those of any other field
        mapping |= {"type": "nested", "include_in_root": True}
    return mapping


def field_mapping(column: Column, options: SearchOptions, above: str = "") -> dict[str, Any]:
    """Returns the mapping of a column, in the form in which the engine returns it."""
    option = options.fields.get(above + column.name)
    meta = {KIND: str(column.kind)}
    if isinstance(option, Text | Keyword) and option.boost != 1:
        meta[BOOST] = f"{option.boost:g}"
    if option is None and column.kind is ColumnKind.TEXT:
        option = Text()
    if isinstance(option, Text):
        mapping = _text(option, options.analyzer)
    elif isinstance(option, Keyword):
        mapping = dict(_EXACT)
        if option.lowercase:
            mapping["normalizer"] = "lowercase"
    else:
        mapping = dict(FIELDS[column.kind])
        if column.kind is ColumnKind.JSON and options.analyzer is not None:
            mapping["analyzer"] = options.analyzer
        if isinstance(option, Stored):
            mapping = _stored(mapping)
    return {**mapping, "meta": meta}


def _text(option: Text, analyzer: str | None) -> dict[str, Any]:
    mapping: dict[str, Any] = {"type": "text"}
    if (name := option.analyzer or analyzer) is not None:
        mapping["analyzer"] = name
    if option.search_analyzer is not None:
        mapping.setdefault("analyzer", "standard")
        mapping["search_analyzer"] = option.search_analyzer
    below: dict[str, Any] = {}
    if option.exact:
        below["keyword"] = dict(_EXACT)
    if option.suggest:
        below["suggest"] = {
            "type": "search_as_you_type",
            "doc_values": False,
            "max_shingle_size": 2,
        }
    return {**mapping, "fields": below} if below else mapping


def _stored(mapping: dict[str, Any]) -> dict[str, Any]:
    if mapping["type"] == "text":
        return {"type": "text", "index": False}
    return {**mapping, "index": False, "doc_values": False}
