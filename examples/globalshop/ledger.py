"""What the traffic committed: counted per transaction, kept only when it commits."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = ("insert", "update", "delete", "rekey")
"""Kinds of change; `rekey` changes a row's primary key, which a log shows as delete and insert."""


@dataclass(slots=True)
class Notes:
    """What one open transaction did; forgotten if it rolls back.

    Attributes:
        changes: Row changes by table and kind.
        savepoints_rolled_back: Parts of the transaction that were undone.
    """

    changes: Counter[tuple[str, str]] = field(default_factory=Counter)
    savepoints_rolled_back: int = 0
    _afterwards: list[Callable[[], object]] = field(default_factory=list)

    def add(self, table: str, kind: str, rows: int = 1) -> None:
        """Notes changed rows of one table."""
        self.changes[table, kind] += rows

    def afterwards(self, remember: Callable[..., object], *arguments: object) -> None:
        """Notes what the shop may rely on once the transaction has committed."""
        self._afterwards.append(partial(remember, *arguments))

    def committed(self) -> None:
        """Carries out what was noted for after the commit."""
        for remember in self._afterwards:
            remember()


@dataclass(slots=True)
class Ledger:
    """Totals over all committed transactions.

    Attributes:
        transactions: Committed ones.
        rolled_back: Those rolled back entirely.
        refused: Those given up because the shop's rules refused a command.
        savepoints_rolled_back: Rolled back parts of committed ones.
        changes: Committed row changes by table and kind.
    """

    transactions: int = 0
    rolled_back: int = 0
    refused: int = 0
    savepoints_rolled_back: int = 0
    changes: Counter[tuple[str, str]] = field(default_factory=Counter)

    def commit(self, notes: Notes) -> None:
        """Adds a transaction that has committed."""
        self.transactions += 1
        self.savepoints_rolled_back += notes.savepoints_rolled_back
        self.changes.update(notes.changes)
        notes.committed()

    def roll_back(self) -> None:
        """Adds a transaction that was rolled back."""
        self.rolled_back += 1

    @property
    def rows(self) -> int:
        """All committed row changes."""
        return self.changes.total()

    def to_json(self) -> dict[str, object]:
        """As a JSON object; `tables` holds counts by table and kind, with events as a table."""
        tables: dict[str, dict[str, int]] = {}
        for (table, kind), rows in sorted(self.changes.items()):
            if rows:
                tables.setdefault(table, {})[kind] = rows
        return {
            "transactions": self.transactions,
            "changes": self.rows,
            "rolled_back": self.rolled_back,
            "refused": self.refused,
            "savepoints_rolled_back": self.savepoints_rolled_back,
            "tables": tables,
        }
