"""CacheOptions: how the cache stores a view's rows, lookups, counters and leaderboards.

Patterns such as `customer:{customer_id}:orders` name lookups, counters and leaderboards. A pattern
consists of parts joined by `:`; a column name in braces is replaced by the row's value. A row in
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
"""Counts rows instead of adding up a column, as in `count(*)`."""

PATTERNS_MAX: Final = 16
"""Most patterns of one view: each adds server time to every write of a row."""

_PART: Final = re.compile(r"\{([^{}:]+)\}|[^{}:\s\\]+")
_SUMMED: Final = (ColumnKind.INTEGER, ColumnKind.NUMERIC)
_RANKED: Final = (*_SUMMED, ColumnKind.FLOAT, ColumnKind.TIMESTAMP, ColumnKind.TIMESTAMPTZ)


class CacheLayout(StrEnum):
    """How the cache stores a row."""

    DOCUMENT = "document"  # a string: one JSON object
    HASH = "hash"  # a hash: a field for each column that is not NULL


@dataclass(frozen=True, slots=True)
class NameTemplate:
    """A name with placeholders for values of a row.

    Attributes:
        text: The pattern as declared.
        parts: The parts between `:`, each with whether it is a column name.
    """

    text: str
    parts: tuple[tuple[str, bool], ...]

    @classmethod
    def parse(cls, text: str) -> NameTemplate:
        """Reads a pattern.

        Raises:
            DeclarationError: The text is not a pattern.
        """
        matches = [_PART.fullmatch(part) for part in text.split(":")]
        parts = tuple((m[1] or m[0], m[1] is not None) for m in matches if m is not None)
        if len(parts) < len(matches):
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
        """Returns the columns that the pattern names."""
        return tuple(part for part, column in self.parts if column)

    def fits(self, name: str) -> bool:
        """Returns whether the pattern can produce a name."""
        parts = name.replace("\\\\", "").replace("\\:", "").split(":")
        return len(parts) == len(self.parts) and all(
            column or part == text for (part, column), text in zip(self.parts, parts, strict=True)
        )

    def meets(self, other: NameTemplate) -> bool:
        """Returns whether two patterns can produce the same name."""
        return len(self.parts) == len(other.parts) and all(
            mine == theirs or column or other_column
            for (mine, column), (theirs, other_column) in zip(self.parts, other.parts, strict=True)
        )


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """How the cache stores a view.

    Attributes:
        layout: `document`, one JSON string for each row; or `hash`, with a field for each column.
        ttl: How long a row stays after its last write; None keeps rows. The version of an expired
            row is remembered, so an older change never restores it; lookups, counters and
            leaderboards do not expire.
        lookups: Patterns of sets that name rows by their keys: `customer:{customer_id}:orders`.
        counters: The values that each pattern counts: `*` for rows, or an integer or numeric
            column, whose values are added up exactly.
        leaderboards: The column by which each pattern ranks rows: a number or a timestamp. A value
            that a double cannot represent is refused.

    Raises:
        DeclarationError: A layout, time or pattern is invalid.
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
        """Returns the time to live of a row, milliseconds; 0 if rows do not expire."""
        return 0 if self.ttl is None else int(self.ttl.total_seconds() * 1000)

    @property
    def linked(self) -> bool:
        """Returns whether the view has lookups, counters or leaderboards."""
        return bool(self.lookups or self.counters or self.leaderboards)

    @property
    def form(self) -> dict[str, object]:
        """Returns the options as JSON values; after a change, all rows are written again."""
        return {
            "layout": str(self.layout),
            "ttl_ms": self.ttl_ms,
            "lookups": list(self.lookups),
            "counters": dict(self.counters),
            "leaderboards": dict(self.leaderboards),
        }

    def check(self, view: str, schema: TableSchema) -> None:
        """Checks that the view has the named columns, of usable types.

        Raises:
            PlanError: A column is missing, or its values cannot be added up or ranked.
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
"""One JSON document for each row, without expiry, lookups, counters or leaderboards."""
