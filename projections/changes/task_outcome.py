"""TaskOutcome: what the views of one task have written so far, and the records to quarantine."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from projections.changes.row_change import Applied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from foundation.errors import PlatformError
    from projections.changes.record import Record
    from projections.changes.sink import Sink
    from projections.definition.expectations.checker import Inspection
    from projections.planning.view_plan import ViewPlan


@dataclass(frozen=True, slots=True)
class UnappliedRecord:
    """A record to be quarantined.

    Attributes:
        view: The view that cannot apply it.
        key: Text of its key, by which changes are quarantined together; see `key_text`.
        topic: Its topic; the record has partition and offset.
        record: The record.
        version: Its position in the log; None if it cannot be read.
        error: Why it is quarantined.
    """

    view: str
    key: str
    topic: str
    record: Record
    version: int | None
    error: PlatformError


@dataclass(frozen=True, slots=True)
class BlockedKeys:
    """The quarantined and discarded records of a view, as far as a delivery needs them.

    Attributes:
        keys: Keys with quarantined records; later records of these wait behind them.
        given_up: Keys with discarded records, with the version up to which the store's row may be
            incomplete.
    """

    keys: frozenset[str] = frozenset()
    given_up: Mapping[str, int | None] = field(default_factory=dict)


NO_BLOCKED_KEYS: Final = BlockedKeys()


@dataclass(slots=True)
class ViewCount:
    """The outcome of a view's records: `records == applied + quarantined + filtered`.

    Attributes:
        records: Records of its topics.
        applied: Those that the store has applied, or for whose keys it has a newer version.
        quarantined: Those that are quarantined.
        filtered: Those that the view does not need: tombstones, events of other types.
        changes: The store's counts of the resulting changes.
        lags_us: Time from commit to store, microseconds, of each change.
        failed: Rows that did not meet an expectation of the view, by its name.
    """

    records: int = 0
    applied: int = 0
    quarantined: int = 0
    filtered: int = 0
    changes: Applied = field(default_factory=Applied)
    lags_us: list[int] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)

    def add_lags(self, committed_at_us: Iterable[int]) -> None:
        """Adds the time from commit to now of changes that were written; 0 is no commit time."""
        now_us = time.time_ns() // 1000
        self.lags_us += [now_us - at_us for at_us in committed_at_us if at_us]


class TaskOutcome:
    """The shared state of one task's deliveries.

    Attributes:
        counts: The outcome of the records, by view.
        waiting: Records to quarantine: the caller stores them before the batch counts as done.
        truncated: Versions up to which views were truncated, by view.
        halted: The view that has to be paused; None if there is none.

    Args:
        plans: The views of the store.
        sink: Opens the store when it is needed.
        held: Quarantined records, by view.
    """

    def __init__(
        self, plans: Iterable[ViewPlan], sink: Callable[[], Sink], held: Mapping[str, BlockedKeys]
    ) -> None:
        self._inspections = {p.name: p.inspection() for p in plans if p.expectations}
        self._sink = sink
        self._held = held
        self._apart: dict[str, set[str]] = defaultdict(set)
        self.counts: dict[str, ViewCount] = defaultdict(ViewCount)
        self.waiting: list[UnappliedRecord] = []
        self.truncated: dict[str, int] = {}
        self.halted: str | None = None

    def held(self, plan: ViewPlan) -> BlockedKeys:
        """Returns a view's quarantined records, including those of this task."""
        held = self._held.get(plan.name, NO_BLOCKED_KEYS)
        apart = self._apart.get(plan.name)
        return BlockedKeys(held.keys | apart, held.given_up) if apart else held

    def inspection(self, plan: ViewPlan) -> Inspection | None:
        """Returns the check of a view's expectations; None if it has none."""
        return self._inspections.get(plan.name)

    def open(self) -> Sink:
        """Returns the store."""
        return self._sink()

    def quarantine(self, waiting: Sequence[UnappliedRecord]) -> None:
        """Adds records to quarantine, so that later ones of their keys wait behind them."""
        self.waiting += waiting
        for each in waiting:
            self._apart[each.view].add(each.key)
