"""Expectation: a condition on the rows of a view, and the treatment of rows that do not meet it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from projections.definition.arguments import declaring
from projections.errors import DeclarationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from projections.definition.expectations.tree import Node

_T = TypeVar("_T")
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")
_ATTRIBUTE: Final = "headwater_expectations"
DELETES: Final = "apply_as_deletes"
"""Counter of rows that count as deleted."""


class OnFail(StrEnum):
    """The treatment of a row that does not meet an expectation; the strictest one decides."""

    WARN = "warn"  # the row stays and is counted
    DROP = "drop"  # the view excludes the row
    QUARANTINE = "quarantine"  # the view excludes the row; its record is quarantined
    FAIL = "fail"  # the view is paused until the operator resumes it


@dataclass(frozen=True, slots=True)
class Expectation:
    """A condition that rows of a view should meet.

    A row meets it if the condition is true, and not if it is NULL. Called with a function, it is a
    decorator that adds the condition to the function's view.

    Attributes:
        name: Its name in counters.
        condition: The condition as written.
        on_fail: The treatment of a row that does not meet it.
    """

    name: str
    condition: str
    on_fail: OnFail

    def __call__(self, function: _T) -> _T:
        """Adds the expectation to a function, for `@view(...)` above it.

        Raises:
            DeclarationError: The decorated object is already a view.
        """
        if not callable(function):
            raise DeclarationError(
                f"expectation {self.name} is above the @view decorator",
                hint="put it below @view(...), or in expect=[...]",
            )
        function.__dict__.setdefault(_ATTRIBUTE, []).insert(0, self)
        return function

    @property
    def parsed(self) -> Node:
        """Returns the parsed condition."""
        return _parse(self.condition)

    @property
    def withholds(self) -> bool:
        """Returns whether the view excludes a row that does not meet it."""
        return self.on_fail is not OnFail.WARN

    def __str__(self) -> str:
        return f"{self.name}: {self.condition} (else {self.on_fail})"


@declaring
def expect(name: str, condition: str, on_fail: str = OnFail.WARN) -> Expectation:
    """Declares an expectation of a view's rows.

    Args:
        name: Its name in counters; lower case, digits and underscores.
        condition: An SQL condition on the columns of one row.
        on_fail: `warn`, `drop`, `quarantine` or `fail`; see `OnFail`.

    Raises:
        DeclarationError: The name, the condition or `on_fail` is invalid.
    """
    if not _NAME.fullmatch(name):
        raise DeclarationError(
            "the name of an expectation is invalid",
            detail=name[:80],
            hint=(
                "use at most 63 lower-case letters, digits and underscores, starting with a letter"
            ),
        )
    try:
        outcome = OnFail(on_fail)
    except ValueError as error:
        hint = "on_fail is " + ", ".join(OnFail)
        raise DeclarationError(f"expectation {name}: {error}", hint=hint) from None
    try:
        _parse(condition)
    except DeclarationError as error:
        raise DeclarationError(
            f"expectation {name}: {error.message}", detail=error.detail, hint=error.hint
        ) from None
    return Expectation(name, condition, outcome)


def _parse(condition: str) -> Node:
    from projections.definition.expectations.parser import parse  # noqa: PLC0415  # loads lark

    return parse(condition)


def deletes(condition: str) -> Expectation:
    """Declares which rows count as deleted, like `apply_as_deletes` of Spark's pipelines.

    Args:
        condition: An SQL condition on the columns of one row; a row for which it is NULL stays.

    Raises:
        DeclarationError: The condition is invalid.
    """
    expect(DELETES, condition)  # parsed by itself, so that its brackets must balance
    return Expectation(DELETES, f"({condition}) IS NOT TRUE", OnFail.DROP)


def of_function(function: Any) -> tuple[Expectation, ...]:
    """Returns the expectations that decorators added to a function."""
    return tuple(vars(function).get(_ATTRIBUTE, ()))


def expected(view: str, expectations: Iterable[Expectation]) -> tuple[Expectation, ...]:
    """Returns the expectations of a view.

    Raises:
        DeclarationError: Two have one name, or one is not an expectation.
    """
    checked = tuple(expectations)
    for each in checked:
        if not isinstance(each, Expectation):
            raise DeclarationError(
                f"view {view}: expect needs a list of expectations",
                hint='expect=[expect("positive", "total > 0", on_fail="drop")]',
            )
    if len({each.name for each in checked}) < len(checked):
        raise DeclarationError(f"view {view} has two expectations with one name")
    return checked


_COMMENT: Final = re.compile(r"^\s*--\s*CONSTRAINT\b(.*)$", re.IGNORECASE | re.MULTILINE)
_CONSTRAINT: Final = re.compile(
    r"\s+(\w+)\s+EXPECT\s*\((.*)\)(?:\s+ON\s+VIOLATION\s+(\w+)\s+(?:ROW|UPDATE))?\s*;?\s*",
    re.IGNORECASE,
)
_VIOLATIONS: Final = {
    "DROP": OnFail.DROP,
    "FAIL": OnFail.FAIL,
    "QUARANTINE": OnFail.QUARANTINE,
}


def of_sql(text: str) -> Iterator[Expectation]:
    """Returns the expectations in the comments of a query, in the syntax of Spark's pipelines.

    `-- CONSTRAINT positive EXPECT (total > 0) ON VIOLATION DROP ROW`; also `QUARANTINE ROW` and
    `FAIL UPDATE`. Without `ON VIOLATION`, rows are only counted.

    Raises:
        DeclarationError: A constraint is invalid.
    """
    for comment in _COMMENT.finditer(text):
        match = _CONSTRAINT.fullmatch(comment[1])
        violation = None if match is None or match[3] is None else match[3].upper()
        if match is None or (violation is not None and violation not in _VIOLATIONS):
            raise DeclarationError(
                "a constraint in a query's comments is invalid",
                detail=comment[0].strip()[:80],
                hint="-- CONSTRAINT positive EXPECT (total > 0) ON VIOLATION DROP ROW",
            )
        yield expect(
            match[1], match[2], OnFail.WARN if violation is None else _VIOLATIONS[violation]
        )
