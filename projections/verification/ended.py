"""What of a history is compared with nothing in the source: states that have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from projections.stores.delta.history.check import HistoryCheck
from projections.verification.recheck import Outcome
from projections.verification.report import Finding, Verdict
from projections.verification.truth import named

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from projections.planning.view_plan import ViewPlan


def ended(plan: ViewPlan, tables: Path, known: set[str]) -> Iterator[Outcome]:
    """Compares the states of a history with the changes that it was given, part by part.

    The source has what rows are; what they were, the history's own table of changes tells. So a
    state that was altered, is missing or is there twice is found, and so is an altered change.

    Args:
        plan: The history.
        tables: Folder of the tables.
        known: Texts of keys that were found to be wrong already.

    Raises:
        SinkUnavailableError: A table cannot be read.
    """
    for part in HistoryCheck(tables, plan).differing():
        outcome = Outcome()
        for document, columns in part.values():
            key = named(plan, document)
            if key not in known:
                outcome.note(Finding(key, Verdict.ENDED, columns=columns))
        yield outcome
