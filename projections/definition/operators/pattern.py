"""Patterns: rows of one group that follow each other in time; each match is a row of a view.

A pattern names its steps in order, and the time within which they occur. It is matched against the
rows of a group in the order of their own time, not of their arrival. A match is therefore a row
like any other: it appears when the last of its rows arrives, even late, and disappears with any of
them.

The rows of a match (called selection in complex event processing): starting from each row that fits
the first step, each further step takes the first row that fits it and skips the rows in between
(`strict`: there are none). A row therefore begins at most one match. No row may fit an absent step
until the following step has all of its rows or, for the last step, until the time is up; a row that
also fits the awaited step counts for that one.

Steps may occur in any order: a match then begins with a row that fits any of them, and takes each
row that fits a missing one; see `projections.incremental.patterns.any_order`.

Rows of equal time are ordered by the steps that they fit and by their values.

Conditions may compare a row with an earlier row of the match: `amount > 10 * first.amount`.

A column of the row is compared with a column of the other row, multiplied by a constant and with
another constant added. The search can therefore look up the row by a known value.

NULL satisfies no comparison. Whole numbers and decimals are computed exactly, with any number of
digits; floating-point numbers are rounded.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from projections.definition.operators.windows import duration
from projections.errors import DeclarationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_SKIP: Final = re.compile(r"to (first|last) ([a-z][a-z0-9_]*)")
PAST_LAST_ROW: Final = "past last row"
TO_NEXT_ROW: Final = "to next row"
TIMES_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Step:
    """One part of a pattern.

    Attributes:
        name: Name of the step.
        where: Spark SQL condition on a row.
        times: Number of consecutive rows that it takes.
        absent: Whether no such row may occur.
        beside: Conditions on a row and a row of an earlier step, the last one if that step took
            several: `country <> home.country`, `amount > 10 * first.amount + 100`. NULL satisfies
            none; see `projections.definition.operators.pattern`.
    """

    name: str
    where: str
    times: int = 1
    absent: bool = False
    beside: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise DeclarationError(
                f"{self.name!r} is not a valid name of a step", hint="a, b2, declined"
            )
        if not 1 <= self.times <= TIMES_MAX or (self.absent and self.times > 1):
            raise DeclarationError(
                f"step {self.name} cannot match {self.times} times",
                detail="it is absent" if self.absent else f"1 to {TIMES_MAX}",
            )
        read(self.name, self.beside)

    @property
    def conditions(self) -> tuple[Beside, ...]:
        """Returns the parsed conditions of `beside`."""
        return read(self.name, self.beside)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A sequence of steps within a time limit.

    Attributes:
        steps: The steps, in order.
        within: Maximum time from the first row of a match to its last, and to the end of an absent
            step.
        strict: Whether no other row of the group may occur between rows of a match.
        skip: Where the next match may begin, in the words of SQL's MATCH_RECOGNIZE: `past last row`
            of this one, `to next row` after its first, or `to first b` or `to last b`, the first or
            last row of the step named b.
        any_order: Whether the steps may occur in any order.
    """

    steps: Sequence[Step]
    within: str = ""  # the check below refuses an empty pattern with a reason
    strict: bool = False
    skip: str = PAST_LAST_ROW
    any_order: bool = False

    def __post_init__(self) -> None:
        if not self.within:
            raise DeclarationError(
                "a pattern needs within",
                detail="without it, no row could ever be discarded",
                hint='within="1 hour"',
            )
        duration(self.within)
        _require_matchable(self.steps, strict=self.strict)
        if self.any_order:
            _require_apart(self.steps)
        _require_progress(self)

    @property
    def resumes(self) -> tuple[int, int]:
        """Returns the number of a match's row, and the offset from it, at which the next may begin.

        Raises:
            DeclarationError: The match has no such row.
        """
        if self.skip == PAST_LAST_ROW:
            return -1, 1
        if self.skip == TO_NEXT_ROW:
            return 0, 1
        return _row_skipped_to(self.steps, self.skip), 0

    @property
    def compared(self) -> tuple[str, ...]:
        """Returns the columns that steps compare with those of other rows."""
        pairs = [(each.column, each.other) for step in self.steps for each in step.conditions]
        return tuple(dict.fromkeys(name for pair in pairs for name in pair))


