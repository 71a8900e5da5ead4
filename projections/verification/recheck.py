"""Rounds: checks the keys at which view and source differ until each has a verdict.

The rule decides about a key of a view while its row may change at any moment.

Every store has, beside each row, the version of the change that made it, and records the version of
each delete. A key that is read twice with the same version has therefore not changed in between;
that is true of cache, index and table alike. Nothing more is needed:

1. Read the key in the view: version v, and its row.
2. Wait until every transaction has ended that may have written to the table by then. A view can
   show a change before other sessions of the source do: a commit is in the log before it is
   visible, and with synchronous replication long before.
3. Read the row in the source, in a snapshot S, then take the end of the log, L.
4. Wait until the view reports that it has applied everything up to L.
5. Read the key in the view again.

If the version is the same, then the view's row equals the row in S, or the view is wrong:

- S contains the change that made v. It was committed before the first read, since the view had it,
  and its transaction had ended before S was taken. (For a row from a snapshot of the table, S has
  the same row or a newer one.)
- The view lacks no newer change of the key that S contains. Such a change was committed before L,
  and the view has applied everything up to L: the second read would have returned another version.

If the version has changed, the key is moving, and nothing is known of it. It is checked again; a
key that changes each time is reported as moving, never as different, and never as verified.

A key at which view and source are equal needs none of that. In every case, the view had the row
that the source had in S. A pass over a view therefore records the end of the log before it reads
anything, L0, reads both sides once, in any order and as they are, and applies the rule only to the
keys that differ. At its end, each key equals a state of the source not older than L0, or is wrong,
or is moving. If none is wrong, the view is verified *through* L0: every change committed by then
had its effect, except at the moving keys.

The rows are read in key order, so a row cannot move from an unread part of the table into a part
that was already read.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson

from cdc.errors import ValueDecodeError
from projections.changes.documents import decoded_key, key_values
from projections.changes.row_batch import source_columns
from projections.changes.sink import StoredKey
from projections.verification.report import KeyFinding, KeyVerdict

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    from cdc.lsn import Lsn
    from projections.common.throttle import Throttle
    from projections.definition.views import Store
    from projections.planning.view_plan import ViewPlan
    from projections.verification.compared_stores import ComparedStores
    from projections.verification.truth import Truth
    from projections.verification.wait import PositionWaiter

    Document = Mapping[str, Any]

ROUNDS_MAX: Final = 4
"""A key that has changed in this many rounds is moving: a round takes a second or two."""

KEYS_AT_ONCE: Final = 20_000
"""Most keys of one round: a table is read once for all of them, and their rows are in memory."""

FINDINGS_MAX: Final = 100_000
"""Most keys kept by name for a repair; with more, the whole table is read again."""

_WRONG: Final = frozenset(KeyVerdict) - {KeyVerdict.EQUAL, KeyVerdict.MOVING}


@dataclass(slots=True)
class RecheckOutcome:
    """The verdicts for the keys of a view in one store.

    Attributes:
        counts: Number of keys by verdict; for duplicates, of surplus rows.
        findings: The first wrong keys.
        moving: Keys that changed in every round.
    """

    counts: Counter[KeyVerdict] = field(default_factory=Counter)
    findings: list[KeyFinding] = field(default_factory=list)
    moving: set[str] = field(default_factory=set)

    def add(self, outcome: RecheckOutcome) -> None:
        """Adds the outcome of other keys."""
        self.counts.update(outcome.counts)
        self.findings += outcome.findings[: max(0, FINDINGS_MAX - len(self.findings))]
        self.moving |= outcome.moving

    def note(self, finding: KeyFinding, many: int = 1) -> None:
        """Counts a key."""
        self.counts[finding.verdict] += many
        if finding.verdict is KeyVerdict.MOVING:
            self.moving.add(finding.key)
        elif len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)


class Rounds:
    """Decides about keys of one view in several stores, which share each read of the source.

    Args:
        plan: The view; its rows have keys.
        truth: The expected rows.
        stores: Its stores; those that fail are left out.
        reach: Waits for positions of its source.
        throttle: The verification's throttle.
        waiting: Returns the quarantined keys of a store.
    """

    def __init__(  # noqa: PLR0913, PLR0917  # the parts of rounds
        self,
        plan: ViewPlan,
        truth: Truth,
        stores: ComparedStores,
        reach: PositionWaiter,
        throttle: Throttle,
        waiting: Callable[[Store], Container[str]],
    ) -> None:
        self._waiting = waiting
        self._plan = plan
        self._truth = truth
        self._stores = stores
        self._reach = reach
        self._throttle = throttle
        self._columns = [plan.schema.by_name[name] for name in plan.keys]
        self._compared_names = source_columns(plan)

    def judged(
        self, suspects: Mapping[Store, Iterable[str]]
    ) -> Iterator[dict[Store, RecheckOutcome]]:
        """Decides about keys; yields the outcome of some of them after each round.

        Args:
            suspects: The keys that differ, by store.

        Raises:
            NotCaughtUpError: A view does not reach the position of the read; see `ComparedStores`.
        """
        open_keys = {store: set(keys) for store, keys in suspects.items()}
        while any(keys for store, keys in open_keys.items() if store in self._stores):
            part = self._next_keys(open_keys)
            for number in range(1, ROUNDS_MAX + 1):
                outcomes, part = self._round(part, last=number == ROUNDS_MAX)
                yield outcomes
                if not any(part.values()) or self._throttle.stopped:
                    break

    @staticmethod
    def _next_keys(open_keys: dict[Store, set[str]]) -> dict[Store, set[str]]:
        """Takes some keys out, the same ones in all stores if possible."""
        chosen: set[str] = set()
        for keys in open_keys.values():
            for key in keys:
                if len(chosen) >= KEYS_AT_ONCE:
                    break
                chosen.add(key)
        part = {store: keys & chosen for store, keys in open_keys.items()}
        for store, keys in part.items():
            open_keys[store] -= keys
        return part

    def _round(
        self, part: dict[Store, set[str]], *, last: bool
    ) -> tuple[dict[Store, RecheckOutcome], dict[Store, set[str]]]:
        """Applies the steps of the rule once; returns the decided keys and the others."""
        keys = sorted(set().union(*part.values()))
        first: dict[Store, dict[str, StoredKey]] = {}
        for store in self._stores:
            if part.get(store):
                with self._stores.each(store):
                    first[store] = self._held(store, sorted(part[store]))
        left: dict[Store, set[str]] = {store: set() for store in part}
        if not first:
            return {}, left
        seen = self._truth.settle()
        rows, position = self._truth.of_keys(keys)
        self._throttle.step()
        self._await(first, position)
        outcomes: dict[Store, RecheckOutcome] = {}
        for store, before in first.items():
            if store not in self._stores:
                continue
            with self._stores.each(store):
                second = self._held(store, list(before))
                outcome = outcomes[store] = RecheckOutcome()
                waiting = self._waiting(store)  # after the read of the store
                for key, held in second.items():
                    row = rows.get(key)
                    verdict = judge(before[key], row, held, seen=seen)
                    # a transaction that stays open this long will not end by the next round
                    if verdict is KeyVerdict.MOVING and seen and not last:
                        left[store].add(key)
                    elif verdict in _WRONG and key in waiting:
                        outcome.note(KeyFinding(key, KeyVerdict.QUARANTINED, held.version))
                    elif verdict is not KeyVerdict.EQUAL:
                        self._note(outcome, key, verdict, row, held)
        self._throttle.step()
        return outcomes, left

    def _await(self, stores: Iterable[Store], position: Lsn) -> None:
        """Waits until the view has reached a position; leaves out stores that do not."""
        wanted = {(self._plan.name, store) for store in stores if store in self._stores}
        for place in sorted(self._reach.behind(wanted, position)):
            self._stores.leave_out(place[1], self._reach.late([place], position))

    def _note(
        self,
        outcome: RecheckOutcome,
        key: str,
        verdict: KeyVerdict,
        row: Document | None,
        held: StoredKey,
    ) -> None:
        if verdict is KeyVerdict.EXTRA:
            outcome.note(KeyFinding(key, verdict, held.version), len(held.documents))
        elif verdict is KeyVerdict.DUPLICATED:
            outcome.note(KeyFinding(key, verdict, held.version), len(held.documents) - 1)
            if row is not None and hash_of(row) not in map(hash_of, held.documents):
                outcome.counts[KeyVerdict.DIFFERENT] += 1
        else:
            columns: tuple[str, ...] = ()
            if verdict is KeyVerdict.DIFFERENT and row is not None:
                stored = held.documents[0]
                columns = tuple(name for name in self._compared_names if stored[name] != row[name])
            outcome.note(KeyFinding(key, verdict, held.version, columns))

    def _held(self, store: Store, keys: Sequence[str]) -> dict[str, StoredKey]:
        """Returns the stored rows of keys, as far as both sides can represent them."""
        wanted: dict[str, tuple[object, ...]] = {}
        stored = dict.fromkeys(keys, StoredKey(0))
        for key in keys:
            try:
                wanted[key] = decoded_key(key_values(key, self._columns), self._columns)
            except ValueDecodeError:
                continue  # no store can represent the key
        holdings = self._stores.sinks[store].stored(self._plan, list(wanted.values()))
        for key, held in zip(wanted, holdings, strict=True):
            rows = (
                {name: document.get(name) for name in self._compared_names}
                for document in held.documents
            )
            stored[key] = StoredKey(held.version, tuple(rows))
        return stored


def wrong(counts: Counter[KeyVerdict]) -> int:
    """Returns how many keys are wrong, for any reason."""
    return sum(counts[verdict] for verdict in _WRONG)


HASH_BYTES: Final = 16


def judge(
    first: StoredKey, row: Document | None, second: StoredKey, *, seen: bool = True
) -> KeyVerdict:
    """Returns the verdict for a key; see the module.

    Args:
        first: The view's row before the read of the source.
        row: The source's row; None if there is none.
        second: The view's row once it had applied everything up to L.
        seen: Whether step 2 succeeded; otherwise only equality can be concluded.
    """
    if first.version != second.version:
        same = _is(first, row) or _is(second, row)
        return KeyVerdict.EQUAL if same else KeyVerdict.MOVING
    if _is(second, row):
        return KeyVerdict.EQUAL
    if not seen:
        return KeyVerdict.MOVING
    if not second.documents:
        return KeyVerdict.MISSING
    if row is None:
        return KeyVerdict.EXTRA
    return KeyVerdict.DUPLICATED if len(second.documents) > 1 else KeyVerdict.DIFFERENT


def hash_of(document: Document) -> bytes:
    """Returns the hash that represents a row while millions are compared."""
    data = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(data, digest_size=HASH_BYTES).digest()


def _is(holding: StoredKey, row: Document | None) -> bool:
    if row is None:
        return not holding.documents
    return len(holding.documents) == 1 and hash_of(holding.documents[0]) == hash_of(row)
