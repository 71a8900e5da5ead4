"""Audit: a hash chain over the log, verified against a head that is kept outside the database.

An event's hash covers the hash before it and every column of its row, so no event can be edited,
removed, inserted or exchanged for another without all later hashes being different. Hashes are kept
in seals of up to `BLOCK` events, each linked to the one before. A writer with access to the whole
database can also compute the whole chain again; the `SealedHead` that is printed and stored outside
the database detects that, and a log that was cut or restored to an earlier time.

An event's data is hashed as stored. Personal fields are stored encrypted, so destroying a person's
key changes no hash.
"""

from __future__ import annotations

import hashlib
import re
import struct
from array import array
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from eventstore.errors import AuditError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HASH_BYTES: Final = 32
"""SHA-256."""

BLOCK: Final = 4096
"""Events of one seal: 160 KiB, and as many events in memory at once."""

SEALS_BEGIN: Final = hashlib.sha256(b"headwater seals 1").digest()
"""What the first seal is linked to, and the first event's hash covers."""

COMPACTIONS_BEGIN: Final = hashlib.sha256(b"headwater compactions 1").digest()
"""What the first record of a compaction covers."""


class Seal(NamedTuple):
    """Hashes of one block of the log.

    Attributes:
        block: Number, from 1, without gaps.
        after: Global position after which it begins: the end of the previous block.
        through: Global position with which it ends. Any other event between the two was inserted
            after the sealing.
        event_total: Events of this block and all before it.
        positions: Of its events, ascending.
        hashes: 32 bytes for each of them.
        sealed_us: Time of sealing, in microseconds since 1970 by the database's clock.
        digest: SHA-256 of the previous digest and all of the above.
    """

    block: int
    after: int
    through: int
    event_total: int
    positions: Sequence[int]
    hashes: bytes
    sealed_us: int
    digest: bytes

    @property
    def last_hash(self) -> bytes:
        """Hash of its last event, which the next block's first one covers."""
        return self.hashes[-HASH_BYTES:]

    def digest_after(self, previous: bytes) -> bytes:
        """Returns the digest that this seal must have after the seal with digest `previous`."""
        positions = array("q", self.positions)
        if struct.pack("=h", 1) != struct.pack(">h", 1):
            positions.byteswap()
        numbers = (
            *(self.block, self.after, self.through, self.event_total),
            *(self.sealed_us, len(self.positions)),
        )
        return hashlib.sha256(
            previous + struct.pack(">6q", *numbers) + positions.tobytes() + self.hashes
        ).digest()


def chained(previous: bytes, contents: Iterable[bytes]) -> list[bytes]:
    """Returns the hash of each event.

    Args:
        previous: Hash of the event before the first one.
        contents: Canonical encoding of each event, in global order.
    """
    sha256 = hashlib.sha256
    hashes = []
    for content in contents:
        previous = sha256(previous + content).digest()
        hashes.append(previous)
    return hashes


@dataclass(frozen=True, slots=True)
class SealedHead:
    """The head to keep outside the database: it detects every change of the log up to `position`.

    Its text is one line, `hwa1.block.position.event_total.digest.compactions.hash`.

    Attributes:
        block: Number of the last seal; 0 if there is none.
        position: Global position through which the log is sealed.
        event_total: Events sealed.
        digest: Of the last seal.
        compactions: Number of the last record of a compaction; 0 if there is none.
        compactions_hash: Of that record.
    """

    block: int = 0
    position: int = 0
    event_total: int = 0
    digest: bytes = SEALS_BEGIN
    compactions: int = 0
    compactions_hash: bytes = COMPACTIONS_BEGIN

    def __str__(self) -> str:
        return (
            f"hwa1.{self.block}.{self.position}.{self.event_total}.{self.digest.hex()}"
            f".{self.compactions}.{self.compactions_hash.hex()}"
        )

    @classmethod
    def parse(cls, text: str) -> SealedHead:
        """Parses the text of a head, as returned by `str()`; ignores surrounding white space.

        Raises:
            AuditError: It is none.
        """
        found = _HEAD.fullmatch(text.strip())
        if found is None:
            raise AuditError(
                "the text is not a sealed head",
                detail=f"{text!r:.80}",
                hint="a sealed head is one line that begins with hwa1.",
            )
        block, position, total, digest, compactions, compactions_hash = found.groups()
        return cls(
            block=int(block),
            position=int(position),
            event_total=int(total),
            digest=bytes.fromhex(digest),
            compactions=int(compactions),
            compactions_hash=bytes.fromhex(compactions_hash),
        )


_HEAD: Final = re.compile(
    r"hwa1\.(\d{1,19})\.(\d{1,19})\.(\d{1,19})\.([0-9a-f]{64})\.(\d{1,19})\.([0-9a-f]{64})"
)


