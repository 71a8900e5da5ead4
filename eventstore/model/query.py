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
        tags: Tags; empty means no tag is asked for.
    """

    types: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name in self.types:
            check_type(name)
        for tag in self.tags:
            check_tag(tag)

    def matches(self, type_: str, tags: frozenset[str]) -> bool:
        """Returns whether an event of this type and these tags is meant."""
        return (not self.types or type_ in self.types) and self.tags <= tags


@dataclass(frozen=True, slots=True)
class Query:
    """Events that any of its items means; no items means every event.

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
        """Returns whether such an event is meant."""
        if self.category is not None and category != self.category:
            return False
        return not self.items or any(item.matches(type_, tags) for item in self.items)


EVERYTHING: Final = Query()


def tagged(*tags: str, types: tuple[str, ...] = ()) -> Query:
    """Returns the query for events that carry all of `tags` and have one of `types`."""
    return Query((QueryItem(frozenset(types), frozenset(tags)),))


@dataclass(frozen=True, slots=True)
class Condition:
    """An append is refused if an event that `query` means came after `after`.

    The dynamic consistency boundary: what a decision depends on is a query, not a stream. Every
    item needs a tag, because a tag is what writers are held back by for the moment of the check.

    Attributes:
        query: What the decision has looked at.
        after: Global position up to which it has looked.
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
