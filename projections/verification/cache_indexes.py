"""Verification of the structures beside rows in the cache, under writes.

A row and its entries in lookups and leaderboards are written together, so an entry is judged by the
rule of its row: the same version at both readings, and the source's row in between.

A counter has no version. Instead the server watches it, from before the source is read until the
view has applied all that the source showed: a change of any counted row would have touched the
counter, even back to the same value. An untouched counter must equal the count of the rows that
were read. The source is therefore read again for the counters that differ, some of them at a
time; a counter that is touched each time is reported as moving.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from projections.definition.views import Store
from projections.stores.valkey.index_check import (
    DIFFERENT,
    EXTRA,
    FOREIGN,
    MISSING,
    ExpectedIndexes,
    Suspect,
    added,
    texts,
)
from projections.stores.valkey.index_scan import Memberships, WatchedCounter, entries
from projections.stores.valkey.row import COUNTER
from projections.verification.report import KeyVerdict
from projections.verification.truth import named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from cdc.lsn import Lsn
    from projections.changes.row_batch import RowPart
    from projections.planning.job_config import StoreAddresses
    from projections.planning.view_plan import ViewPlan
    from projections.verification.truth import Truth
    from projections.verification.wait import PositionWaiter

    Document = Mapping[str, Any]
    Reading = Callable[[], Iterator[RowPart]]

ROUNDS_MAX: Final = 4
WATCHED_MAX: Final = 128
"""Counters that one further read of the source decides: each needs a connection meanwhile."""

_AT_ONCE: Final = 5_000
_SHOWN: Final = 1_000
_VERDICTS: Final = {
    MISSING: KeyVerdict.MISSING,
    EXTRA: KeyVerdict.EXTRA,
    FOREIGN: KeyVerdict.EXTRA,
    DIFFERENT: KeyVerdict.DIFFERENT,
}


class BesidePass:
    """Compares the structures beside one view's rows in the cache.

    Args:
        plan: The view.
        addresses: Addresses of the stores.
        reach: Waits for positions of its source.
    """

    def __init__(self, plan: ViewPlan, addresses: StoreAddresses, reach: PositionWaiter) -> None:
        self.counts: dict[KeyVerdict, int] = dict.fromkeys(KeyVerdict, 0)
        self.examples: list[Suspect] = []
        self._plan = plan
        self._addresses = addresses
        self._reach = reach
        self._beside = ExpectedIndexes(plan)
        self._places: dict[str, int] = {}

    def add(self, part: RowPart) -> None:
        """Adds rows of the source."""
        if not self._plan.cache.linked:
            return  # a row without a key should have no entries
        for document in part.documents():
            if not self._plan.append_only:
                key = named(self._plan, document)
                if key in self._places:
                    continue
                self._places[key] = len(self._places)
            self._beside.add(document)

    def compared(
        self, truth: Truth | None, again: Reading, end: Callable[[], Lsn]
    ) -> Iterator[None]:
        """Compares with the cache, in steps.

        Args:
            truth: The source's rows; None where they have no key.
            again: Reads all rows again.
            end: Returns, after that, the position that the view must have applied.
        """
        addresses, plan = self._addresses, self._plan
        with closing(Memberships(addresses.cache_url, addresses.cache_prefix, plan)) as memberships:
            members: list[Suspect] = []
            counters: list[str] = []
            stored = entries(addresses.cache_url, addresses.cache_prefix, plan)
            for suspect in self._beside.compare(self._places, stored):
                if suspect is None:
                    yield
                elif suspect.what == FOREIGN:
                    if memberships.foreign(suspect):
                        self._note(suspect)
                elif suspect.kind == COUNTER:
                    counters.append(suspect.name)
                else:
                    members.append(suspect)
            if truth is None:
                self._undeclared(memberships, members)
            else:
                lacking = list(self._beside.lacking(self._places))
                for start in range(0, len(lacking), _AT_ONCE):
                    rows, _ = truth.of_keys(lacking[start : start + _AT_ONCE])
                    for key, row in rows.items():
                        members += self._beside.lacked(self._places[key], key, row)
                    yield
                yield from self._judge_members(truth, memberships, members)
            yield from self._judge_counters(memberships, counters, again, end)

    def _undeclared(self, memberships: Memberships, suspects: list[Suspect]) -> None:
        wrong = [each for each in suspects if not self._beside.declared(each)]
        for suspect, (_, there) in zip(wrong, memberships.look(wrong), strict=True):
            if there is not None:
                self._note(suspect)

    def _judge_members(
        self, truth: Truth, memberships: Memberships, suspects: list[Suspect]
    ) -> Iterator[None]:
        for start in range(0, len(suspects), _AT_ONCE):
            part = suspects[start : start + _AT_ONCE]
            for number in range(1, ROUNDS_MAX + 1):
                part = self._round(truth, memberships, part, last=number == ROUNDS_MAX)
                yield
                if not part:
                    break

    def _round(
        self, truth: Truth, memberships: Memberships, part: list[Suspect], *, last: bool
    ) -> list[Suspect]:
        first = memberships.look(part)
        seen = truth.settle()
        rows, position = truth.of_keys(sorted({each.key for each in part}))
        self._reach.wait([(self._plan.name, Store.CACHE)], position)
        second = memberships.look(part)
        left = []
        for suspect, (before, was), (after, there) in zip(part, first, second, strict=True):
            row = rows.get(suspect.key)
            parts = {} if row is None else self._beside.parts(row)
            expected = parts.get((suspect.kind, suspect.name))
            if there == expected or (before != after and was == expected):
                continue
            if seen and before == after:
                verdict = MISSING if there is None else EXTRA if expected is None else DIFFERENT
                self._note(suspect._replace(what=verdict))
            elif last:
                self.counts[KeyVerdict.MOVING] += 1
            else:
                left.append(suspect)
        return left

    def _judge_counters(
        self,
        memberships: Memberships,
        names: list[str],
        again: Reading,
        end: Callable[[], Lsn],
    ) -> Iterator[None]:
        # any untouched counters are decided now: the others get their turn next time
        self.counts[KeyVerdict.MOVING] += len(names[WATCHED_MAX:])
        watched: dict[str, WatchedCounter] = {
            name: memberships.counts(name) for name in names[:WATCHED_MAX]
        }
        if not watched:
            return
        counts: dict[str, tuple[int, int | None]] = {}
        for part in again():
            for row in part.documents():
                for name, amount in self._beside.counted(row):
                    if name in watched:
                        counts[name] = added(counts.get(name), amount)
            yield
        self._reach.wait([(self._plan.name, Store.CACHE)], end())
        for name, each in watched.items():
            there = each.unchanged()
            expected = texts(counts[name]) if name in counts else (None, None)
            if there is None:
                self.counts[KeyVerdict.MOVING] += 1
            elif there != expected:
                verdict = (
                    MISSING if there == (None, None) else EXTRA if name not in counts else DIFFERENT
                )
                self._note(Suspect(COUNTER, name, "", verdict))

    def _note(self, suspect: Suspect) -> None:
        self.counts[_VERDICTS[suspect.what]] += 1
        if len(self.examples) < _SHOWN:
            self.examples.append(suspect)
