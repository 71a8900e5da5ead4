"""Query: which events of the log are meant, by type and tag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from eventstore.errors import BatchRefusedError
from eventstore.model.names import check_category, check_tag, check_type

ITEMS_MAX: Final = 20
"""Each item of a condition costs an index look-up under a lock."""


@dataclass(frozen=True, slots=True)
class QueryItem:
    """Events of any of these types that carry all of these tags.

    Attributes:
        types: Event types; empty means every type.
        tags: Tags; empty means no tag is required.
    """

    types: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name in self.types:
            check_type(name)
        for tag in self.tags:
            check_tag(tag)

    def matches(self, type_: str, tags: frozenset[str]) -> bool:
        """Returns whether an event of this type with these tags matches."""
        return (not self.types or type_ in self.types) and self.tags <= tags


@dataclass(frozen=True, slots=True)
class Query:
    """A query for events that match any of its items; without items, for every event.

    Attributes:
        items: Alternatives.
        category: Only streams of this category, if given.
    """

    items: tuple[QueryItem, ...] = ()
    category: str | None = None

    def __post_init__(self) -> None:
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


def tagged(*tags: str, types: tuple[str, ...] = ()) -> Query:
    """Returns the query for events that carry all of `tags` and have one of `types`."""
    return Query((QueryItem(frozenset(types), frozenset(tags)),))


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
        if not self.query.items or any(not item.tags for item in self.query.items):
            raise BatchRefusedError(
                "each item of an append condition needs a tag",
                hint="tag the events with the subject of the rule, such as course:c1",
            )
        if self.query.category is not None:
            raise BatchRefusedError("an append condition takes tags, not a category")
        if type(self.after) is not int or self.after < 0:
            raise BatchRefusedError(
                "a condition needs a global position of 0 or more",
                detail=f"{self.after!r:.80}",
            )
