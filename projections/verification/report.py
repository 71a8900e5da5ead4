"""ViewReport, and the findings in it: one view in one store, compared with what it should be."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from cdc.lsn import Lsn  # noqa: TC001  # reports are decoded by their annotations
from projections.definition.views import Store  # noqa: TC001  # as above

if TYPE_CHECKING:
    from projections.common.fault import Fault

EXAMPLES: Final = 5
"""Of what is wrong in a report; one is enough to begin a search, five show a pattern."""


class KeyVerdict(StrEnum):
    """What a key of a view is found to be; it is stored nowhere.

    `EQUAL` and `MOVING` are what they say; the others are wrong. `STALE` is what `DIFFERENT`
    becomes when the log has a newer change of the key than the store. `ENDED` is a key of a history
    whose states are not what its changes say, while it is what the source says now. `QUARANTINED`
    is a key that is wrong because a record of it waits.
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
        verdict: What is wrong.
        version: The version of which the store has it; 0 of one that it has never seen.
        columns: In which columns the rows differ.
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
    """A view that could not be compared in one store; nothing is known of it there.

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
        rows: Rows of the source, where they were read.
        missing: Rows that only the source has.
        extra: Rows that only the store has.
        different: Rows of which some value differs, or of a history, some state that has ended; 0
            for a table without a key, where such a row is both missing and extra.
        applied_through: Position that the view says it has reached; None if it says nothing.
        examples: A few wrong rows by their keys, and what is wrong beside rows by its name.
        columns: Columns in which those examples differ.
        withheld: Rows that the view is not to have, as they do not meet an expectation; they are
            not among `rows`.
        stale: Of those that are different, rows of which the log has a newer change.
        duplicated: Of those that are extra, rows beside another one of their key.
        quarantined: Keys that are wrong because a record of them waits; they are counted here
            alone.
        moving: Keys that changed whenever they were looked at; nothing is known of them.
        verified_through: Position through which the view equals its source, but for what moves;
            None if anything is wrong.
        findings: The keys that are wrong, as far as they are kept by name.
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
        """Whether the view holds exactly what its source does, as far as it holds still."""
        return not (self.missing or self.extra or self.different or self.quarantined)
