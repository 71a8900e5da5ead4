"""The query of an index, and its form for the engine.

A user's text consists of words without special characters, except that a single `*` matches every
row. With `syntax`, it is in the engine's simple query syntax.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from projections.errors import SearchFieldError, SearchQueryError
from projections.stores.opensearch.fields import exact_name, field_named

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from projections.stores.opensearch.fields import SearchField
    from projections.stores.opensearch.filter import FieldCondition

HITS_MAX: Final = 10_000
"""Greatest depth of a result (`index.max_result_window`)."""

TEXT_CHARACTERS_MAX: Final = 1_000
PARTS_MAX: Final = 64
FACET_VALUES: Final = 10
FRAGMENT_CHARACTERS: Final = 150
HIGHLIGHTED_CHARACTERS: Final = 1_000_000
"""Most characters of a text that are highlighted; the engine fails on longer ones."""

_TIMEOUT: Final = "20s"
_WORDS_ONLY: Final = "WHITESPACE"
_SYNTAX: Final = "AND|OR|NOT|PHRASE|PREFIX|PRECEDENCE|FUZZY|SLOP|WHITESPACE|ESCAPE"
_SHINGLES: Final = ("", "._2gram", "._index_prefix")
_DATES: Final = ("date", "date_nanos")
_CORRECTED_FIELDS: Final = 20
_CORRECTION: Final = {"size": 1, "suggest_mode": "missing", "min_word_length": 3}
_ALL: Final[dict[str, Any]] = {"match_all": {}}


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """A search.

    Attributes:
        text: Words; without any, every row matches.
        where: Conditions that rows must also meet.
        facets: Fields whose values are counted.
        sort: Fields to sort by, `name` or `name:desc`; default: by score.
        size: Maximum number of hits.
        start: Number of hits to skip.
        fields: Fields to search; default: all.
        every_word: Whether every word must match, instead of some.
        syntax: Whether the text is in the engine's simple query syntax: `red -"arm chair" tab*`.
        marks: Markup before and after a matched word.
    """

    text: str = ""
    where: tuple[FieldCondition, ...] = ()
    facets: tuple[str, ...] = ()
    sort: tuple[str, ...] = ()
    size: int = 10
    start: int = 0
    fields: tuple[str, ...] = ()
    every_word: bool = False
    syntax: bool = False
    marks: tuple[str, str] = ("<em>", "</em>")


def search_body(query: SearchQuery, fields: Mapping[str, SearchField], view: str) -> dict[str, Any]:
    """Returns the body of a search.

    Raises:
        SearchFieldError: A field is missing, or does not support this use.
        SearchQueryError: The query exceeds a limit, or a value does not have its field's type.
    """
    check_limits(query)
    searched = _searched(query, fields, view)
    body: dict[str, Any] = {
        "from": query.start,
        "size": query.size,
        "track_total_hits": True,
        "timeout": _TIMEOUT,
        "query": {
            "bool": {
                "must": [_words(query, searched)],
                "filter": filters(query.where, fields, view),
            }
        },
    }
    if query.sort:
        body["sort"] = [_sorted_by(each, fields, view) for each in query.sort]
        body["track_scores"] = bool(query.text)
    if query.facets:
        body["aggs"] = {name: _facet(name, fields, view) for name in query.facets}
    if query.text and query.text != "*":
        body["highlight"] = _highlight(searched, query.marks)
    return body


def suggest_body(
    query: SearchQuery, fields: Mapping[str, SearchField], view: str
) -> dict[str, Any]:
    """Returns the body that counts the values that complete a query's text, by field.

    Raises:
        SearchFieldError: A field is missing, or has no suggestions.
        SearchQueryError: The query exceeds a limit.
    """
    check_limits(query)
    searched = [field_named(fields, name, view) for name in query.fields] or list(fields.values())
    suggesting = [field.name for field in searched if field.suggest]
    if not suggesting:
        subject = f"field {query.fields[0]}" if query.fields else f"view {view}"
        raise SearchFieldError(
            f"{subject} has no suggestions",
            hint='SearchOptions(fields={"<field>": Text(suggest=True)}) in the view\'s declaration',
        )
    started = {name: _started(query.text, fields[name]) for name in suggesting}
    return {
        "size": 0,
        "timeout": _TIMEOUT,
        "query": {
            "bool": {
                "must": [{"bool": {"should": list(started.values())}}],
                "filter": filters(query.where, fields, view),
            }
        },
        "aggs": {
            name: {
                "filter": clause,
                "aggs": {"values": {"terms": {"field": fields[name].exact, "size": query.size}}},
            }
            for name, clause in started.items()
        },
    }


def correction_body(query: SearchQuery, fields: Mapping[str, SearchField]) -> dict[str, Any] | None:
    """Returns the body that asks for similar words; None if no field supports it."""
    corrected = [
        field.suggest or field.name
        for field in fields.values()
        if field.type == "text" and field.words and (field.suggest or not field.stemmed)
    ][:_CORRECTED_FIELDS]
    if not corrected:
        return None
    suggesters = {
        f"w{place}": {"term": {"field": name, **_CORRECTION}}
        for place, name in enumerate(corrected)
    }
    return {"size": 0, "timeout": _TIMEOUT, "suggest": {"text": query.text, **suggesters}}


def filters(
    where: Iterable[FieldCondition], fields: Mapping[str, SearchField], view: str
) -> list[dict[str, Any]]:
    """Converts conditions to the engine's form."""
    return [condition.clause(fields, view) for condition in where]