def _require_matchable(steps: Sequence[Step], *, strict: bool) -> None:
    names = [step.name for step in steps]
    if not steps or steps[0].absent:
        raise DeclarationError(
            "the first step of a pattern cannot be absent", detail=", ".join(names) or "no step"
        )
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DeclarationError(f"two steps of a pattern have the name {twice[0]}")
    if strict and any(step.absent for step in steps[1:-1]):
        raise DeclarationError(
            "a strict pattern cannot have an absent step between rows",
            hint="omit strict, or the step",
        )
    for number, step in enumerate(steps):
        before = {each.name for each in steps[:number] if not each.absent}
        for condition in step.conditions:
            if condition.step not in before:
                raise DeclarationError(
                    f"step {step.name} is compared with {condition.step}, which has no row yet",
                    hint=f"earlier steps with a row: {', '.join(sorted(before)) or 'none'}",
                )


def _require_apart(steps: Sequence[Step]) -> None:
    """Refuses steps that depend on an order."""
    for step in steps:
        if step.absent or step.beside:
            raise DeclarationError(
                f"step {step.name} cannot be used with any_order",
                detail="it is absent" if step.absent else "it is compared with an earlier step",
                hint="omit any_order, or the step's absent or beside",
            )


def _row_skipped_to(steps: Sequence[Step], skip: str) -> int:
    """Returns which row of a match the next may begin with; rows are numbered step by step."""
    match = _SKIP.fullmatch(str(skip))
    if match is None:
        raise DeclarationError(
            "the skip of a pattern is invalid",
            detail=f"skip={skip!r}",
            hint=f'"{PAST_LAST_ROW}", "{TO_NEXT_ROW}", or of a step b "to first b", "to last b"',
        )
    before = 0
    for step in steps:
        if step.name == match[2] and not step.absent:
            return before if match[1] == "first" else before + step.times - 1
        before += 0 if step.absent else step.times
    raise DeclarationError(
        f"step {match[2]} has no row to skip to",
        detail="it is absent" if match[2] in {step.name for step in steps} else "there is none",
        hint=f"steps that have one: {', '.join(step.name for step in steps if not step.absent)}",
    )


def _require_progress(pattern: Pattern) -> None:
    """Refuses to resume the search at the beginning of the match."""
    if pattern.resumes == (0, 0):
        raise DeclarationError(
            "skip cannot begin the next match at the first row of this match",
            detail=f"{pattern.skip} skips to the first row of a match",
            hint=f'use skip="{TO_NEXT_ROW}", or skip to a later row',
        )
    if pattern.any_order and pattern.resumes[1] == 0:
        raise DeclarationError(
            f"skip cannot name a step with any_order: {pattern.skip}",
            detail="any step may have the first row of the match",
            hint=f'skip="{TO_NEXT_ROW}" or "{PAST_LAST_ROW}"',
        )


@dataclass(frozen=True, slots=True)
class PatternQuery:
    """A pattern, and the rows that it is matched against: the definition of a view.

    Attributes:
        pattern: The pattern.
        by: Columns of the groups: all rows of a match have them in common.
        time: Column with the time of a row.
        keep: Columns of the matched rows that a match lists.
        where: Spark SQL condition on the rows that count; empty for all.
    """

    pattern: Pattern
    by: tuple[str, ...]
    time: str
    keep: tuple[str, ...]
    where: str = ""


