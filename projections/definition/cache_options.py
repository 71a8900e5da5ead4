"""CacheOptions: how a view is laid out in the cache, and its structures beside rows there.

Lookups, counters and leaderboards are named by patterns, such as `customer:{customer_id}:orders`:
parts joined by `:`, in which a column's name in braces is replaced by the row's value. A row in
which such a column is NULL has no entry, since NULL equals nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from cdc.table import ColumnKind
from projections.errors import DeclarationError, PlanError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

    from cdc.table import TableSchema

ROWS: Final = "*"
"""What a counter counts that adds up no column: rows, as in `count(*)`."""

PATTERNS_MAX: Final = 16
"""Patterns of one view: each costs every write of a row some time on the server."""

_PART: Final = re.compile(r"\{([^{}:]+)\}|[^{}:\s\\]+")
_SUMMED: Final = (ColumnKind.INTEGER, ColumnKind.NUMERIC)
_RANKED: Final = (*_SUMMED, ColumnKind.FLOAT, ColumnKind.TIMESTAMP, ColumnKind.TIMESTAMPTZ)


class CacheLayout(StrEnum):
    """What a row is in the cache."""

    DOCUMENT = "document"  # a string: one JSON object
    HASH = "hash"  # a hash: a field for each column that is not NULL


@dataclass(frozen=True, slots=True)
class NameTemplate:
    """A name with places for values of a row.

    Attributes:
        text: As it was declared.
        parts: What `:` separates; whether each is a column's name.
    """

    text: str
    parts: tuple[tuple[str, bool], ...]

    @classmethod
    def parse(cls, text: str) -> NameTemplate:
        """Reads a pattern.

        Raises:
            DeclarationError: It is none.
        """
        found = [_PART.fullmatch(part) for part in text.split(":")]
        parts = tuple((m[1] or m[0], m[1] is not None) for m in found if m is not None)
        if len(parts) < len(found):
            raise DeclarationError(
                "a cache pattern is invalid",
                detail=text[:80],
                hint=(
                    "use parts joined by colons, each a word or a column: customer:{customer_id}"
                ),
            )
        return cls(text, parts)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that it names."""
        return tuple(part for part, column in self.parts if column)

    def fits(self, name: str) -> bool:
        """Tells whether a name can be what it comes to."""
        parts = name.replace("\\\\", "").replace("\\:", "").split(":")
        return len(parts) == len(self.parts) and all(
            column or part == found for (part, column), found in zip(self.parts, parts, strict=True)
        )

    def meets(self, other: NameTemplate) -> bool:
        """Tells whether two patterns can come to the same name."""
        return len(self.parts) == len(other.parts) and all(
            mine == theirs or column or other_column
            for (mine, column), (theirs, other_column) in zip(self.parts, other.parts, strict=True)
        )


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """How a view is kept in the cache.

    Attributes:
        layout: `document`, one JSON string for each row; or `hash`, with a field for each column.
        ttl: How long a row stays after it was last written. Its version is remembered for good, so
            an older change never comes back in its place; lookups, counters and leaderboards know
            nothing of it. None keeps rows.
        lookups: Patterns of sets that name rows by their keys: `customer:{customer_id}:orders`.
        counters: By pattern what is counted: `*` for rows, else the integer or numeric column whose
            values are added up, exactly.
        leaderboards: By pattern the column by which rows are ranked: a number or a timestamp. A
            value that a double does not hold is refused.

    Raises:
        DeclarationError: A layout, time or pattern cannot be used.
    """

    layout: str = CacheLayout.DOCUMENT
    ttl: timedelta | None = None
    lookups: Sequence[str] = field(default=(), hash=False)
    counters: Mapping[str, str] = field(default_factory=dict, hash=False)
    leaderboards: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.layout not in set(CacheLayout):
            hint = "layouts are " + ", ".join(CacheLayout)
            raise DeclarationError(f"unknown cache layout {self.layout}", hint=hint)
        if self.ttl is not None and self.ttl_ms <= 0:
            raise DeclarationError("the TTL of cache rows must be positive", detail=str(self.ttl))
        if isinstance(self.lookups, str):
            raise DeclarationError("lookups must be a list of patterns", detail=self.lookups[:80])
        for patterns in (self.lookups, self.counters, self.leaderboards):
            _check_apart([NameTemplate.parse(text) for text in patterns])
        if len(self.lookups) + len(self.counters) + len(self.leaderboards) > PATTERNS_MAX:
            raise DeclarationError(f"a view has more than {PATTERNS_MAX} cache patterns")

    @property
    def ttl_ms(self) -> int:
        """How long a row lives, milliseconds; 0 for good."""
        return 0 if self.ttl is None else int(self.ttl.total_seconds() * 1000)

    @property
    def linked(self) -> bool:
        """Whether anything is kept beside rows."""
        return bool(self.lookups or self.counters or self.leaderboards)

    @property
    def form(self) -> dict[str, object]:
        """The options as JSON values; if they change, all rows must be written again."""
        return {
            "layout": str(self.layout),
            "ttl_ms": self.ttl_ms,
            "lookups": list(self.lookups),
            "counters": dict(self.counters),
            "leaderboards": dict(self.leaderboards),
        }

    def check(self, view: str, schema: TableSchema) -> None:
        """Checks that a view's columns are what is named here.

        Raises:
            PlanError: A column is missing, or its values can be neither added up nor ranked.
        """
        for text in (*self.lookups, *self.counters, *self.leaderboards):
            for name in NameTemplate.parse(text).columns:
                _kind(view, schema, name)
        for name in set(self.counters.values()) - {ROWS}:
            kind = _kind(view, schema, name)
            scale = schema.by_name[name].scale
            if kind not in _SUMMED or (kind is ColumnKind.NUMERIC and (scale is None or scale < 0)):
                raise PlanError(
                    f"view {view}: a counter cannot sum column {name}",
                    detail=f"type {schema.by_name[name].type_name}",
                    hint="only integers, and numerics with a scale, can be summed exactly",
                )
        for name in set(self.leaderboards.values()):
            if _kind(view, schema, name) not in _RANKED:
                raise PlanError(
                    f"view {view}: a leaderboard cannot rank by column {name}",
                    detail=f"type {schema.by_name[name].type_name}",
                    hint="rows are ranked by numbers and timestamps",
                )


def _check_apart(patterns: Sequence[NameTemplate]) -> None:
    for place, pattern in enumerate(patterns):
        for other in patterns[:place]:
            if pattern.meets(other):
                raise DeclarationError(
                    "two cache patterns can produce the same key",
                    detail=f"{other.text} and {pattern.text}"[:160],
                )


def _kind(view: str, schema: TableSchema, name: str) -> ColumnKind:
    column = schema.by_name.get(name)
    if column is None:
        raise PlanError(
            f"view {view}: the cache options name column {name[:80]}, which the view lacks",
            hint="columns: " + ", ".join(schema.by_name),
        )
    return column.kind


DEFAULT_OPTIONS: Final = CacheOptions()
"""One JSON document for each row, for good, and nothing beside it."""
