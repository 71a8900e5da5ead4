"""Record: one Kafka record of a change topic, and RecordFailure: why it is not a change."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from cdc.change_event import EPOCH_HEADER
from cdc.errors import EnvelopeError
from cdc.lsn import Lsn
from cdc.position import ChangePosition

if TYPE_CHECKING:
    from foundation.errors import PlatformError

OLD_KEY_HEADER: Final = "__debezium.oldkey"
"""Kafka header with the old key of a row whose key was changed."""


class Record(NamedTuple):
    """The parts of a Kafka record that views need.

    Attributes:
        key: Its key.
        value: Its value; None for a tombstone.
        epoch: Value of its header `headwater.epoch`.
        partition: Its partition.
        offset: Its offset.
        old_key: The row's old key, if the change gave it another one.
        sent_at_us: Its time at the broker, microseconds since 1970, UTC; 0 if unknown, as for a
            record that was quarantined.
    """

    key: bytes | None
    value: bytes | None
    epoch: str | None
    partition: int
    offset: int
    old_key: bytes | None = None
    sent_at_us: int = 0


class RecordFailure(NamedTuple):
    """Records that could not be converted to a change of a view.

    Attributes:
        records: The record that failed, and those whose values it needs; the failed one is last.
        error: Why it failed.
        version: Its position in the log; None if that cannot be read.
        key: Values of the row's key; None if they cannot be read.
        kind: The type of an added event.
        begun: What the change reports of its row's insert; see `RowChange`.
        begun_at_us: Commit time of that insert; see `RowChange`.
    """

    records: tuple[Record, ...]
    error: PlatformError
    version: int | None
    key: tuple[object, ...] | None
    kind: str | None = None
    begun: int = 0
    begun_at_us: int = 0


def canonical(key: bytes | None) -> bytes | None:
    """Returns a key in the connector's form; None if it is not a JSON object."""
    try:
        fields = None if key is None else orjson.loads(key)
    except orjson.JSONDecodeError:
        return None
    return orjson.dumps(fields) if isinstance(fields, dict) else None


def key_text(topic: str, record: Record) -> str:
    """Returns the text by which changes of one key are quarantined together.

    For a key, that is its JSON object; for bytes that are not JSON, the bytes; for a record without
    a key, its topic, partition and offset, so that it waits alone.
    """
    encoded = canonical(record.key)
    if encoded is not None:
        return encoded.decode()
    if record.key is None or record.key == b"null":
        return f"{topic}/{record.partition}/{record.offset}"
    return "hex:" + record.key.hex()


@cache
def stated_epoch(text: str | None) -> int:
    """Returns the epoch that a record's header states.

    Raises:
        EnvelopeError: The header is missing or not a number.
    """
    if text is None:
        raise EnvelopeError(f"record lacks the header {EPOCH_HEADER}")
    try:
        return ChangePosition.of_read(int(text), Lsn(0)).epoch
    except ValueError:
        raise EnvelopeError(f"header {EPOCH_HEADER} is not a number") from None
