"""CacheForm: encodes a row for the cache: its value, and entries in sorted sets and counters."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from cdc.table import ColumnKind
from projections.changes.documents import key_part
from projections.definition.cache_options import ROWS, CacheLayout, NameTemplate
from projections.definition.columns import VERSION_COLUMN
from projections.errors import UnholdableValueError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cdc.table import Column
    from cdc.values import Json
    from projections.planning.view_plan import ViewPlan

Fields = dict[str, "Json"]
"""A row as a document."""

PREFIX: Final = f'{{"{VERSION_COLUMN}":"'
"""Start of a row's JSON; the digits of its version follow, which the script reads in place."""

DIGITS: Final = 19
"""Digits of the greatest 63-bit version: versions are compared as text of equal length."""

ROW_SIZE_MAX: Final = 64 * 1024 * 1024
"""Most characters of one row. The server allows 512 MB, but such a row blocks all clients.
"""

_SUM_MAX: Final = (1 << 63) - 1
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001  # of UTC, as documents have it
_MICROSECOND: Final = timedelta(microseconds=1)
_JSON_KINDS: Final = (
    ColumnKind.BOOLEAN,
    ColumnKind.INTEGER,
    ColumnKind.FLOAT,
    ColumnKind.NESTED,
)
_WORDS: Final = ("NaN", "Infinity", "-Infinity")

LOOKUP: Final = "l"
COUNTER: Final = "c"
LEADERBOARD: Final = "b"


class DeclaredIndex(NamedTuple):
    """A declared lookup, counter or leaderboard.

    Attributes:
        kind: Its kind, as the script names it.
        pattern: Pattern of its names.
        column: Column to rank by or to add up; `*` for a counter of rows.
    """

    kind: str
    pattern: NameTemplate
    column: str


class CacheForm:
    """Encodes the rows of one view for the cache, and decodes them.

    Attributes:
        declared: The view's sorted sets and counters.
    """

    def __init__(self, plan: ViewPlan) -> None:
        options = plan.cache
        self._plan = plan
        self._hashed = options.layout == CacheLayout.HASH
        self._json = {c.name for c in plan.schema.columns if c.kind in _JSON_KINDS}
        self._by_name = plan.schema.by_name
        self.declared = (
            *(DeclaredIndex(LOOKUP, NameTemplate.parse(text), "") for text in options.lookups),
            *(
                DeclaredIndex(COUNTER, NameTemplate.parse(p), c)
                for p, c in options.counters.items()
            ),
            *(
                DeclaredIndex(LEADERBOARD, NameTemplate.parse(p), c)
                for p, c in options.leaderboards.items()
            ),
        )

    def value(self, version: str, fields: Fields) -> str | list[str]:
        """Returns the stored form of a row: its document, or names and values in turn.

        Raises:
            UnholdableValueError: It is too large.
        """
        stored: str | list[str]
        if self._hashed:
            stored = [
                part
                for name, value in fields.items()
                if value is not None
                for part in (name, value if isinstance(value, str) else _json_text(value))
            ]
            size = sum(map(len, stored))
        else:
            stored = f"{PREFIX}{version}" + ('",' if fields else '"') + _json_text(fields)[1:]
            size = len(stored)
        if size > ROW_SIZE_MAX:
            raise UnholdableValueError(
                f"view {self._plan.name}: a row is too large for the cache",
                detail=f"{size:,} characters, at most {ROW_SIZE_MAX:,}",
                hint=(
                    "exclude the large column with ColumnRules, or remove the view from the cache"
                ),
            )
        return stored

    def links(self, fields: Mapping[str, Json]) -> str:
        """Returns a row's entries in lookups, counters and leaderboards; empty if it has none.

        Raises:
            UnholdableValueError: A score or an amount has no exact representation.
        """
        entries = [
            (link.kind, *part)
            for link in self.declared
            if (part := self.part(link, fields)) is not None
        ]
        return _json_text(entries) if entries else ""

    def part(self, link: DeclaredIndex, fields: Mapping[str, Json]) -> tuple[str, str] | None:
        """Returns a row's entry in one of them: its name, and the score or amount.

        Raises:
            UnholdableValueError: The score or the amount has no exact representation.
        """
        name = expanded(link.pattern, fields)
        if name is None:
            return None
        amount: str | None = ""
        if link.kind == LEADERBOARD:
            amount = self._score(link.column, fields.get(link.column))
        elif link.kind == COUNTER and link.column != ROWS:
            amount = self._amount(link.column, fields.get(link.column))
        return None if amount is None else (name, amount)

    def of_document(self, value: bytes) -> Fields:
        """Decodes a row from its JSON."""
        fields: Fields = orjson.loads(value)
        fields.pop(VERSION_COLUMN, None)
        return fields

    def of_hash(self, value: Mapping[bytes, bytes]) -> Fields:
        """Decodes a row from its hash; a missing field is NULL."""
        fields: Fields = dict.fromkeys(self._by_name)
        for raw, text in value.items():
            name = raw.decode()
            if name in fields:
                fields[name] = self._field(name, text.decode())
        return fields

    def _field(self, name: str, text: str) -> Json:
        if name not in self._json or text in _WORDS:
            return text
        value: Json = orjson.loads(text)
        return value

    def _score(self, name: str, value: Json) -> str | None:
        if value is None:
            return None
        score = number(self._by_name[name], value)
        if score is None or not _held(score):
            raise self._unholdable(
                name, ("a leaderboard's scores are doubles, which cannot represent it")
            )
        return _plain(score)

    def _amount(self, name: str, value: Json) -> str | None:
        if value is None:
            return None
        scale = self._by_name[name].scale or 0
        amount = number(self._by_name[name], value)
        whole = None if amount is None or not amount.is_finite() else _unscaled(amount, scale)
        if whole is None or abs(whole) > _SUM_MAX:
            raise self._unholdable(name, "a counter's sum is an integer of 63 bits")
        return str(whole)

    def _unholdable(self, name: str, why: str) -> UnholdableValueError:
        return UnholdableValueError(
            f"view {self._plan.name}: a value of column {name} has no exact representation",
            detail=why,
        )


