"""PostgresAudit: seals and verifies the log on Postgres; `upkeep.audit` describes the chain."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from eventstore.postgres.owner import connected
from eventstore.upkeep.audit import (
    BLOCK,
    COMPACTIONS_BEGIN,
    SEALS_BEGIN,
    AuditReport,
    Finding,
    Seal,
    SealedHead,
    Tampering,
    chained,
    check_block,
)
from foundation.advisory_lock import AdvisoryLock

if TYPE_CHECKING:
    from psycopg import Connection, Cursor

    from eventstore.upkeep.audit import BlockCheck

PAGE: Final = 500
"""Records of compactions in memory at a time."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

_ROW: Final = (
    "record_send(ROW(global_position, tenant, stream, stream_position, type, schema_version,"
    " event_id, data, metadata, tags, correlation_id, causation_id, actor, occurred_at,"
    " recorded_at))"
)
_ONE_TABLE: Final = (
    "(SELECT global_position, {row} AS content FROM eventstore.{table}"
    " WHERE global_position > %(after)s AND global_position <= %(through)s{only}"
    " ORDER BY global_position LIMIT %(limit)s)"
)
# The body of the view `log` with a limit in each half, so that the planner uses the indexes.
_EVENTS: Final = (
    _ONE_TABLE.format(row=_ROW, table="events", only=" AND type <> '$snapshot'")
    + " UNION ALL "
    + _ONE_TABLE.format(row=_ROW, table="archived_events", only="")
    + " ORDER BY global_position LIMIT %(limit)s"
)

_SEALS: Final = AdvisoryLock("1749238, 2")
"""1749238 is the lock class of the hash chains, 2 the chain of seals."""

# Postgres assumes that a table that was never analyzed is small, and would sort the rest of the log
# for each block.
_UNSORTED: Final = "SET LOCAL enable_sort = off"
_LAST_SEAL: Final = (
    "SELECT block, through_position, event_total, digest,"
    " substring(hashes FROM octet_length(hashes) - 31)"
    " FROM eventstore.seals ORDER BY block DESC LIMIT 1"
)
_LAST_COMPACTION: Final = (
    "SELECT number, hash FROM eventstore.compactions ORDER BY number DESC LIMIT 1"
)
_ADD_SEAL: Final = (
    "INSERT INTO eventstore.seals (block, after_position, through_position, event_total,"
    " positions, hashes, sealed_at, digest)"
    " VALUES (%s, %s, %s, %s, %s::bigint[], %s, %s, %s)"
)
_NEXT_SEAL: Final = (
    "SELECT block, after_position, through_position, event_total, positions, hashes, sealed_at,"
    " digest FROM eventstore.seals WHERE block > %s AND block <= %s ORDER BY block LIMIT 1"
)
_DROPPED: Final = (
    "SELECT place FROM eventstore.compactions, unnest(positions) AS place"
    " WHERE action = 'dropped' AND global_position > %(after)s AND positions[1] <= %(through)s"
    " AND place > %(after)s AND place <= %(through)s"
)
_COMPACTIONS: Final = (
    "SELECT number, global_position, hash, record_send(ROW(number, action, tenant, stream,"
    " first_position, through_position, global_position, positions, digest, recorded_at))"
    " FROM eventstore.compactions WHERE number > %s ORDER BY number LIMIT %s"
)
_LATEST: Final = (
    "WITH latest AS (SELECT DISTINCT ON (tenant, stream) tenant, stream, through_position,"
    " global_position, digest FROM eventstore.compactions WHERE action = 'compacted'"
    " ORDER BY tenant, stream, number DESC) "
)
_SNAPSHOT: Final = (
    f"{_LATEST}, standing AS ("  # noqa: S608
    f"SELECT tenant, stream, global_position, sha256({_ROW}) AS digest"
    " FROM eventstore.events WHERE type = '$snapshot')"
    " SELECT global_position FROM latest FULL JOIN standing"
    " USING (tenant, stream, global_position)"
    " WHERE latest.digest IS DISTINCT FROM standing.digest ORDER BY global_position LIMIT 1"
)
_MISPLACED: Final = (
    f"{_LATEST} SELECT min(place) FROM ("  # noqa: S608
    "SELECT min(e.global_position) AS place FROM eventstore.archived_events AS e"
    " LEFT JOIN latest AS l ON l.tenant = e.tenant AND l.stream = e.stream"
    " AND l.through_position >= e.stream_position WHERE l.stream IS NULL"
    " UNION ALL "
    "SELECT min(e.global_position) FROM eventstore.events AS e"
    " JOIN latest AS l ON l.tenant = e.tenant AND l.stream = e.stream"
    " AND l.through_position >= e.stream_position WHERE e.type <> '$snapshot') AS either"
)
_UNSEALED: Final = "SELECT count(*) FROM eventstore.log WHERE global_position > %s"


