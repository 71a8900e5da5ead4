"""ViewReport: one view in one store, compared with its source, and the findings."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from cdc.lsn import Lsn  # noqa: TC001  # reports are decoded by their annotations
from projections.definition.views import Store  # noqa: TC001  # as above

if TYPE_CHECKING:
    from projections.common.fault import Fault

EXAMPLES: Final = 5
"""Named findings of a report: one is enough to start an investigation, five show a pattern."""


class KeyVerdict(StrEnum):
    """The result for a key of a view; stored nowhere.

    Every verdict except `EQUAL` and `MOVING` is a difference. `STALE` replaces `DIFFERENT` if the
    log has a newer change of the key than the store. `ENDED` is a key of a history whose ended
    states do not follow from its changes, although the current state equals the source.
    `QUARANTINED` is a key that differs because one of its records is quarantined.
    """

    EQUAL = "equal"
    MOVING = "moving"
    MISSING = "missing"
    EXTRA = "extra"
    DUPLICATED = "duplicated"
    DIFFERENT = "different"
    STALE = "stale"
    ENDED = "ended"
    QUARANTINED = "quarantined"


class KeyFinding(NamedTuple):
    """A key that is wrong in a store.

    Attributes:
        key: Its text.
        verdict: The kind of difference.
        version: Its version in the store; 0 if the store never had it.
        columns: The columns that differ.
    """

    key: str
    verdict: KeyVerdict
    version: int = 0
    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        more = f" in {', '.join(self.columns)}" if self.columns else ""
        return f"row {self.key} ({self.verdict}{more})"


@dataclass(frozen=True, slots=True)
class Uncompared:
    """A view that could not be compared in one store, so its state there is unknown.

    Attributes:
        view: The view's name.
        store: The store.
        fault: Why.
    """

    view: str
    store: Store
    fault: Fault


@dataclass(frozen=True, slots=True)
class ViewReport:
    """One view in one store, compared with its source.

    In the cache, the structures beside rows count as well: a row that a lookup or leaderboard lacks
    is missing, one too many there is extra, and a wrong score or counter is different.

    Attributes:
        view: The view's name.
        store: The store.
        rows: Number of rows read from the source.
        missing: Number of rows that only the source has.
        extra: Number of rows that only the store has.
        different: Number of rows with a differing value or, in a history, with a differing ended
            state; 0 for a table without a key, where such a row is both missing and extra.
        applied_through: Position that the view reports; None if it reports none.
        examples: Keys of a few wrong rows, and names of wrong structures beside rows.
        columns: Differing columns of those examples.
        withheld: Number of rows that the view excludes because they do not meet an expectation;
            they are not among `rows`.
        stale: Number of different rows for which the log has a newer change.
        duplicated: Number of extra rows beside another one of their key.
        quarantined: Number of keys that differ because a record is quarantined; counted only here.
        moving: Number of keys that changed during every comparison; their state is unknown.
        verified_through: Position through which the view equals its source, except for moving keys;
            None if anything is wrong.
        findings: The wrong keys, as far as their names are kept.
    """

    view: str
    store: Store
    rows: int
    missing: int
    extra: int
    different: int
    applied_through: Lsn | None
    examples: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    withheld: int = 0
    stale: int = 0
    duplicated: int = 0
    quarantined: int = 0
    moving: int = 0
    verified_through: Lsn | None = None
    findings: tuple[KeyFinding, ...] = field(default=(), repr=False)

    @property
    def equal(self) -> bool:
        """Returns whether the view equals its source, except for moving keys."""
        return not (self.missing or self.extra or self.different or self.quarantined)
