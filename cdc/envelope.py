"""Envelope: Debezium's wire value, parsed strictly."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import orjson

from cdc.errors import EnvelopeError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Operation(StrEnum):
    """Debezium's letters for the operations on a row."""

    READ = "r"
    CREATE = "c"
    UPDATE = "u"
    DELETE = "d"
    TRUNCATE = "t"
    MESSAGE = "m"


@dataclass(frozen=True, slots=True)
class Envelope:
    """One decoded Debezium value.

    Attributes:
        operation: The operation.
        before: The old row, as far as the replica identity covers it; None if there is none.
        after: The new row; None for deletes.
        source: Debezium's source block (schema, table, lsn, sequence, txId, ts_us, snapshot).
        transaction: Transaction metadata (id, total_order); None for snapshot rows.
    """

    operation: Operation
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    source: Mapping[str, Any]
    transaction: Mapping[str, Any] | None

    @classmethod
    def parse(cls, value: bytes) -> Envelope:
        """Parses the JSON value of a change record.

        Raises:
            EnvelopeError: The value is not JSON, has no source block or no operation of Debezium's,
                or has a row that is not an object (a foreign producer's record).
        """
        try:
            fields = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise EnvelopeError("record is not JSON", detail=f"at byte {error.pos}") from None
        if not isinstance(fields, dict) or not isinstance(fields.get("source"), dict):
            raise EnvelopeError(
                "record has no source block",
                hint="only the connector may write to change topics; find the other producer",
            )
        try:
            operation = Operation(str(fields.get("op")))
        except ValueError:
            detail = repr(fields.get("op"))[:20]
            raise EnvelopeError("record has an unknown operation", detail=detail) from None
        for name in ("before", "after", "transaction"):
            if not isinstance(fields.get(name), dict | None):
                raise EnvelopeError(
                    "record is not a change of a row", detail=f"`{name}` is no object"
                )
        return cls(
            operation,
            fields.get("before"),
            fields.get("after"),
            fields["source"],
            fields.get("transaction"),
        )
