"""Mapping of a view's search index, derived from the kinds of its columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cdc.table import ColumnKind
from projections.errors import PlanError
from projections.plan import DELETED_FIELD

if TYPE_CHECKING:
    from projections.plan import ViewPlan

KEYWORD_CHARACTERS: Final = 8191
"""Longest text that is also indexed as one term: a term holds 32,766 bytes."""

_RESERVED: Final = frozenset(
    [
        "_id",
        "_index",
        "_source",
        "_type",
        "_routing",
        "_field_names",
        "_ignored",
        "_nested_path",
        "_seq_no",
        "_version",
        "_doc_count",
        "_feature",
        "_data_stream_timestamp",
        "_primary_term",
    ]
)

# An index is for finding: the document keeps each value exactly as it is, also where the index
# rounds it (numeric as double) or leaves it out (NaN, infinity, years beyond the engine's).
FIELDS: Final[dict[ColumnKind, dict[str, Any]]] = {
    ColumnKind.BOOLEAN: {"type": "boolean"},
    ColumnKind.INTEGER: {"type": "long"},
    ColumnKind.NUMERIC: {"type": "double", "ignore_malformed": True},
    ColumnKind.FLOAT: {"type": "double", "ignore_malformed": True},
    ColumnKind.TEXT: {
        "type": "text",
        "fields": {"keyword": {"type": "keyword", "ignore_above": KEYWORD_CHARACTERS}},
    },
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
    """Returns settings, mapping and alias of a view's physical index.

    The refresh interval is left unsaid: the engine then refreshes every second while somebody
    searches, and else before the next search is answered, which spares it most of its work.

    Raises:
        PlanError: A column's name belongs to the search engine.
    """
    taken = _RESERVED & set(plan.schema.by_name)
    if taken:
        raise PlanError(
            f"view {plan.name}: the search engine keeps the name {min(taken)} for itself",
            hint="leave search out of the view's stores, or rename the column",
        )
    properties = {column.name: FIELDS[column.kind] for column in plan.schema.columns}
    properties[DELETED_FIELD] = {"type": "boolean"}
    return {
        "settings": {
            "number_of_shards": 1,
            "auto_expand_replicas": "0-1",
            "mapping.total_fields.limit": max(1000, 3 * len(properties)),
        },
        "mappings": {"dynamic": "strict", "properties": properties},
        "aliases": {plan.name: {"filter": {"bool": {"must_not": {"term": {DELETED_FIELD: True}}}}}},
    }
