"""Conditions on a row and on one that was matched before: `amount > 10 * first.amount`.

A column of the row is compared with what is reckoned from a column of the other: its value times a
constant, and another more or less. So a row is looked for by a value that is known by then.

NULL is neither equal nor anything else. Whole numbers and decimals are reckoned exactly, however
many digits that takes; floating-point numbers as such, which round.
"""

from __future__ import annotations

import re
from collections import defaultdict
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from projections.errors import DeclarationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NUMBER: Final = r"[0-9]{1,18}(?:\.[0-9]{1,18})?"
_BESIDE: Final = re.compile(
    r"\s*(?P<column>\w+)\s*(?P<compared>=|<>|<=|>=|<|>)\s*"
    rf"(?:(?P<factor>-?{_NUMBER})\s*\*\s*)?(?P<step>[^\W\d]\w*)\.(?P<other>\w+)\s*"
    rf"(?:(?P<sign>[+-])\s*(?P<offset>{_NUMBER})\s*)?"
)
_EXACT: Final = Context(prec=200)
"""Digits enough for a DECIMAL of 38 and constants of 36: of product and sum nothing is lost."""
_ALLOWED: Final[Mapping[str, frozenset[str]]] = {
    "=": frozenset({"equal"}),
    "<>": frozenset({"less", "greater"}),
    "<": frozenset({"less"}),
    "<=": frozenset({"less", "equal"}),
    ">": frozenset({"greater"}),
    ">=": frozenset({"greater", "equal"}),
}
"""What two values may be to each other."""


class Beside(NamedTuple):
    """A condition on a row and on one that was matched before.

    Attributes:
        text: How it is written.
        column: Of the row.
        compared: How they are compared; NULL is neither equal nor anything else.
        step: The step that took the other row; its last, if it took several.
        other: Column of that row.
        factor: What its value is multiplied by.
        offset: What is added then.
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
        """Whether the other row's value is not compared as it is: it has to be a number."""
        return self.factor != 1 or self.offset != 0

    def against(self, value: Any) -> Any:
        """Returns what the row's own value is compared with.

        Args:
            value: Of the other row.
        """
        if value is None or not self.reckons:
            return value
        if isinstance(value, float):
            return float(self.factor) * value + float(self.offset)
        return _EXACT.fma(self.factor, value, self.offset)


def read(step: str, texts: Sequence[str]) -> tuple[Beside, ...]:
    """Reads the conditions of a step.

    Args:
        step: Its name.
        texts: Such as `country <> home.country`, `amount >= 1.5 * first.amount + 100`.

    Raises:
        DeclarationError: One cannot be read, or they exclude each other.
    """
    conditions = tuple(_read(step, text) for text in texts)
    _require_possible(step, conditions)
    return conditions


def _read(step: str, text: str) -> Beside:
    said = _BESIDE.fullmatch(text)
    if said is None:
        raise DeclarationError(
            f"step {step} has no such comparison with an earlier step",
            detail=text,
            hint="a column, = <> < <= > or >=, a column of a step; times a constant before it, or "
            "plus or minus one behind it: amount > first.amount, amount >= 1.5 * first.amount + 10",
        )
    factor, offset = Decimal(said["factor"] or 1), Decimal(said["offset"] or 0)
    if not factor:
        raise DeclarationError(
            f"step {step} is compared with no part of what {said['step']} took",
            detail=text,
            hint="what does not depend on another row belongs in where: amount > 100",
        )
    return Beside(
        text.strip(),
        said["column"],
        said["compared"],
        said["step"],
        said["other"],
        factor,
        offset.copy_negate() if said["sign"] == "-" else offset,  # a minus alone would round
    )


def _require_possible(step: str, conditions: Sequence[Beside]) -> None:
    """Refuses comparisons of the very same values that cannot hold together."""
    allowed: dict[object, frozenset[str]] = defaultdict(lambda: _ALLOWED["<>"] | {"equal"})
    for each in conditions:
        allowed[_compared(each)] &= _ALLOWED[each.compared]
        if not allowed[_compared(each)]:
            same = (one.text for one in conditions if _compared(one) == _compared(each))
            raise DeclarationError(
                f"step {step} is compared with {each.step} so that no row fits it",
                detail=", ".join(same),
            )


def _compared(each: Beside) -> object:
    return each.column, each.step, each.other, each.factor, each.offset
