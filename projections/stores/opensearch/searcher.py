"""Searches a view, for applications: typed results, by the view's alias."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote

from foundation.suggestion import did_you_mean
from projections.definition.columns import DELETED_FIELD
from projections.errors import NoIndexError, SearchQueryError, SinkUnavailableError
from projections.stores.opensearch.client import NOT_FOUND, EngineRefusedError, SearchEngine
from projections.stores.opensearch.fields import fields_of, listed
from projections.stores.opensearch.filter import FieldCondition
from projections.stores.opensearch.query import (
    SearchQuery,
    correction_body,
    search_body,
    suggest_body,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

    from projections.stores.opensearch.fields import SearchField

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")
_BAD_REQUEST: Final = 400
_WHOLE: Final = "allow_partial_search_results=false"


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A row that matches.

    Attributes:
        key: Text of its key.
        score: Relevance; None if hits are sorted by a field and there is no text.
        row: Its columns as a document: numerics as decimal text.
        highlights: By column, fragments of its text with the matched words marked.
    """

    key: str
    score: float | None
    row: Mapping[str, Any]
    highlights: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FacetValue:
    """The number of matching rows with a value.

    Attributes:
        value: The value; for an instant, the start of the counted interval.
        rows: Number of rows.
    """

    value: str
    rows: int


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """The result of a search.

    Attributes:
        total: Number of matching rows, including those not returned.
        hits: The returned rows.
        facets: By field, its most frequent values; for instants, intervals in order.
        did_you_mean: A corrected spelling of a text without hits.
        took_ms: Time that the engine took.
    """

    total: int
    hits: tuple[SearchHit, ...]
    facets: Mapping[str, tuple[FacetValue, ...]]
    did_you_mean: str | None
    took_ms: int


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A suggested value.

    Attributes:
        field: The field.
        value: The value.
        rows: How many rows have it.
    """

    field: str
    value: str
    rows: int


class Searcher:
    """Searches the views of a project.

    Threads may share it. A row is found about a second after it is written.

    Args:
        url: OpenSearch, `http[s]://[user:password@]host:port`.
    """

    def __init__(self, url: str) -> None:
        self._engine = SearchEngine(url)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def search(self, view: str, query: SearchQuery | str) -> SearchAnswer:
        """Runs a search.

        Args:
            view: The view's name.
            query: The query; a plain text searches for its words.

        Raises:
            NoIndexError: No view of that name can be searched; the hint is the nearest name.
            SearchFieldError: A field is missing, or does not support this use.
            SearchQueryError: The query is invalid.
            SinkError: The engine does not answer.
        """
        parsed = SearchQuery(query) if isinstance(query, str) else query
        fields = self.fields(view)
        answer = self._answer(view, search_body(parsed, fields, view))
        total = int(answer["hits"]["total"]["value"])
        corrected = None if total or not parsed.text else self._corrected(view, parsed, fields)
        facets = answer.get("aggregations", {})
        return SearchAnswer(
            total,
            tuple(_hit(hit) for hit in answer["hits"]["hits"]),
            {name: tuple(map(_facet_value, facets[name]["buckets"])) for name in parsed.facets},
            corrected,
            int(answer["took"]),
        )

    def get(self, view: str, key: str) -> dict[str, Any] | None:
        """Returns the row of a key as last written, even before searches find it.

        Args:
            view: The view's name.
            key: Text of its key.

        Returns:
            Its columns as a document; None if there is no row.

        Raises:
            NoIndexError: No view of that name can be searched.
            SinkError: The engine does not answer.
        """
        if not _NAME.fullmatch(view):  # neither a pattern nor a list of names
            raise self._no_index(view)
        try:
            document = self._engine.request("GET", f"/{view}/_doc/{quote(key, safe='')}")
        except EngineRefusedError as error:
            if error.status != NOT_FOUND:
                raise
            self.fields(view)  # the row is missing, but the view exists
            return None
        row: dict[str, Any] = document["_source"]
        return None if row.pop(DELETED_FIELD, False) else row

    def refresh(self, view: str) -> None:
        """Makes all earlier writes visible to searches now, instead of within a second."""
        self.fields(view)
        self._engine.request("POST", f"/{view}/_refresh")

    def suggest(self, view: str, query: SearchQuery | str) -> list[Suggestion]:
        """Returns suggested values, most frequent first.

        Args:
            view: The view's name.
            query: The text so far; its last word may be unfinished. A `SearchQuery` also selects
                fields, filters rows and limits the number.

        Raises:
            NoIndexError: No view of that name can be searched.
            SearchFieldError: The fields, or all fields of the view, have no suggestions.
            SearchQueryError: The query is invalid.
            SinkError: The engine does not answer.
        """
        parsed = SearchQuery(query) if isinstance(query, str) else query
        body = suggest_body(parsed, self.fields(view), view)
        aggregations = self._answer(view, body)["aggregations"]
        suggestions = [
            Suggestion(name, str(bucket["key"]), int(bucket["doc_count"]))
            for name, of_field in aggregations.items()
            for bucket in of_field["values"]["buckets"]
        ]
        return sorted(suggestions, key=lambda each: -each.rows)[: parsed.size]

    def fields(self, view: str) -> dict[str, SearchField]:
        """Returns the fields of a view.

        Raises:
            NoIndexError: No view of that name can be searched.
        """
        mappings = {}
        if _NAME.fullmatch(view):  # neither a pattern nor a list of names
            with suppress(EngineRefusedError):
                mappings = self._engine.request("GET", f"/{view}/_mapping")
        for index in mappings.values():
            if DELETED_FIELD in index["mappings"].get("properties", {}):
                return fields_of(index["mappings"])
        raise self._no_index(view)

    def views(self) -> list[str]:
        """Returns the names of all views that can be searched."""
        aliases = self._engine.request("GET", "/_alias")
        return sorted({name for index in aliases.values() for name in index["aliases"]})

    def close(self) -> None:
        """Closes the connections."""
        self._engine.close()

    def _answer(self, view: str, body: dict[str, Any]) -> Any:
        try:
            answer = self._engine.request("POST", f"/{view}/_search?{_WHOLE}", body)
        except EngineRefusedError as error:
            if error.status == NOT_FOUND:
                raise self._no_index(view) from None
            if error.status != _BAD_REQUEST:
                raise
            raise SearchQueryError(
                f"view {view}: the engine refuses the search",
                detail=error.reason[:300],
                hint="use fewer words, or select fields with --in (fields=)",
            ) from None
        if answer["timed_out"]:
            raise SinkUnavailableError(f"view {view}: a search took too long")
        return answer

    def _corrected(
        self, view: str, query: SearchQuery, fields: Mapping[str, SearchField]
    ) -> str | None:
        body = correction_body(query, fields)
        if body is None:
            return None
        best: dict[tuple[int, int], tuple[float, int, str]] = {}
        for words in self._answer(view, body)["suggest"].values():
            for word in words:
                for option in word["options"]:
                    place = word["offset"], word["length"]
                    correction = option["score"], option["freq"], option["text"]
                    best[place] = max(best.get(place, correction), correction)
        text = query.text
        for (offset, length), (_, _, word) in sorted(best.items(), reverse=True):
            text = text[:offset] + word + text[offset + length :]
        return text if best else None

    def _no_index(self, view: str) -> NoIndexError:
        views = self.views()
        there = "views: " + listed(views) if views else "no view lives in search yet: headwater up"
        return NoIndexError(
            f"no view named {view[:80]} can be searched",
            hint=did_you_mean(view, views, there),
        )


def conditions(texts: Iterable[str]) -> tuple[FieldCondition, ...]:
    """Parses conditions such as `total>=10`.

    Raises:
        SearchQueryError: A condition has no field or no operator.
    """
    return tuple(map(FieldCondition.parse, texts))


def _hit(hit: Mapping[str, Any]) -> SearchHit:
    marked = {name: tuple(pieces) for name, pieces in hit.get("highlight", {}).items()}
    return SearchHit(hit["_id"], hit["_score"], hit["_source"], marked)


def _facet_value(bucket: Mapping[str, Any]) -> FacetValue:
    return FacetValue(str(bucket.get("key_as_string", bucket["key"])), int(bucket["doc_count"]))
