"""Records of snapshot rows, in the connector's envelope."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from cdc.lsn import Lsn
    from cdc.table import TableName


class ReadEnvelope:
    """Encodes the record values of one table's rows, all with one position.

    Args:
        source: Name of the source.
        table: The table.
        read_lsn: Position of the snapshot.
    """

    def __init__(self, source: str, table: TableName, read_lsn: Lsn) -> None:
        self._source = {
            "connector": "postgresql",
            "name": source,
            "snapshot": "true",
            "sequence": orjson.dumps([None, str(read_lsn.value)]).decode(),
            "schema": table.schema,
            "table": table.name,
            "txId": None,
            "lsn": read_lsn.value,
        }
        self.seen(time.time_ns() // 1000)

    def seen(self, at_us: int) -> None:
        """Sets the time of the following records: no later change is contained in them.

        Args:
            at_us: Microseconds since 1970, UTC, by the server's clock.
        """
        about = {**self._source, "ts_ms": at_us // 1000, "ts_us": at_us}
        # not by `%`, which a name may contain
        self._about = b',"source":' + orjson.dumps(about) + b',"op":"'
        self._read = self._about + b'r","transaction":{"total_order":'
        self._read_of_key = self._read + b"0}}"

    def of_row(self, row_json: bytes, number: int = 0) -> bytes:
        """Returns the value of a row's record.

        Args:
            row_json: Its columns, a JSON object.
            number: Distinguishes rows of a table without a key; 0 if the table has a key.
        """
        rest = self._read_of_key if not number else self._read + b"%d}}" % number
        return b'{"before":null,"after":' + row_json + rest

    def of_absence(self, key_json: bytes) -> bytes:
        """Returns the value of a record stating that no row has this key."""
        rest = self._about + b'd","transaction":{"total_order":0}}'
        return b'{"before":' + key_json + b',"after":null' + rest
