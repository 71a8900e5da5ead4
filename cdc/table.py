"""The description of a captured table: its name, columns and key."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

_QUOTED_SCHEMA = re.compile(r'"(?P<schema>(?:[^"]|"")+)"\.(?P<name>.+)', re.DOTALL)
_TOPIC_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_ESCAPED = re.compile(r"[^A-Za-z0-9]+")


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """A table's name with its schema, unquoted, as the catalog spells them."""

    schema: str
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Parses `schema.table` or `table` (schema `public`); the first dot ends the schema.

        A schema in double quotes, as SQL writes it, may contain dots: `"acme.com".orders`.
        """
        if quoted := _QUOTED_SCHEMA.fullmatch(text):
            return cls(quoted["schema"].replace('""', '"'), quoted["name"])
        schema, dot, name = text.partition(".")
        return cls(schema, name) if dot else cls("public", schema)

    @property
    def unquoted(self) -> str:
        """Schema, dot and name, as Debezium writes them; two tables may share this form."""
        return f"{self.schema}.{self.name}"

    def topic(self, prefix: str) -> str:
        """Returns Debezium's topic for this table; characters Kafka refuses become `_`."""
        full_name = f"{prefix}.{self.schema}.{self.name}"
        # Java counts UTF-16 units: an emoji becomes two underscores
        return _TOPIC_UNSAFE.sub(lambda char: "_" * (1 + (char[0] > "\uffff")), full_name)

    def escaped_topic(self, prefix: str) -> str:
        """Returns a topic for this table that no other escaped table of the prefix has.

        Each run of characters other than ASCII letters and digits becomes the hexadecimal of its
        UTF-8 bytes between hyphens. That includes `_` and `.`, which collide in Kafka's metrics.
        The hyphen after the prefix keeps the topic distinct from topics of the outbox.
        """
        return f"{prefix}.-{_escape(self.schema)}.{_escape(self.name)}"

    def __str__(self) -> str:
        """Returns the text that `parse` accepts."""
        if "." in self.schema or _QUOTED_SCHEMA.fullmatch(self.unquoted):
            schema = self.schema.replace('"', '""')
            return f'"{schema}".{self.name}'
        return self.unquoted


def _escape(name: str) -> str:
    return _ESCAPED.sub(lambda run: f"-{run[0].encode().hex()}-", name)


class ColumnKind(StrEnum):
    """The kind of a column's values, from the source to the views."""

    BOOLEAN = "boolean"
    INTEGER = "integer"  # smallint, integer, bigint
    NUMERIC = "numeric"
    FLOAT = "float"  # real, double precision
    TEXT = "text"  # text, varchar, char, enum, and every type carried as its text
    UUID = "uuid"
    JSON = "json"  # json, jsonb: carried as the text Postgres prints
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"  # without time zone
    TIMESTAMPTZ = "timestamptz"
    BYTES = "bytes"
    NESTED = "nested"  # lists, structs and maps: only in derived views, never in a table


@dataclass(frozen=True, slots=True)
class Treatment:
    """What is sent instead of a column's values; see `cdc.column_rule`.

    Attributes:
        mask_length: Number of asterisks; None for a salted hash.
    """

    mask_length: int | None = None

    def __str__(self) -> str:
        return "hash" if self.mask_length is None else f"mask:{self.mask_length}"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a captured table.

    Attributes:
        name: Name in the catalog.
        kind: Kind of its values.
        type_name: Postgres' name with modifiers, such as `numeric(12,2)`.
        precision: Digits of a declared numeric; None for an undeclared one and other kinds.
        scale: Digits after the point of a declared numeric.
        nullable: False where the source forbids NULL.
        treatment: What is sent instead of its values; None to send them unchanged.
    """

    name: str
    kind: ColumnKind
    type_name: str
    precision: int | None = None
    scale: int | None = None
    nullable: bool = True
    treatment: Treatment | None = None


@dataclass(frozen=True, slots=True)
class TableSchema:
    """A captured table as its catalog describes it.

    Attributes:
        table: Its name.
        columns: In the catalog's order.
        key: Names of the replica identity's columns (the primary key); empty if there is none.
    """

    table: TableName
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    by_name: dict[str, Column] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {column.name: column for column in self.columns})
