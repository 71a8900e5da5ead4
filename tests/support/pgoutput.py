"""What a replication slot has, read with SQL: enough of pgoutput to fold a table's rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psycopg import Connection

UNCHANGED = object()
"""A large value that an update left as it was."""

_CHANGES = """
SELECT data FROM pg_logical_slot_get_binary_changes(
    %s, NULL, NULL, 'proto_version', '1', 'publication_names', %s)
"""


@dataclass
class Reader:
    """Bytes that are taken one after another."""

    data: bytes
    at: int = 0

    def number(self, size: int) -> int:
        """The next number of so many bytes."""
        self.at += size
        return int.from_bytes(self.data[self.at - size : self.at], "big", signed=True)

    def text(self) -> str:
        """The next text that ends with a zero."""
        end = self.data.index(b"\0", self.at)
        found = self.data[self.at : end].decode()
        self.at = end + 1
        return found

    def letter(self) -> str:
        """The next letter."""
        self.at += 1
        return chr(self.data[self.at - 1])

    def row(self) -> list[Any]:
        """The next row: texts, None or `UNCHANGED`."""
        values: list[Any] = []
        for _ in range(self.number(2)):
            kind = self.letter()
            if kind == "t":
                size = self.number(4)
                self.at += size
                values.append(self.data[self.at - size : self.at].decode())
            else:
                values.append(None if kind == "n" else UNCHANGED)
        return values


@dataclass
class Folded:
    """Rows of published tables that have a key, by schema and name and then by key."""

    keys: dict[tuple[str, str], tuple[str, ...]]
    rows: dict[tuple[str, str], dict[tuple[Any, ...], dict[str, Any]]] = field(default_factory=dict)
    relations: dict[int, tuple[tuple[str, str], list[str]]] = field(default_factory=dict)

    def read(self, connection: Connection[Any], slot: str, publication: str) -> None:
        """Takes what a slot has."""
        quoted = '"' + publication + '"'
        for (data,) in connection.execute(_CHANGES, (slot, quoted)).fetchall():
            self._take(Reader(bytes(data)))

    def _take(self, message: Reader) -> None:
        kind = message.letter()
        if kind == "R":
            oid = message.number(4)
            table = message.text(), message.text()
            message.letter()  # the replica identity
            columns = []
            for _ in range(message.number(2)):
                message.number(1)  # whether it is part of the identity
                columns.append(message.text())
                message.number(4), message.number(4)  # its type
            self.relations[oid] = table, columns
        elif kind in "IUD":
            self._change(kind, message)
        elif kind == "T":
            count = message.number(4)
            message.number(1)  # whether it cascaded
            for _ in range(count):
                table, _columns = self.relations[message.number(4)]
                self.rows.pop(table, None)

    def _change(self, kind: str, message: Reader) -> None:
        table, columns = self.relations[message.number(4)]
        if not self.keys.get(table):
            return
        rows = self.rows.setdefault(table, {})
        parts = {}
        while message.at < len(message.data):
            part = message.letter()
            parts["new" if part == "N" else "old"] = dict(zip(columns, message.row(), strict=True))
        new = parts.get("new")
        gone = parts.get("old") or new
        if kind in "UD":
            assert gone is not None
            before = rows.pop(self._key(table, gone))
            if new is not None:
                new = {
                    name: before[name] if value is UNCHANGED else value
                    for name, value in new.items()
                }
        if new is not None:
            rows[self._key(table, new)] = new

    def _key(self, table: tuple[str, str], row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.keys[table])
