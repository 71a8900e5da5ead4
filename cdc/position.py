"""ChangePosition: the position of a change in the source's commit order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cdc.errors import EnvelopeError
from cdc.lsn import Lsn

VERSION_LSN_BITS: Final = 56
"""Number of low bits of a row's version that hold its lsn; the bits above hold the epoch."""

_EPOCH_MAX = 127


@dataclass(frozen=True, slots=True, order=True)
class ChangePosition:
    """The position of a change in the order of all changes of one source.

    Positions compare field by field. A recreated or restored source has a later `epoch`.
    Transactions are in commit order: `commit_lsn` orders them, although their rows interleave in
    the log. Rows of one transaction are ordered by `lsn`, and rows that share an lsn (COPY writes
    many in one WAL record) by `order`.

    A snapshot row precedes every streamed transaction. Its `lsn` is the position of the snapshot,
    so every change of its key that the snapshot does not include has a greater one.

    Attributes:
        epoch: Incarnation of the source, 1 to 127, raised when its slot is recreated.
        commit_lsn: Commit of the transaction before this one; 0 for snapshot rows.
        lsn: The position of the row; for snapshot rows, that of the snapshot.
        order: Number of the row in its transaction, from 1; 0 if there is none. It orders rows but
            does not identify them: after a restart within a transaction, Debezium may count a row
            twice, so a repeated record can have a number that is higher by one.
    """

    epoch: int
    commit_lsn: Lsn
    lsn: Lsn
    order: int

    def __post_init__(self) -> None:
        if not 1 <= self.epoch <= _EPOCH_MAX:
            raise EnvelopeError("epoch outside 1 to 127", detail=str(self.epoch))
        if self.lsn.value >> VERSION_LSN_BITS:
            raise EnvelopeError("lsn beyond 2**56 bytes", detail=str(self.lsn))

    @classmethod
    def of_read(cls, epoch: int, lsn: Lsn, order: int = 0) -> ChangePosition:
        """Returns the version of a row that a snapshot read.

        Args:
            epoch: Incarnation of the source.
            lsn: Position of the snapshot.
            order: Distinguishes rows of a table without a key; 0 for a table with a key.
        """
        return cls(epoch, Lsn(0), lsn, order)

    @property
    def version(self) -> int:
        """The position as one positive 63-bit number that orders the changes of *one key*.

        Postgres locks a row (and a unique key) until the transaction that wrote it has ended. The
        changes of one key therefore have distinct lsns that rise in commit order, so epoch and lsn
        suffice. Search engines accept such a number as an external version.
        """
        return version_of(self.epoch, self.lsn.value)


def version_of(epoch: int, lsn: int) -> int:
    """Returns the version of a row that was changed or read at this lsn and epoch."""
    return epoch << VERSION_LSN_BITS | lsn


def epoch_of(version: int) -> int:
    """Returns the epoch of a row's version."""
    return version >> VERSION_LSN_BITS


def lsn_of(version: int) -> int:
    """Returns the lsn of a row's version, bytes."""
    return version & (1 << VERSION_LSN_BITS) - 1
