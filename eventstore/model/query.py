"""Query: which events of the log are meant, by type and tag."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from eventstore.errors import BatchRefusedError, WrongKindError
from eventstore.model.callables import check_kind
from eventstore.model.names import check_category, check_names, check_tag, check_type

POSITION_MAX: Final = 2**63 - 1
"""Largest global position that the log can give."""

ITEMS_MAX: Final = 20
"""Each item of a condition costs an index look-up under a lock."""


@dataclass(frozen=True, slots=True)
class QueryItem:
    """Events of any of these types that carry all of these tags.

    Attributes:
        types: Event types; empty means every type.
        tags: Tags; empty means no tag is required.

    Raises:
        WrongKindError: The types or tags are one str instead of a collection.
        NameRefusedError: A type or tag is invalid.
    """

    types: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        types = check_names("the types of a query", self.types, check_type)
        object.__setattr__(self, "types", types)
        object.__setattr__(self, "tags", check_names("the tags of a query", self.tags, check_tag))

    def matches(self, type_: str, tags: frozenset[str]) -> bool:
        """Returns whether an event of this type with these tags matches."""
        return (not self.types or type_ in self.types) and self.tags <= tags


@dataclass(frozen=True, slots=True)
class Query:
    """A query for events that match any of its items; without items, for every event.

    Attributes:
        items: Alternatives.
        category: Only streams of this category, if given.

    Raises:
        WrongKindError: The items are no `QueryItem`s.
        BatchRefusedError: There are too many items.
        NameRefusedError: The category is invalid.
    """

    items: tuple[QueryItem, ...] = ()
    category: str | None = None

    def __post_init__(self) -> None:
        hint = 'such as tagged("customer:c1"), or Query((QueryItem(tags=frozenset({"c:1"})),))'
        given: object = self.items
        if not isinstance(given, Iterable):
            raise WrongKindError(
                "the items of a query must be a tuple", detail=type(given).__qualname__, hint=hint
            )
        object.__setattr__(self, "items", tuple(given))
        for item in self.items:
            check_kind("an item of a query", item, QueryItem, hint)
        if len(self.items) > ITEMS_MAX:
            raise BatchRefusedError(
                f"a query has {ITEMS_MAX} items at most", detail=f"{len(self.items)} items"
            )
        if self.category is not None:
            check_category(self.category)

    def matches(self, category: str, type_: str, tags: frozenset[str]) -> bool:
        """Returns whether such an event matches."""
        if self.category is not None and category != self.category:
            return False
        return not self.items or any(item.matches(type_, tags) for item in self.items)


EVERYTHING: Final = Query()


def tagged(*tags: str, types: Iterable[str] = ()) -> Query:
    """Returns the query for events that carry all of `tags` and have one of `types`.

    Raises:
        WrongKindError: The types are one str instead of a collection.
        NameRefusedError: A type or tag is invalid.
    """
    # QueryItem checks both, and makes a frozenset of any collection
    return Query((QueryItem(types, tags),))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of an append: no event matches `query` after position `after`.

    The dynamic consistency boundary: a decision depends on a query instead of a stream. Every item
    needs a tag, because writers are serialised by tag during the check.

    Attributes:
        query: The events that the decision read.
        after: Global position up to which it read them.
    """

    query: Query
    after: int

    def __post_init__(self) -> None:
        check_kind("the query of a condition", self.query, Query, 'such as tagged("customer:c1")')
        if not self.query.items or any(not item.tags for item in self.query.items):
            raise BatchRefusedError(
                "each item of an append condition needs a tag",
                hint="tag the events with the subject of the rule, such as course:c1",
            )
        if self.query.category is not None:
            raise BatchRefusedError("an append condition takes tags, not a category")
        if type(self.after) is not int or not 0 <= self.after <= POSITION_MAX:
            raise BatchRefusedError(
                "a condition needs a global position of 0 or more",
                detail=f"{self.after!r:.80}",
            )