class Tampering(StrEnum):
    """A kind of difference between the log and its seals.

    | kind | the position is that of |
    |---|---|
    | CHANGED | the first event that was edited, or exchanged for another |
    | REMOVED | the first event that is gone |
    | INSERTED | the first event that was not there when its position was sealed |
    | MISPLACED | the first event that is in the archive but was not compacted, or the reverse |
    | SEAL | the first event whose hash was changed; else where the changed or missing seal begins |
    | CUT | the end of what is left, if the log or its seals end before the head kept outside |
    | REWRITTEN | the head kept outside; the first different event is there or before |
    | SNAPSHOT | the first `$snapshot` that is not the one that compaction wrote |
    | COMPACTION | what the first changed or missing record of a compaction is about |
    """

    CHANGED = "changed"
    REMOVED = "removed"
    INSERTED = "inserted"
    MISPLACED = "misplaced"
    SEAL = "seal"
    CUT = "cut"
    REWRITTEN = "rewritten"
    SNAPSHOT = "snapshot"
    COMPACTION = "compaction"


class Finding(NamedTuple):
    """One difference.

    Attributes:
        kind: Kind of the difference.
        position: Global position; see `Tampering`.
        detail: The compared values; never a payload.
    """

    kind: Tampering
    position: int
    detail: str


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of a verification.

    Attributes:
        head: The present sealed head; store it outside the database if the report is clean.
        events: Events that were compared with their hashes.
        dropped: Events that retention has dropped; their hashes are in the seals.
        unsealed: Events after the last seal, which are not protected yet.
        findings: At most one for each comparison, in log order.
    """

    head: SealedHead
    events: int
    dropped: int
    unsealed: int
    findings: tuple[Finding, ...]

    @property
    def clean(self) -> bool:
        """Whether the log matches its seals."""
        return not self.findings

    def check(self) -> None:
        """Raises an error unless the report is clean.

        Raises:
            AuditError: It is not; names the first position.
        """
        if self.findings:
            first = self.findings[0]
            raise AuditError(
                (
                    f"the log differs from its seals: {first.kind} at global position "
                    f"{first.position}"
                ),
                detail="; ".join(f"{f.kind} at {f.position}: {f.detail}" for f in self.findings),
                hint="compare with an earlier backup; preserve this database unchanged",
            )


class BlockCheck(NamedTuple):
    """One block of the log compared with its seal.

    Attributes:
        events: Events from the block's beginning whose hashes match the seal.
        dropped: Events skipped because retention has dropped them.
        finding: The first difference.
    """

    events: int
    dropped: int
    finding: Finding | None


def check_block(
    seal: Seal,
    previous: bytes,
    rows: Sequence[tuple[int, bytes]],
    dropped: frozenset[int] = frozenset(),
) -> BlockCheck:
    """Compares a block of the log with its seal.

    Args:
        seal: The seal.
        previous: Hash of the event before.
        rows: Global position and canonical encoding of the present events, in order; one more than
            in the seal is sufficient.
        dropped: Global positions that may be missing.
    """
    if [row[0] for row in rows] == list(seal.positions) and seal.hashes == b"".join(
        chained(previous, (row[1] for row in rows))
    ):
        return BlockCheck(len(rows), 0, None)
    return _check_each(seal, previous, rows, dropped)


def _check_each(
    seal: Seal, previous: bytes, rows: Sequence[tuple[int, bytes]], dropped: frozenset[int]
) -> BlockCheck:
    same = passed = 0
    for place, position in enumerate(seal.positions):
        wanted = seal.hashes[place * HASH_BYTES : (place + 1) * HASH_BYTES]
        there = rows[same] if same < len(rows) else None
        if there is not None and there[0] < position:
            return BlockCheck(same, passed, _inserted(there[0]))
        if there is None or there[0] > position:
            if position not in dropped:
                gone = Finding(Tampering.REMOVED, position, "the event is not there")
                return BlockCheck(same, passed, gone)
            passed += 1
        elif hashlib.sha256(previous + there[1]).digest() != wanted:
            changed = Finding(Tampering.CHANGED, position, "the event has another hash")
            return BlockCheck(same, passed, changed)
        else:
            same += 1
        previous = wanted
    left = _inserted(rows[same][0]) if same < len(rows) else None
    return BlockCheck(same, passed, left)


def _inserted(position: int) -> Finding:
    return Finding(
        Tampering.INSERTED, position, "the event was not there when its place was sealed"
    )


class Audit(Protocol):
    """Seals a log and verifies it.

    Sealing blocks no writer. Concurrent calls run one after another and continue where the previous
    one ended. If it is killed, whole blocks are sealed, and the next call continues.
    """

    def seal(self, through: int | None = None) -> SealedHead:
        """Seals the events that are not sealed yet, and returns the new head.

        Args:
            through: Up to this global position; never beyond the high-water mark, which is also
                what None means.
        """
        ...

    def head(self) -> SealedHead:
        """Returns the sealed head."""
        ...

    def verify(self, head: SealedHead | None = None) -> AuditReport:
        """Compares the whole log, the archive, the seals and all `$snapshot` events.

        Args:
            head: A head that was kept outside; None compares the database with itself only.
        """
        ...
