"""Fields of an index, as searches use them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from foundation.suggestion import did_you_mean
from projections.definition.columns import DELETED_FIELD
from projections.errors import SearchFieldError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


KIND: Final = "kind"
BOOST: Final = "boost"
"""Keys of a field's `meta`: the kind of its column, and its boost."""

_TEXT: Final = "text"
_LISTED_MAX: Final = 12


@dataclass(frozen=True, slots=True)
class SearchField:
    """One field.

    Attributes:
        name: The column.
        type: The engine's type.
        exact: Name under which its whole value is indexed; None if it is not.
        suggest: Name under which unfinished words find it; None if they do not.
        words: Whether a query's words are searched for in it.
        stemmed: Whether its analyzer is not the default, so that terms need not be whole words.
        boost: Weight of a word found in it.
    """

    name: str
    type: str
    exact: str | None
    suggest: str | None
    words: bool
    stemmed: bool
    boost: float


def fields_of(mappings: Mapping[str, Any]) -> dict[str, SearchField]:
    """Returns the fields of an index by name, from its mapping."""
    properties = mappings.get("properties", {})
    return {
        name: _field(name, definition)
        for name, definition in _definitions(properties)
        if name != DELETED_FIELD
    }


def _definitions(
    properties: Mapping[str, Any], above: str = ""
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields all fields; those within structs as `items.name`."""
    for name, definition in properties.items():
        if "properties" in definition:
            yield from _definitions(definition["properties"], f"{above}{name}.")
        else:
            yield above + name, definition


def field_named(fields: Mapping[str, SearchField], name: str, view: str) -> SearchField:
    """Returns a field.

    Raises:
        SearchFieldError: No field has that name; the hint is the nearest name.
    """
    field = fields.get(name)
    if field is not None:
        return field
    raise SearchFieldError(
        f"view {view} has no field {name[:80]}",
        hint=did_you_mean(name, fields, "fields: " + listed(fields)),
    )


def exact_name(field: SearchField, view: str, purpose: str) -> str:
    """Returns the name under which a field is filtered, counted and sorted.

    Raises:
        SearchFieldError: Its whole value is not indexed.
    """
    if field.exact is None:
        raise SearchFieldError(
            f"view {view}: field {field.name} cannot be used {purpose}",
            detail="only its words are indexed, not its whole value"
            if field.words
            else "not indexed",
            hint="use Keyword() or Text() for it in the view's search options",
        )
    return field.exact


def listed(names: Iterable[str]) -> str:
    """Joins names for an error's hint."""
    listed = list(names)
    more = f", and {len(listed) - _LISTED_MAX} more" if len(listed) > _LISTED_MAX else ""
    return ", ".join(listed[:_LISTED_MAX]) + more


def _field(name: str, definition: Mapping[str, Any]) -> SearchField:
    kind, indexed = str(definition.get("type", "object")), definition.get("index", True)
    below = definition.get("fields", {})
    exact = name if kind != _TEXT else f"{name}.keyword" if "keyword" in below else None
    return SearchField(
        name,
        kind,
        exact if indexed else None,
        f"{name}.suggest" if "suggest" in below else None,
        bool(indexed) and kind in (_TEXT, "keyword"),
        definition.get("analyzer", "standard") != "standard",
        float(definition.get("meta", {}).get(BOOST, 1)),
    )
