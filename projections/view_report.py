"""ViewReport: one view in one store, compared with what it should be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cdc.lsn import Lsn
    from projections.view import Store

EXAMPLES: Final = 5
"""Of what is wrong in a report; one is enough to begin a search, five show a pattern."""


@dataclass(frozen=True, slots=True)
class ViewReport:
    """One view in one store, compared with its source.

    In the cache, what lies beside rows counts as well: a row that a lookup or leaderboard lacks is
    missing, one too many there is extra, and a wrong score or counter is different.

    Attributes:
        view: The view's name.
        store: The store.
        rows: Rows of the source.
        missing: Rows that only the source has.
        extra: Rows that only the store has.
        different: Rows of which some value differs; 0 for a table without a key, where such a
            row is both missing and extra.
        applied_through: Position that the view says it has reached; None if it says nothing.
        examples: A few wrong rows by their keys, and what is wrong beside rows by its name.
        columns: Columns in which those examples differ.
        withheld: Rows that the view is not to have, as they do not meet an expectation; they are
            not among `rows`.
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

    @property
    def equal(self) -> bool:
        """Whether the view holds exactly what its source does."""
        return not (self.missing or self.extra or self.different)
