"""Record: one Kafka record of a change topic, and why it may not become a change."""

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
"""Kafka header in which the connector names the old key of a row that comes under a new one."""


class Record(NamedTuple):
    """One Kafka record, as far as a view needs it.

    Attributes:
        key: Its key.
        value: Its value; None of a tombstone.
        epoch: What its header `headwater.epoch` says.
        partition: Where it lies.
        offset: Where it lies.
        old_key: Of a row that came under another key, that key.
        sent_at_us: Its time at the broker, microseconds since 1970, UTC; 0 if unknown, as of one
            that has waited in quarantine.
    """

    key: bytes | None
    value: bytes | None
    epoch: str | None
    partition: int
    offset: int
    old_key: bytes | None = None
    sent_at_us: int = 0


class RecordFailure(NamedTuple):
    """Records that did not become a change of a view.

    Attributes:
        records: The record that failed, and those that it builds on.
        error: Why.
        version: Its position in the log; None if that cannot be read.
        key: Values of the row's key; None if they cannot be read.
        kind: The type of an added event.
    """

    records: tuple[Record, ...]
    error: PlatformError
    version: int | None
    key: tuple[object, ...] | None
    kind: str | None = None


def canonical(key: bytes | None) -> bytes | None:
    """Returns a key as the connector writes it; None if it is no JSON object."""
    try:
        fields = None if key is None else orjson.loads(key)
    except orjson.JSONDecodeError:
        return None
    return orjson.dumps(fields) if isinstance(fields, dict) else None


def key_text(topic: str, record: Record) -> str:
    """Returns the text under which changes of one key wait for each other.

    That of a key is its JSON object. What is no such object goes by its bytes, and a record
    without a key by its place, so that it waits alone.
    """
    found = canonical(record.key)
    if found is not None:
        return found.decode()
    if record.key is None or record.key == b"null":
        return f"{topic}/{record.partition}/{record.offset}"
    return "hex:" + record.key.hex()


@cache
def stated_epoch(text: str | None) -> int:
    """Returns the epoch that a record's header states.

    Raises:
        EnvelopeError: It states none.
    """
    if text is None:
        raise EnvelopeError(f"record lacks the header {EPOCH_HEADER}")
    try:
        return ChangePosition.of_read(int(text), Lsn(0)).epoch
    except ValueError:
        raise EnvelopeError(f"header {EPOCH_HEADER} is not a number") from None
