"""How the search engine indexes a view's fields, where a view overrides the default."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cdc.table import ColumnKind
from foundation.suggestion import did_you_mean
from projections.errors import DeclarationError, PlanError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cdc.table import Column, TableSchema

_WORDS: Final = frozenset((ColumnKind.TEXT, ColumnKind.JSON, ColumnKind.UUID))
_TERMS: Final = _WORDS | {ColumnKind.TIME, ColumnKind.INTEGER}


_RESERVED_FIELDS: Final = frozenset(
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


@dataclass(frozen=True, slots=True)
class Text:
    """A full-text field.

    Attributes:
        analyzer: Splits text into words: one of the engine's analyzers (`english`, `standard`), or
            one from `SearchOptions.analysis`. None uses the view's, otherwise the engine's default.
        search_analyzer: Splits the words of a query; None uses `analyzer`.
        suggest: Whether an unfinished word finds its values (`--suggest`).
        exact: Whether the value is also indexed as one term, for filters, facets and sorting.
        boost: Weight of a match in this field; 1 is the default of all fields.
    """

    analyzer: str | None = None
    search_analyzer: str | None = None
    suggest: bool = False
    exact: bool = True
    boost: float = 1.0

    def __post_init__(self) -> None:
        _check_boost(self.boost)
        if self.suggest and not self.exact:
            raise DeclarationError(
                "a field with exact=False cannot suggest values",
                hint="use Text(suggest=True) without exact=False",
            )


@dataclass(frozen=True, slots=True)
class Keyword:
    """A field indexed as one term, for exact match, filters, facets and sorting.

    Attributes:
        lowercase: Whether matching ignores case.
        boost: Weight of a query word that equals the whole value.
    """

    lowercase: bool = False
    boost: float = 1.0

    def __post_init__(self) -> None:
        _check_boost(self.boost)


@dataclass(frozen=True, slots=True)
class Stored:
    """A field that is stored in the document but not indexed."""


FieldOption = Text | Keyword | Stored


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How a view is indexed for search; the default follows from the columns' types.

    Attributes:
        fields: By column.
        analyzer: Analyzer of texts that name none.
        analysis: The view's own analyzers, tokenizers and filters, in the engine's form:
            `{"analyzer": {"folded": {"tokenizer": "standard", "filter": ["asciifolding"]}}}`.
    """

    fields: Mapping[str, FieldOption] = field(default_factory=dict)
    analyzer: str | None = None
    analysis: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, option in self.fields.items():
            if not isinstance(option, FieldOption):
                raise DeclarationError(
                    f"field {name} has an invalid search option",
                    detail=type(option).__name__,
                    hint="Text(...), Keyword(...) or Stored()",
                )
        try:
            json.dumps(self.analysis)
        except (TypeError, ValueError):
            hint = "texts, numbers, lists and dictionaries, as the engine's documentation has them"
            raise DeclarationError("analysis is not in the engine's format", hint=hint) from None

    def check(self, view: str, schema: TableSchema) -> None:
        """Checks that the options fit the view's columns.

        Raises:
            PlanError: A column is missing, or an option does not fit its type.
        """
        for name, option in self.fields.items():
            column = schema.by_name.get(name)
            if column is None:
                raise PlanError(
                    f"view {view}: the search options name a column that the view lacks",
                    detail=name,
                    hint=did_you_mean(
                        name, schema.by_name, f"the view's columns are those of {schema.table}"
                    ),
                )
            if not _fits(option, column):
                raise PlanError(
                    f"view {view}: {type(option).__name__} does not fit column {name}",
                    detail=column.type_name,
                    hint="numbers, times and booleans need no option; use Stored() for "
                    "fields that are not searched",
                )


def unsearchable(columns: Iterable[str]) -> str | None:
    """Returns the first column name that cannot be a field of the search engine; None if all can.

    The engine reads a dot in a field name as a path: `b.c` is field `c` within `b`, so `b` cannot
    also be a text, and a name that begins or ends with a dot has an empty part.
    """
    return next(
        (name for name in columns if name in _RESERVED_FIELDS or "." in name or not name.strip()),
        None,
    )


def refuse_unsearchable(view: str, columns: Iterable[str]) -> None:
    """Refuses columns that cannot be fields of the search engine.

    Raises:
        PlanError: There is such a column; the detail names it.
    """
    name = unsearchable(columns)
    if name is None:
        return
    reserved = name in _RESERVED_FIELDS
    raise PlanError(
        f"view {view}: the search engine cannot index column {name!r}",
        detail="the engine reserves this name"
        if reserved
        else "in the engine a dot separates an object from its field"
        if "." in name
        else "the engine refuses a blank name",
        hint='leave search out of the view\'s stores, as in to=["table", "cache"]; leave the '
        "column out of the view; or rename it",
    )


DERIVED: Final = SearchOptions()
"""Default options: every field follows from its column's type."""


def _fits(option: FieldOption, column: Column) -> bool:
    if isinstance(option, Text):
        return column.kind in _WORDS
    if isinstance(option, Keyword):
        return column.kind in (_WORDS if option.lowercase else _TERMS)
    return True


def _check_boost(boost: float) -> None:
    if not (math.isfinite(boost) and boost > 0):
        raise DeclarationError("a boost must be a number above 0", detail=str(boost))
