"""TableShape: the columns and key of a captured table from a log position on.

Columns are identified by the number that Postgres gives each of them permanently. A rename is
therefore detected as a rename, and a column that was dropped and added again as another column.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from cdc.column_rule import treated
from cdc.table import TableName

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from cdc.column_rule import ColumnRules
    from cdc.lsn import Lsn

_TEXT: Final = (25, -1)
"""Oid of the type `text`, the same in every Postgres, and no modifier."""


@dataclass(frozen=True, slots=True)
class ColumnShape:
    """A captured column: not dropped and not generated.

    Attributes:
        number: Its number in the table (`attnum`), which no other column ever gets.
        name: Its name.
        type_name: Postgres' name of its type with modifiers.
        type_id: Oid of its type and its modifier, which stay the same if the type is renamed.
        not_null: Whether the source forbids NULL.
        default: Whether the source supplies a value: by a default, an identity, or a domain.
        missing: The value of rows older than the column, as text; None if that is NULL, or if
            Postgres wrote a computed value into each of them.
        parts: Labels of the enums in its type, and attributes of the composites, by their numbers;
            see `type_parts`.
    """

    number: int
    name: str
    type_name: str
    type_id: tuple[int, int] = (0, -1)
    not_null: bool = False
    default: bool = False
    missing: str | None = None
    parts: tuple[tuple[str, str], ...] = ()

    def reads_otherwise(self, later: ColumnShape) -> bool:
        """Returns whether stored values read differently by a later shape of the column's type."""
        now = dict(later.parts)
        return any(now.get(number, text) != text for number, text in self.parts)


@dataclass(frozen=True, slots=True)
class TableShape:
    """A captured table at one moment.

    Attributes:
        oid: The table's oid, which a rename does not change.
        table: Its name.
        columns: Its captured columns, by number.
        key: Numbers of the columns that identify a row, in their order; empty without a key.
        partitions: Names of the leaf partitions by their oid; empty for an ordinary table.
        last_number: Greatest number of a column, including dropped ones.
    """

    oid: int
    table: TableName
    columns: tuple[ColumnShape, ...]
    key: tuple[int, ...] = ()
    partitions: tuple[tuple[int, str], ...] = ()
    last_number: int = 0

    @property
    def by_number(self) -> dict[int, ColumnShape]:
        """Its columns by their number."""
        return {column.number: column for column in self.columns}

    @property
    def names(self) -> frozenset[str]:
        """Names of its columns."""
        return frozenset(column.name for column in self.columns)

    @property
    def key_names(self) -> tuple[str, ...]:
        """Names of the key's columns."""
        return tuple(self.by_number[number].name for number in self.key)

    def leaving(self, rules: ColumnRules, salt: str | None) -> TableShape:
        """Applies column rules to the shape.

        Args:
            rules: Rules for its columns, by their names in this shape.
            salt: Salt for hashed columns.
        """
        columns = []
        for column in self.columns:
            treatment = rules.treatment(column.name)
            if treatment is None:
                columns += [column] if rules.takes(column.name) else []
                continue
            text = column.missing
            missing = None if text is None else treated(treatment, text, salt or "")
            columns.append(replace(column, type_name="text", type_id=_TEXT, missing=missing))
        return replace(self, columns=tuple(columns))

    @classmethod
    def of_json(cls, fields: Mapping[str, Any]) -> TableShape:
        """Parses the form that `trigger.SHAPE` returns."""
        return cls(
            int(fields["oid"]),
            TableName(fields["schema"], fields["table"]),
            tuple(
                ColumnShape(
                    c["number"],
                    c["name"],
                    c["type"],
                    (c["type_id"][0], c["type_id"][1]),
                    c["not_null"],
                    c["default"],
                    c["missing"],
                    tuple(c.get("parts", {}).items()),
                )
                for c in fields["columns"]
            ),
            tuple(fields["key"]),
            tuple((int(oid), name) for oid, name in fields["partitions"]),
            int(fields["last_number"]),
        )


@dataclass(frozen=True, slots=True)
class ShapeVersion:
    """A shape and the log position from which it applies.

    Attributes:
        id: Number of the record.
        lsn: Every row change at this position or later has this shape, until the next one.
        seen_after: Set if only a comparison detected the change: it is between this position and
            `lsn`. None if the source recorded it itself.
        shape: The shape; None after the table was dropped.
        command: Tag of the command, such as `ALTER TABLE`; `BASELINE` for the first record.
        rewritten: Whether rows got values that are missing from the log; None if unknown.
        noted_at: Time of the record.
    """

    id: int
    lsn: Lsn
    seen_after: Lsn | None
    shape: TableShape | None
    command: str
    rewritten: bool | None
    noted_at: datetime | None = None


BASELINE = "BASELINE"
"""Command of the first recorded shape of a table."""

CREATED = "CREATE TABLE"
"""Command that creates a partition, which is empty at that time."""


@dataclass(frozen=True, slots=True)
class TableHistory:
    """The recorded shapes of one table (one oid), the oldest first."""

    versions: tuple[ShapeVersion, ...] = ()

    @classmethod
    def of(cls, versions: Iterable[ShapeVersion]) -> TableHistory:
        """Orders the records of one table."""
        return cls(tuple(sorted(versions, key=lambda version: (version.lsn, version.id))))

    @property
    def latest(self) -> ShapeVersion | None:
        """Returns the newest version."""
        return self.versions[-1] if self.versions else None

    def index_at(self, lsn: int) -> int:
        """Returns the index of the version for a change at a position; -1 before the first."""
        index = -1
        for number, version in enumerate(self.versions):
            if version.lsn.value <= lsn:
                index = number
        return index

    def numbered(self, change_id: int) -> ShapeVersion | None:
        """Returns the newest version that was not recorded after this one."""
        found = [version for version in self.versions if version.id <= change_id]
        return found[-1] if found else None