def check_limits(query: SearchQuery) -> None:
    """Refuses a query that exceeds a limit.

    Raises:
        SearchQueryError: It exceeds one.
    """
    if query.size < 0 or query.start < 0 or query.start + query.size > HITS_MAX:
        raise SearchQueryError(
            f"a search returns at most its first {HITS_MAX:,} hits",
            detail=f"from {query.start}, size {query.size}",
            hint="narrow it by conditions, or read the view's table: headwater query",
        )
    if len(query.text) > TEXT_CHARACTERS_MAX:
        raise SearchQueryError(
            f"the text of a search has more than {TEXT_CHARACTERS_MAX:,} characters"
        )
    parts = max(map(len, (query.where, query.facets, query.sort, query.fields)))
    if parts > PARTS_MAX:
        raise SearchQueryError(f"a search has more than {PARTS_MAX} conditions, facets or fields")


def _searched(
    query: SearchQuery, fields: Mapping[str, SearchField], view: str
) -> list[SearchField]:
    named = [field_named(fields, name, view) for name in query.fields]
    for field in named:
        if not field.words:
            raise SearchFieldError(
                f"view {view}: field {field.name} is not searchable by words",
                detail=field.type,
                hint=f"--where {field.name}=...",
            )
    return named or [field for field in fields.values() if field.words]


def _words(query: SearchQuery, searched: Sequence[SearchField]) -> dict[str, Any]:
    if not query.text.strip() or query.text.strip() == "*":
        return _ALL
    if not searched:
        return {"match_none": {}}
    return {
        "simple_query_string": {
            "query": query.text,
            "fields": [f"{field.name}^{field.boost:g}" for field in searched],
            "flags": _SYNTAX if query.syntax else _WORDS_ONLY,
            "default_operator": "and" if query.every_word or query.syntax else "or",
            "lenient": True,
        }
    }


def _sorted_by(text: str, fields: Mapping[str, SearchField], view: str) -> dict[str, Any]:
    name, colon, order = text.rpartition(":")
    if not colon or order not in ("asc", "desc"):
        name, order = text, "asc"
    exact = exact_name(field_named(fields, name, view), view, "to sort by")
    return {exact: {"order": order, "missing": "_last"}}


def _facet(name: str, fields: Mapping[str, SearchField], view: str) -> dict[str, Any]:
    field = field_named(fields, name, view)
    exact = exact_name(field, view, "as a facet")
    if field.type in _DATES:
        return {"auto_date_histogram": {"field": exact, "buckets": FACET_VALUES}}
    return {"terms": {"field": exact, "size": FACET_VALUES}}


def _highlight(searched: Iterable[SearchField], marks: tuple[str, str]) -> dict[str, Any]:
    return {
        "pre_tags": [marks[0]],
        "post_tags": [marks[1]],
        "fragment_size": FRAGMENT_CHARACTERS,
        "number_of_fragments": 2,
        "max_analyzer_offset": HIGHLIGHTED_CHARACTERS,
        "fields": {field.name: {} for field in searched},
    }


def _started(prefix: str, field: SearchField) -> dict[str, Any]:
    names = [f"{field.suggest}{shingle}" for shingle in _SHINGLES]
    return {
        "multi_match": {"query": prefix, "type": "bool_prefix", "operator": "and", "fields": names}
    }
