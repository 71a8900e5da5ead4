"""ChangePosition: a change's place in the source's commit order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cdc.errors import EnvelopeError
from cdc.lsn import Lsn

VERSION_LSN_BITS: Final = 56
"""Low bits of a row's version that are its lsn; the epoch is above them."""

_EPOCH_MAX = 127


@dataclass(frozen=True, slots=True, order=True)
class ChangePosition:
    """The place of a change in the order of all changes of one source.

    The order of the fields is the order of the log: recreated or restored sources have a later
    `epoch`; transactions are ordered by commit, so the commit before a transaction orders it
    although rows of several transactions interleave in the log; rows of a transaction are ordered
    by `lsn`, and rows that share an lsn (COPY writes many in one record) by their number in the
    transaction.

    A snapshot row precedes every streamed transaction, and its `lsn` is the position of the
    snapshot: changes of its key that the snapshot has not seen have a greater one.

    Attributes:
        epoch: Incarnation of the source, 1 to 127, raised when its slot is recreated.
        commit_lsn: Commit of the transaction before this one; 0 for snapshot rows.
        lsn: The row's own position; the snapshot's position for snapshot rows.
        order: Number of the row in its transaction, from 1; 0 if there is none. After a restart
            within a transaction Debezium may count a row twice, so a repeated record can have a
            number one higher: it orders rows, and does not identify them.
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
            order: Distinguishes rows of a table without a key; 0 with a key.
        """
        return cls(epoch, Lsn(0), lsn, order)

    @property
    def version(self) -> int:
        """The place as one positive 63-bit number that orders the changes of *one key*.

        Postgres locks a row (and a unique key) until the transaction that wrote it has ended, so
        the changes of one key have rising lsns in commit order, and no two share one: epoch and
        lsn decide alone. Search engines take exactly such a number as an external version.
        """
        return version_of(self.epoch, self.lsn.value)


def version_of(epoch: int, lsn: int) -> int:
    """Returns the version of a row that was changed, or read, at an lsn of an epoch."""
    return epoch << VERSION_LSN_BITS | lsn


def epoch_of(version: int) -> int:
    """Returns the epoch of a row's version."""
    return version >> VERSION_LSN_BITS


def lsn_of(version: int) -> int:
    """Returns the lsn of a row's version, as a number of bytes."""
    return version & (1 << VERSION_LSN_BITS) - 1