def form_text(plan: ViewPlan) -> str:
    """Returns the options that a reader needs, as stored beside the rows."""
    columns = {c.name: [str(c.kind), c.scale] for c in plan.schema.columns}
    return _json_text({"options": plan.cache.form, "keys": plan.keys, "columns": columns})


def expanded(pattern: NameTemplate, fields: Mapping[str, Any]) -> str | None:
    """Returns a pattern filled with the values of a row; None if one of them is NULL."""
    parts = []
    for part, column in pattern.parts:
        if not column:
            parts.append(part)
        elif (value := fields.get(part)) is None:
            return None
        else:
            parts.append(key_part(value))
    return ":".join(parts)


def number(column: Column, value: Json) -> Decimal | None:
    """Returns the score of a document value; None for NaN."""
    if column.kind in (ColumnKind.TIMESTAMP, ColumnKind.TIMESTAMPTZ):
        moment = datetime.fromisoformat(str(value).removesuffix("Z"))
        return Decimal((moment - _EPOCH) // _MICROSECOND)
    score = Decimal(repr(value) if isinstance(value, float) else str(value))
    return None if score.is_nan() else score


def _held(score: Decimal) -> bool:
    """Returns whether a double represents the score exactly, so that doubles sort alike."""
    return score.is_infinite() or Decimal(repr(float(score))) == score


def _plain(score: Decimal) -> str:
    return ("inf", "-inf")[score < 0] if score.is_infinite() else repr(float(score))


def _unscaled(amount: Decimal, scale: int) -> int | None:
    """Returns a number in units of its last digit; None if it has more digits."""
    sign, digits, exponent = amount.as_tuple()
    power = int(exponent) + scale
    if power < 0:
        return None if any(digits[power:]) else _joined(sign, digits[:power])
    return _joined(sign, (*digits, *(0,) * power)) if len(digits) + power <= DIGITS * 2 else None


def _joined(sign: int, digits: Sequence[int]) -> int:
    whole = int("".join(map(str, digits)) or "0")
    return -whole if sign else whole


def _json_text(value: object) -> str:
    return orjson.dumps(value).decode()