class PostgresAudit:
    """An `Audit` of the log on one Postgres database.

    Args:
        dsn: The database, as a role that bypasses row-level security; never shown.
        block: Events of one seal; at most `BLOCK`.
    """

    def __init__(self, dsn: str, *, block: int = BLOCK) -> None:
        self._dsn = dsn
        self._block = block

    def seal(self, through: int | None = None) -> SealedHead:
        """See `Audit.seal`."""
        with connected(self._dsn) as connection:
            (mark,) = _one(connection, "SELECT eventstore.high_water_mark()")
            bound = mark if through is None else min(mark, through)
            while _seal_block(connection, bound, self._block):
                pass
            return _head(connection)

    def head(self) -> SealedHead:
        """See `Audit.head`."""
        with connected(self._dsn) as connection:
            return _head(connection)

    def verify(self, head: SealedHead | None = None) -> AuditReport:
        """See `Audit.verify`."""
        with connected(self._dsn) as connection:
            now = _head(connection)
            log = _Walk(connection, now)
            found = [log.finding()]
            if head is not None:
                found += [_check_seals_kept(connection, head, now)]
            found += [
                _check_compactions(connection, head or SealedHead()),
                _check_snapshots(connection),
                _check_places(connection),
            ]
            (unsealed,) = _one(connection, _UNSEALED, (now.position,))
        findings = sorted((one for one in found if one is not None), key=lambda one: one.position)
        return AuditReport(now, log.events, log.dropped, unsealed, tuple(findings))


def _one(connection: Connection[Any], sql: str, parameters: tuple[Any, ...] = ()) -> Any:
    return connection.cursor(binary=True).execute(sql, parameters).fetchone()


def _head(connection: Connection[Any]) -> SealedHead:
    block, position, total, digest, _ = _last_seal(connection)
    number, compactions_hash = _one(connection, _LAST_COMPACTION) or (0, COMPACTIONS_BEGIN)
    return SealedHead(block, position, total, digest, number, compactions_hash)


def _last_seal(connection: Connection[Any]) -> Any:
    return _one(connection, _LAST_SEAL) or (0, 0, 0, SEALS_BEGIN, SEALS_BEGIN)


def _seal_block(connection: Connection[Any], bound: int, limit: int) -> bool:
    """Seals the next block, if there is one up to `bound`."""
    with connection.transaction():
        connection.execute(_SEALS.in_transaction)
        connection.execute(_UNSORTED)
        block, after, total, digest, last_hash = _last_seal(connection)
        rows = _events(connection.cursor(binary=True), after, bound, limit)
        if not rows:
            return False
        positions = [row[0] for row in rows]
        (now,) = _one(connection, "SELECT clock_timestamp()")
        unlinked = Seal(
            block=block + 1,
            after=after,
            through=bound if len(rows) < limit else positions[-1],
            event_total=total + len(rows),
            positions=positions,
            hashes=b"".join(chained(last_hash, (row[1] for row in rows))),
            sealed_us=(now - _EPOCH) // _MICROSECOND,
            digest=b"",
        )
        # an array in Postgres' text format: psycopg's generic adaptation takes ten times as long
        array = "{" + ",".join(map(str, positions)) + "}"
        numbers, digest = unlinked[:4], unlinked.digest_after(digest)
        connection.execute(_ADD_SEAL, (*numbers, array, unlinked.hashes, now, digest))
        return len(rows) == limit


