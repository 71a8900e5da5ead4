"""The page of types: what becomes of a value, found out by asking the code that does it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from cdc.broker.producing.producer import RECORD_BYTES_MAX
from cdc.connect import converter
from cdc.errors import ValueDecodeError
from cdc.postgres.catalog import KINDS
from cdc.snapshot.expression import SETTINGS
from cdc.table import Column, ColumnKind, TableName, TableSchema
from cdc.values import UNCHANGED_PLACEHOLDER, decode, document
from projections.stores.delta.arrow import DECIMAL_DIGITS, arrow_type
from projections.stores.opensearch.mapping import FIELDS, KEYWORD_CHARACTERS

_FAR: Final = "infinity", "-infinity", "0044-03-15 BC", "10000-01-01"
_MIB: Final = 1024 * 1024

_DELTA: Final = {
    pa.bool_(): "boolean",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float64(): "double",
    pa.string(): "string",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp_ntz",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.binary(): "binary",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """A type, a value of it as it travels, and values that may be too far for a store.

    Attributes:
        types: What stands in the first column.
        column: One column of the type.
        value: As in a record.
        far: As in a record.
    """

    types: str
    column: Column
    value: Any
    far: tuple[str, ...] = ()


def _sample(name: str, value: Any, *far: str, **column: Any) -> Sample:
    base = {"smallint": "int2", "integer": "int4", "bigint": "int8", "real": "float4"}
    base |= {"boolean": "bool", "double precision": "float8"}
    bare = name.partition("(")[0]
    kind = KINDS.get(base.get(bare, bare), ColumnKind.TEXT)
    return Sample(f"`{name}`", Column("c", kind, name, **column), value, far)


SAMPLES: Final = (
    _sample("boolean", value=True),
    _sample("smallint", 7),
    _sample("integer", 7),
    _sample("bigint", 9007199254740993),
    _sample("oid", 7),
    _sample("numeric(12,2)", "10.50", "NaN", precision=12, scale=2),
    _sample("numeric", "10.50", "NaN", "Infinity", "-Infinity"),
    _sample("real", "0.1", "NaN", "Infinity", "-Infinity"),
    _sample("double precision", "-0", "NaN", "Infinity", "-Infinity"),
    _sample("text", "ü"),
    _sample("character(4)", "ab  "),
    _sample("uuid", "6ecd8c99-4036-403d-bf84-cf8400f67836"),
    _sample("json", '{"b" : 1.0}'),
    _sample("jsonb", '{"b": 1.0}'),
    _sample("date", "2026-02-28", *_FAR),
    _sample("time", "23:59:59.5", "24:00:00"),
    _sample("timestamp", "2026-01-02 03:04:05.5", *_FAR),
    _sample("timestamptz", "2026-01-02 03:04:05.5+00", *_FAR),
    _sample("bytea", "AAH/"),
    Sample("any other, such as", Column("c", ColumnKind.TEXT, ""), None),
    _sample("timetz", "24:00:00+05:30"),
    _sample("interval", "P1Y-2M3DT-4H-5M-6.789S"),
    _sample("money", "-$1,234.56"),
    _sample("bit varying", "10101"),
    _sample("inet", "10.0.0.1/24"),
    _sample("point", "(0.1,1e+300)"),
    _sample("tsvector", "'fat':1 'rat':2"),
    _sample("tstzrange", '["2026-01-01 00:00:00+00",infinity)'),
    _sample("int4multirange", "{[1,5),[7,9)}"),
    _sample("integer[]", "[0:1]={1,NULL}"),
    _sample("vector(3)", "[0.1,-2,3e-10]"),
    Sample("an enum", Column("c", ColumnKind.TEXT, "mood"), "happy"),
    Sample("a composite", Column("c", ColumnKind.TEXT, "place"), '("a, b",)'),
    Sample("a domain", Column("c", ColumnKind.TEXT, "name"), None),
)


def page(notice: str) -> str:
    """The page's text."""
    rows = [
        "| Postgres | in a record | in a table | in search | in a document | waits |",
        "|---|---|---|---|---|---|",
        *map(_row, SAMPLES),
    ]
    settings = ", ".join(f"`{name} = {value}`" for name, value in SETTINGS.items())
    mark = json.dumps(UNCHANGED_PLACEHOLDER)
    return f"""{notice}
# Types: what becomes of a value

A value is carried exactly or not at all. It travels as the text that Postgres prints for it, with
these settings: {settings}.
Only logical values and whole numbers are JSON's own, and `bytea` is base64. Rows that are read and
rows that are streamed have the same form, byte for byte.

From there it becomes a typed value, once for all stores: what Python and Delta cannot hold (an
infinite time, a year before 1 or after 9999, `24:00`) is refused by name and waits in quarantine
with its key, whichever stores the view has; nothing is clipped, rounded or made NULL. In a
`timestamptz[]` or a `tstzrange`, which are texts to us, such times are held as they are. Documents,
in the cache as in search, are JSON with the forms of this table.

{chr(10).join(rows)}

**In a table** a declared numeric of up to {DECIMAL_DIGITS} digits is a `decimal`; any other is a
`string`, and so exact as well. A `decimal` has no NaN: such a row waits. A `real` is the `double`
of its printed digits.

**In search** an index is for finding: the document keeps each value exactly, also where the index
rounds it (`double`), leaves it out (NaN, times before 1970 or after 2262) or finds its words only
(texts longer than {KEYWORD_CHARACTERS:,} characters).

**A domain** is what it is made of, through any number of domains; a domain over an array is a text.
A label that an enum gains later arrives like the others. A type of your own that is called like a
built-in one is still your own.

**An unchanged large value**, which Postgres does not log again, travels as `{mark}` in
columns of every type. No text of Postgres can hold the U+0000 at its beginning, so no value looks
like it.

## Limits

- A record has at most {RECORD_BYTES_MAX // _MIB} MiB; one that is larger stops capture by name.
  Connect needs heap for it: with 512 MB, a `bytea` of 30 MB arrives and one of 35 MB does not.
- `regclass`, `regtype` and their like, and `aclitem`, print names: those at the time when the log
  is read, and with a schema only where the role's `search_path` lacks it.
- `xml` and types of extensions travel by the same rule, as the texts that Postgres prints.
- Columns of one table that differ by case alone, and a database with the encoding `SQL_ASCII`, are
  refused before capture begins. Tables that differ by case alone are captured apart.

## The converter

Debezium parses values before anybody sees them: an infinite interval becomes zero, and an unchanged
large `smallint[]` ends the task. A class of ours inside the connector keeps them text:
`{converter.CLASS}`, in `cdc/connect/java/`. Headwater's own Connect has it.
For another one, copy `{converter.JAR.name}` from there beside Debezium's jars on
every worker and restart the workers; `headwater doctor` says whether they have it.
"""


