"""Bounds: which rows of a view are replayed, as a person says it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from uuid import UUID

import orjson

from cdc.table import ColumnKind
from projections.errors import BoundsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cdc.table import Column
    from projections.planning.view_plan import ViewPlan

_NAMED: Final = (ColumnKind.BOOLEAN, ColumnKind.INTEGER, ColumnKind.TEXT, ColumnKind.UUID)
"""Kinds whose values are written in one way only, so that who names one means all of them."""

_MANY_FORMS: Final = (ColumnKind.NUMERIC, ColumnKind.FLOAT)
_SHOWN_MAX: Final = 80


@dataclass(frozen=True, slots=True)
class Bounds:
    """A part of a view: rows that are within all that is given; None sets no bound.

    A row is told by what the log has of it, not by what a store has. Rows that came under other
    keys count as one: what is within bounds by one of its keys is so by all.

    Attributes:
        keys: Keys as JSON objects, such as `{"id":42}`.
        where: A column and a value that the row has or had in it: the rows of one tenant.
        since_us: Rows that changed then or later, microseconds since 1970, UTC. A row that was read
            from its table changed, as far as anybody knows, when that was sent.
        until_us: Rows that changed before. Whatever came of them later counts.
    """

    keys: frozenset[str] | None = None
    where: tuple[str, str] | None = None
    since_us: int | None = None
    until_us: int | None = None

    @property
    def timed(self) -> bool:
        """Whether there is a bound in time."""
        return self.since_us is not None or self.until_us is not None

    def check(self, plan: ViewPlan) -> None:
        """Refuses bounds that a view does not have.

        Raises:
            BoundsError: It is made of more than the newest row of each key; it has no such column
                or key; or there is no time between the two that are given.
        """
        if plan.events is not None or plan.history is not None or plan.append_only:
            raise BoundsError(
                f"view {plan.name} cannot be rebuilt in part",
                detail="of its rows more than the newest of each key count",
                hint=f"headwater view rebuild {plan.view} makes the whole of it",
            )
        key = [plan.schema.by_name[name] for name in plan.schema.key]
        if many := [column.name for column in key if column.kind in _MANY_FORMS]:
            raise BoundsError(
                f"view {plan.name} cannot be rebuilt in part",
                detail=f"equal values of {', '.join(many)} can be written in several ways",
                hint=f"headwater view rebuild {plan.view} makes the whole of it",
            )
        if self.timed and (self.since_us or 0) >= (self.until_us or 1 << 62):
            raise BoundsError("no time lies between since and until", detail=self._period())
        for _ in self.key_texts(plan):
            pass
        self.wanted(plan)

    def key_texts(self, plan: ViewPlan) -> Iterator[str]:
        """Yields the keys as records of a view have them, in every order that these may have.

        Raises:
            BoundsError: One is no key of the view.
        """
        by_name = plan.schema.by_name
        orders = {plan.schema.key, tuple(n for n in by_name if n in plan.schema.key)}
        for text in self.keys or ():
            fields = _key_of(plan, text)
            for order in orders:
                yield orjson.dumps({name: fields[name] for name in order}).decode()

    def wanted(self, plan: ViewPlan) -> str | None:
        """Returns the text of the value that rows are to have; None if any will do.

        Raises:
            BoundsError: The view has no such column, or none that has such values.
        """
        if self.where is None:
            return None
        name, text = self.where
        column = plan.schema.by_name.get(name)
        if column is None:
            raise BoundsError(
                f"view {plan.name} has no column {name[:_SHOWN_MAX]}",
                hint="columns: " + ", ".join(plan.schema.by_name),
            )
        if column.kind not in _NAMED or column.treatment is not None:
            raise BoundsError(
                f"rows of view {plan.name} cannot be told by column {name}",
                detail=f"type {column.type_name}"
                if column.treatment is None
                else "its values do not leave the source as they are",
                hint="by a text, a whole number, a uuid or a boolean",
            )
        return _text(column, text)

    def said(self) -> tuple[str, ...]:
        """Returns them in words, without any value of a row."""
        found = []
        if self.keys is not None:
            found.append(f"{len(self.keys)} keys")
        if self.where is not None:
            found.append(f"one value of {self.where[0]}")
        if self.timed:
            found.append(self._period())
        return tuple(found)

    def _period(self) -> str:
        since, until = (_moment(at) for at in (self.since_us, self.until_us))
        return " ".join(
            [f"changed since {since}"] * (since is not None)
            + [f"changed before {until}"] * (until is not None)
        )


def shown(row: Mapping[str, object], names: Sequence[str]) -> set[str]:
    """Returns the texts of a record's values in some columns, as `Bounds.wanted` has them."""
    return {_shown(row[name]) for name in names if row.get(name) is not None}


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _key_of(plan: ViewPlan, text: str) -> dict[str, object]:
    names = plan.schema.key
    hint = "such as " + json.dumps(dict.fromkeys(names, "…"), ensure_ascii=False)
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError:
        fields = None
    if not isinstance(fields, dict) or fields.keys() != {*names}:
        raise BoundsError(
            f"a key is not one of view {plan.name}",
            detail="columns " + ", ".join(names),
            hint=hint,
        )
    found: dict[str, object] = {}
    for name, value in fields.items():
        column = plan.schema.by_name[name]
        if column.kind not in _NAMED:
            raise BoundsError(
                f"rows of view {plan.name} cannot be told by their key",
                detail=f"{name} is of type {column.type_name}",
                hint="by --where, or by --since and --until",
            )
        if not _fits(column, value):
            raise BoundsError(
                f"a key is not one of view {plan.name}",
                detail=f"{name} is of type {column.type_name}",
                hint=hint,
            )
        uuid = column.kind is ColumnKind.UUID
        found[name] = _text(column, str(value)) if uuid else value
    return found


def _fits(column: Column, value: object) -> bool:
    if column.kind is ColumnKind.BOOLEAN:
        return isinstance(value, bool)
    if column.kind is ColumnKind.INTEGER:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, str)


def _text(column: Column, text: str) -> str:
    try:
        if column.kind is ColumnKind.UUID:
            return str(UUID(text))
        if column.kind is ColumnKind.INTEGER:
            return str(int(text))
    except ValueError:
        text = ""
    if column.kind is ColumnKind.BOOLEAN:
        text = text.lower()
    if column.kind is ColumnKind.TEXT or text in {"true", "false"}:
        return text
    raise BoundsError(f"a value is none of column {column.name}", detail=f"type {column.type_name}")


def _moment(at_us: int | None) -> str | None:
    if at_us is None:
        return None
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(" ", "seconds")