def _events(cursor: Cursor[Any], after: int, through: int, limit: int) -> list[tuple[int, bytes]]:
    bounds = {"after": after, "through": through, "limit": limit}
    return cursor.execute(_EVENTS, bounds, prepare=True).fetchall()


class _Walk:
    """Compares the log with its seals, block by block, up to the first difference."""

    def __init__(self, connection: Connection[Any], head: SealedHead) -> None:
        self._cursor = connection.cursor(binary=True)
        self._head = head
        self.events = 0
        self.dropped = 0

    def finding(self) -> Finding | None:
        digest, last_hash, after = SEALS_BEGIN, SEALS_BEGIN, 0
        for block in range(1, self._head.block + 1):
            seal = self._seal(block)
            if seal is None or seal.block != block or seal.after != after:
                return Finding(Tampering.SEAL, after + 1, f"seal {block} is missing or moved")
            check = self._check(seal, last_hash)
            self.events += check.events
            self.dropped += check.dropped
            if seal.digest != seal.digest_after(digest):
                place = after + 1 if check.finding is None else check.finding.position
                return Finding(Tampering.SEAL, place, f"seal {block} has another digest")
            if check.finding is not None:
                return check.finding
            digest, last_hash, after = seal.digest, seal.last_hash, seal.through
        return None

    def _seal(self, block: int) -> Seal | None:
        row = self._cursor.execute(_NEXT_SEAL, (block - 1, self._head.block), prepare=True)
        found = row.fetchone()
        if found is None:
            return None
        sealed_us = (found[6] - _EPOCH) // _MICROSECOND
        return Seal._make((*found[:6], sealed_us, found[7]))

    def _check(self, seal: Seal, last_hash: bytes) -> BlockCheck:
        rows = _events(self._cursor, seal.after, seal.through, len(seal.positions) + 1)
        check = check_block(seal, last_hash, rows)
        if check.finding is None or check.finding.kind != Tampering.REMOVED:
            return check
        # read after the events, so that it includes events dropped in between
        bounds = {"after": seal.after, "through": seal.through}
        dropped = self._cursor.execute(_DROPPED, bounds).fetchall()
        return check_block(seal, last_hash, rows, frozenset(place for (place,) in dropped))


def _check_seals_kept(
    connection: Connection[Any], kept: SealedHead, now: SealedHead
) -> Finding | None:
    if kept.block > now.block:
        what = f"{now.block} seals are left, {kept.block} were there"
        return Finding(Tampering.CUT, now.position, what)
    found = (
        (0, 0, SEALS_BEGIN)
        if kept.block == 0
        else _one(
            connection,
            "SELECT through_position, event_total, digest FROM eventstore.seals WHERE block = %s",
            (kept.block,),
        )
    )
    if found == (kept.position, kept.event_total, kept.digest):
        return None
    return Finding(Tampering.REWRITTEN, kept.position, f"seal {kept.block} is another one")


def _check_compactions(connection: Connection[Any], kept: SealedHead) -> Finding | None:
    cursor = connection.cursor(binary=True)
    number, previous, position = 0, COMPACTIONS_BEGIN, 0
    while page := cursor.execute(_COMPACTIONS, (number, PAGE)).fetchall():
        for found, position, digest, content in page:
            number += 1
            previous = hashlib.sha256(previous + content).digest()
            wanted = kept.compactions_hash if number == kept.compactions else digest
            if found != number or digest != previous or wanted != digest:
                return Finding(
                    Tampering.COMPACTION, position, f"the record of compaction {number} is another"
                )
    if number < kept.compactions:
        what = f"{number} records of compactions are left, {kept.compactions} were there"
        return Finding(Tampering.COMPACTION, position, what)
    return None


def _check_snapshots(connection: Connection[Any]) -> Finding | None:
    found = _one(connection, _SNAPSHOT)
    if found is None:
        return None
    return Finding(Tampering.SNAPSHOT, found[0], "the $snapshot is not the one that was recorded")


def _check_places(connection: Connection[Any]) -> Finding | None:
    (position,) = _one(connection, _MISPLACED)
    if position is None:
        return None
    return Finding(Tampering.MISPLACED, position, "the event is in the wrong one of the two tables")