def _row(sample: Sample) -> str:
    column = sample.column
    if sample.value is None and sample.types == "any other, such as":
        return f"| *{sample.types}* | | | | | |"
    if sample.value is None:
        return f"| {sample.types} | *as what it is made of* | | | | |"
    schema = TableSchema(TableName("public", "t"), (column,))
    shown = document(schema, {"c": decode(column, sample.value)})["c"]
    cells = (
        sample.types,
        _code(sample.value),
        _table_type(column),
        f"`{FIELDS[column.kind]['type']}`",
        _code(shown),
        ", ".join(f"`{far}`" for far in sample.far if _waits(column, far)),
    )
    return "| " + " | ".join(cells) + " |"


def _code(value: Any) -> str:
    return f"`{json.dumps(value, ensure_ascii=False)}`".replace("|", "\\|")


def _table_type(column: Column) -> str:
    found = arrow_type(column)
    if pa.types.is_decimal(found):
        return f"`decimal({found.precision},{found.scale})`"
    return f"`{_DELTA[found]}`"


def _waits(column: Column, value: str) -> bool:
    """Whether some store cannot hold a value."""
    try:
        decoded = decode(column, value)
        if pa.types.is_decimal(arrow_type(column)):
            pa.array([decoded], arrow_type(column))
    except (ValueDecodeError, pa.ArrowInvalid, ValueError):
        return True
    return False
