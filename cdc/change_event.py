"""ChangeEvent: one row change of the source, with its position in the source's order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from cdc.envelope import Envelope, Operation
from cdc.errors import EnvelopeError
from cdc.lsn import Lsn
from cdc.position import ChangePosition
from cdc.table import TableName

if TYPE_CHECKING:
    from collections.abc import Mapping

EPOCH_HEADER = "headwater.epoch"
"""Kafka header in which the connector writes the source's epoch, as decimal digits."""


@dataclass(frozen=True, slots=True)
class ChangeEvent:
    """A change as Debezium sent it; values are still in its JSON forms.

    Attributes:
        table: The table.
        operation: The operation.
        key: The key's columns; None for a table without a key.
        before: Old row, as far as the record has it.
        after: New row; None after a delete.
        position: Its log position.
        transaction_id: Postgres' transaction id; None for snapshot rows of an idle source.
        committed_at_us: Commit time at the source, microseconds since 1970, UTC.
        snapshot: Whether it is a snapshot row.
    """

    table: TableName
    operation: Operation
    key: Mapping[str, Any] | None
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    position: ChangePosition
    transaction_id: int | None
    committed_at_us: int
    snapshot: bool

    @classmethod
    def parse(cls, key: bytes | None, value: bytes, epoch: int) -> ChangeEvent:
        """Parses a record of a change topic.

        Args:
            key: The record's key, schemaless JSON; None or `null` for a table without a key.
            value: The record's value, a Debezium envelope; a tombstone is not a change.
            epoch: The source's epoch, from the record's header.

        Raises:
            EnvelopeError: The record is not a change of a row.
        """
        envelope = Envelope.parse(value)
        source = envelope.source
        snapshot = envelope.operation is Operation.READ
        try:
            table = TableName(_text(source["schema"]), _text(source["table"]))
            position = _position(envelope, epoch)
            committed_at_us = _int64(source.get("ts_us") or _int64(source["ts_ms"]) * 1000)
            transaction_id = source.get("txId")
            transaction_id = None if transaction_id is None else _int64(transaction_id)
        except (KeyError, TypeError, ValueError) as error:
            raise EnvelopeError("source block lacks a field", detail=str(error)) from None
        return cls(
            table,
            envelope.operation,
            _key(key),
            envelope.before,
            envelope.after,
            position,
            transaction_id,
            committed_at_us,
            snapshot,
        )


def _key(key: bytes | None) -> Mapping[str, Any] | None:
    try:
        fields = None if key is None else orjson.loads(key)
    except orjson.JSONDecodeError as error:
        raise EnvelopeError("key is not JSON", detail=f"at byte {error.pos}") from None
    if fields is not None and not isinstance(fields, dict):
        raise EnvelopeError("key does not name its columns")
    return fields


def _position(envelope: Envelope, epoch: int) -> ChangePosition:
    sequence = envelope.source.get("sequence")
    last_commit, lsn = orjson.loads(sequence) if sequence else (None, None)
    row = Lsn(int(lsn or envelope.source["lsn"]))
    order = _int64((envelope.transaction or {}).get("total_order", 0))
    if envelope.operation is Operation.READ:
        return ChangePosition.of_read(epoch, row, order)
    return ChangePosition(epoch, Lsn(int(last_commit or 0)), row, order)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a name is no text")
    return value


def _int64(value: Any) -> int:
    if type(value) is not int or value >> 63:
        raise TypeError("a number is no whole number of 63 bits")
    return value