_NUMBER: Final = r"[0-9]{1,18}(?:\.[0-9]{1,18})?"
_BESIDE: Final = re.compile(
    r"\s*(?P<column>\w+)\s*(?P<compared>=|<>|<=|>=|<|>)\s*"
    rf"(?:(?P<factor>-?{_NUMBER})\s*\*\s*)?(?P<step>[^\W\d]\w*)\.(?P<other>\w+)\s*"
    rf"(?:(?P<sign>[+-])\s*(?P<offset>{_NUMBER})\s*)?"
)
_EXACT: Final = Context(prec=200)
"""Enough digits for a DECIMAL of 38 and constants of 36: product and sum are exact."""
_ALLOWED: Final[Mapping[str, frozenset[str]]] = {
    "=": frozenset({"equal"}),
    "<>": frozenset({"less", "greater"}),
    "<": frozenset({"less"}),
    "<=": frozenset({"less", "equal"}),
    ">": frozenset({"greater"}),
    ">=": frozenset({"greater", "equal"}),
}
"""Possible relations of two values."""


class Beside(NamedTuple):
    """A condition on a row and an earlier row of the match.

    Attributes:
        text: Its text.
        column: Column of the row.
        compared: The operator; NULL satisfies no comparison.
        step: The step of the other row; its last row, if it took several.
        other: Column of the other row.
        factor: Multiplier of that row's value.
        offset: Added to the product.
    """

    text: str
    column: str
    compared: str
    step: str
    other: str
    factor: Decimal = Decimal(1)
    offset: Decimal = Decimal(0)

    @property
    def reckons(self) -> bool:
        """Returns whether the other row's value is used in arithmetic, so it must be a number."""
        return self.factor != 1 or self.offset != 0

    def against(self, value: Any) -> Any:
        """Returns the value to compare the row's own value with."""
        if value is None or not self.reckons:
            return value
        if isinstance(value, float):
            return float(self.factor) * value + float(self.offset)
        return _EXACT.fma(self.factor, value, self.offset)


def read(step: str, texts: Sequence[str]) -> tuple[Beside, ...]:
    """Parses the conditions of a step.

    Args:
        step: Name of the step.
        texts: Conditions such as `country <> home.country`, `amount >= 1.5 * first.amount + 100`.

    Raises:
        DeclarationError: A condition is invalid, or conditions exclude each other.
    """
    conditions = tuple(_read(step, text) for text in texts)
    _require_possible(step, conditions)
    return conditions


def _read(step: str, text: str) -> Beside:
    match = _BESIDE.fullmatch(text)
    if match is None:
        raise DeclarationError(
            f"step {step} has an invalid comparison with an earlier step",
            detail=text,
            hint="a column, = <> < <= > or >=, a column of a step; times a constant before it, or "
            "plus or minus one behind it: amount > first.amount, amount >= 1.5 * first.amount + 10",
        )
    factor, offset = Decimal(match["factor"] or 1), Decimal(match["offset"] or 0)
    if not factor:
        raise DeclarationError(
            f"step {step} is not compared with a column of {match['step']}",
            detail=text,
            hint="put conditions without another row in where: amount > 100",
        )
    return Beside(
        text.strip(),
        match["column"],
        match["compared"],
        match["step"],
        match["other"],
        factor,
        offset.copy_negate() if match["sign"] == "-" else offset,  # unary minus alone would round
    )


def _require_possible(step: str, conditions: Sequence[Beside]) -> None:
    """Refuses comparisons of the same two values that cannot hold together."""
    allowed: dict[object, frozenset[str]] = defaultdict(lambda: _ALLOWED["<>"] | {"equal"})
    for each in conditions:
        allowed[_compared(each)] &= _ALLOWED[each.compared]
        if not allowed[_compared(each)]:
            same = (one.text for one in conditions if _compared(one) == _compared(each))
            raise DeclarationError(
                f"the comparisons of step {step} with {each.step} exclude every row",
                detail=", ".join(same),
            )


def _compared(each: Beside) -> object:
    return each.column, each.step, each.other, each.factor, each.offset
