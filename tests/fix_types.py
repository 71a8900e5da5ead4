"""A table with a column of every type that Postgres has, and values at the edges of each."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, LiteralString, cast

if TYPE_CHECKING:
    import psycopg

PREPARE: Final = (
    "CREATE EXTENSION vector",
    "CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy \"very\", {quoted}')",
    "CREATE TYPE place AS (name text, at point, moods mood[])",
    "CREATE TYPE line AS (place place, count int, note varchar(9))",  # named like a built-in one
    "CREATE TYPE public.numeric AS ENUM ('one', 'two')",
    "CREATE DOMAIN cents AS pg_catalog.numeric(12,2)",
    "CREATE DOMAIN price AS cents CHECK (VALUE IS NULL OR VALUE >= 0)",
    "CREATE DOMAIN prices AS price[]",
    "CREATE DOMAIN whole AS int",
    "CREATE DOMAIN moment AS timestamptz",
    "CREATE DOMAIN padded AS char(5)",
    "CREATE DOMAIN flag AS bool",
    "CREATE DOMAIN picture AS bytea",
    "CREATE TYPE floats AS RANGE (subtype = float8, subtype_diff = float8mi)",
)

_DIGITS: Final = "1234567890" * 50
_WEIRD: Final = r"E'line\n\"quoted\" \\ / \t \x01 \x1b \x7f \u2028 \U0001f600 e\u0301 \\u001b'"

SAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "bool": ("true", "false"),
    "int2": ("-32768", "0", "32767"),
    "int4": ("-2147483648", "2147483647"),
    "int8": ("-9223372036854775808", "9223372036854775807", "9007199254740993"),
    "oid": ("0", "4294967295"),
    "numeric": (
        "'NaN'",
        "'Infinity'",
        "'-Infinity'",
        f"'-{_DIGITS}.{_DIGITS}'",
        "'0.000'",
        "'1e-30'",
        "'1e100'",
    ),
    "numeric(12,2)": ("10.50", "-0.01", "0"),
    "numeric(30,0)": ("123456789012345678901234567890",),
    "numeric(3,-2)": ("99900",),
    "numeric(2,5)": ("0.00099",),
    "float4": (
        "0.1",
        "'-0'",
        "'NaN'",
        "'Infinity'",
        "'-Infinity'",
        "'1e-45'",
        "'3.4028235e38'",
        "16777216",
        "'1.17549435e-38'",
    ),
    "float8": (
        "0.1",
        "'-0'",
        "'NaN'",
        "'Infinity'",
        "'-Infinity'",
        "'4.9e-324'",
        "'1.7976931348623157e308'",
        "9007199254740993",
        "1e23",
        "'2.2250738585072014e-308'",
    ),
    "text": (_WEIRD, "''", "'NULL'", "'unchanged'", r"E'\\u0000unchanged'", "repeat('x', 9000)"),
    "varchar(20)": (r"E'  x \U0001f600 '", "''"),
    "char(4)": ("'ab'", "''", "'wxyz'"),
    '"char"': ("'x'", "''", r"E'\\377'"),
    "name": ("'a name'", "''"),
    "bytea": (r"'\x'", r"'\x0001ff'", "'unchanged'", r"'\x00756e6368616e676564'"),
    "uuid": ("'6ecd8c99-4036-403d-bf84-cf8400f67836'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"),
    "json": ("""'{"b" : 1.0,  "a":[1e400], "b": 9007199254740993}'""", "'null'", """'"\\u0000"'"""),
    "jsonb": ("""'{"b": 1.0, "a": [12345678901234567890.10]}'""", "'null'", "'[]'", """'"s"'"""),
    "jsonpath": ("'$.a[*] ? (@ > 1)'",),
    "date": ("'2026-02-28'", "'0001-01-01'", "'9999-12-31'"),
    "time": ("'23:59:59.999999'", "'00:00'", "'00:00:00.000001'"),
    "time(3)": ("'12:00:00.120'",),
    "timetz": (
        "'24:00:00+00'",
        "'00:00:00-15:59:59'",
        "'23:59:59.999999+05:30'",
        "'12:00:00.5+15:59'",
        "'03:04:05.1-08:00:30'",
    ),
    "timestamp": (
        "'2026-01-02 03:04:05.123456'",
        "'0001-01-01 00:00'",
        "'1969-12-31 23:59:59.999'",
        "'9999-12-31 23:59:59.999999'",
    ),
    "timestamp(3)": ("'2026-01-02 03:04:05.120'", "'2000-02-29'"),
    "timestamptz": (
        "'2026-01-02 03:04:05.123456+02'",
        "'0001-01-01 00:00+00'",
        "'9999-12-31 23:59:59.999999+00'",
        "'1582-10-10 00:00:00.000001+00'",
        "'1883-11-18 12:03:58-04:56:02'",
    ),
    "timestamptz(0)": ("'2026-01-02 03:04:05+02'",),
    "interval": (
        "'infinity'",
        "'-infinity'",
        "'0'",
        "'1 year -2 mons 3 days -04:05:06.789'",
        "'178000000 years'",
        "'2562047788 hours 54.775807 secs'",
        "'-2562047788 hours -54.775808 secs'",
        "'-0.000001 secs'",
        "'1 year -1 mon'",
    ),
    "interval(0)": ("'90 minutes'",),
    "money": ("'-92233720368547758.08'", "'1234567.80'", "'0.05'"),
    "inet": ("'10.0.0.1'", "'10.0.0.1/24'", "'::1'"),
    "cidr": ("'10.0.0.0/8'", "'2001:db8::/32'"),
    "macaddr": ("'08:00:2b:01:02:03'",),
    "macaddr8": ("'08:00:2b:01:02:03:04:05'",),
    "bit": ("B'1'", "B'0'"),
    "bit(5)": ("B'10101'", "B'00000'"),
    "varbit": ("B'10101'", "B''", "B'0'"),
    "varbit(9)": ("B'101'",),
    "point": ("'(0.1,-0)'", "'(NaN,Infinity)'", "'(1e300,1e-300)'"),
    "line": ("'{0.1,-1,2e-7}'",),
    "lseg": ("'[(0.1,2),(3,4)]'",),
    "box": ("'(1,2),(0.1,0.2)'",),
    "path": ("'[(0.1,1),(2,3)]'", "'((0.1,1),(2,3))'"),
    "polygon": ("'((0,0),(1,1.1),(2,0))'",),
    "circle": ("'<(0.1,0.2),3e-5>'",),
    "tsvector": ("'a:1A b c''d:2'", "''"),
    "tsquery": ("'fat & (rat | cat:*)'",),
    "pg_lsn": ("'FFFFFFFF/FFFFFFFF'", "'0/0'"),
    "xid": ("'4294967295'",),
    "xid8": ("'18446744073709551615'",),
    "cid": ("'1'",),
    "tid": ("'(0,1)'",),
    "txid_snapshot": ("'10:20:10,14,15'",),
    "pg_snapshot": ("'10:20:10,14,15'",),
    "refcursor": ("'a cursor'",),
    "regclass": ("'pg_class'",),
    "regtype": ("'int4'",),
    "regproc": ("'pg_typeof'",),
    "regprocedure": ("'pg_typeof(\"any\")'",),
    "regoper": ("'^@'",),
    "regoperator": ("'+(int4,int4)'",),
    "regrole": ("'postgres'",),
    "regnamespace": ("'pg_catalog'",),
    "regcollation": ("'\"C\"'",),
    "regconfig": ("'english'",),
    "regdictionary": ("'simple'",),
    "aclitem": ("'postgres=r/postgres'",),
    "int2vector": ("'1 -2 3'", "''"),
    "oidvector": ("'1 2'",),
    "int4range": ("'[1,5)'", "'empty'", "'(,)'"),
    "int8range": ("'(,9223372036854775807)'",),
    "numrange": ("'(1.50,NaN]'", "'[-Infinity,1e30)'"),
    "daterange": ("'[2026-01-01,infinity]'", "'(-infinity,0044-03-15 BC]'"),
    "tsrange": ("'[2026-01-01 00:00,infinity]'",),
    "tstzrange": ("'[2026-01-01 00:00+02,294276-12-31 00:00+00)'",),
    "int4multirange": ("'{[1,5),[7,9)}'", "'{}'"),
    "int8multirange": ("'{[1,5)}'",),
    "nummultirange": ("'{[1.0,2.00)}'",),
    "datemultirange": ("'{[2026-01-01,2026-01-02)}'",),
    "tsmultirange": ("'{[2026-01-01 00:00,2026-01-02 00:00)}'",),
    "tstzmultirange": ("'{[2026-01-01 00:00+02,)}'",),
    "vector(3)": ("'[0.1,-2,3e-10]'",),
    "halfvec(2)": ("'[0.1,65504]'",),
    "sparsevec(5)": ("'{1:0.5,5:-1}/5'",),
    "mood": ("'sad'", "'happy \"very\", {quoted}'"),
    "place": (
        """ROW('a, "b"', '(0.1,2)', '{sad,NULL}')""",
        "ROW(NULL, NULL, NULL)",
        "ROW('', NULL, '{}')",
    ),
    "public.line": ("ROW(ROW('x', '(1,2)', NULL), 5, 'n')",),
    "public.numeric": ("'two'",),
    "price": ("3.10", "0"),
    "prices": ("'{1.00,NULL,2.50}'",),
    "whole": ("-7",),
    "moment": ("'2026-01-02 03:04:05.1+02'",),
    "padded": ("'ab'",),
    "flag": ("true", "false"),
    "picture": (r"'\xdeadbeef'", r"'\x'"),
    "floats": ("'[0.1,1e300)'", "'empty'"),
}
"""Type (with its modifier) to the literals of its values; a cast to the type goes around each."""

ARRAYS: Final[dict[str, tuple[str, ...]]] = {
    "int4[]": ("'{}'", "'{{1,2},{3,NULL}}'", "'[0:2]={1,2,3}'", "'[-1:0][2:3]={{1,2},{3,4}}'"),
    "text[]": (
        """'{a,"b c",NULL,"",null,"NULL","{","}","\\"","\\\\",","}'""",
        r"ARRAY[E'\u001b', E'\\u0000unchanged']",
    ),
}
"""Arrays of shapes of their own; every other type's array holds its samples and a NULL."""

UNHOLDABLE: Final[dict[str, tuple[str, ...]]] = {
    "date": ("'infinity'", "'-infinity'", "'0044-03-15 BC'", "'5874897-12-31'", "'10000-01-01'"),
    "time": ("'24:00:00'",),
    "timestamp": (
        "'infinity'",
        "'-infinity'",
        "'4713-01-01 00:00 BC'",
        "'294276-12-31 23:59:59.999999'",
        "'294247-01-10 04:00:25.2'",  # what Debezium takes for infinity
        "'10000-01-01 00:00'",
    ),
    "timestamptz": (
        "'infinity'",
        "'-infinity'",
        "'4713-01-01 00:00:00.5+00 BC'",
        "'294276-12-31 23:59:59.999999+00'",
        "'10000-01-01 00:00+00'",
    ),
    "moment": ("'infinity'",),
}
"""Values that travel as they are and that Python cannot hold."""

WITHOUT_SAMPLES: Final = {
    # only the system writes values of these
    "gtsvector",
    "pg_brin_bloom_summary",
    "pg_brin_minmax_multi_summary",
    "pg_dependencies",
    "pg_mcv_list",
    "pg_ndistinct",
    "pg_node_tree",
    "xml",  # the wheel's server is built without libxml
}


@dataclass(frozen=True, slots=True)
class Typed:
    """A column of a type, and what it holds: row by row, NULL below.

    Attributes:
        name: The column's name.
        type: Its type with the modifier.
        values: SQL expressions.
    """

    name: str
    type: str
    values: tuple[str, ...]


def columns_of(samples: dict[str, tuple[str, ...]], prefix: str) -> list[Typed]:
    """Gives each type's samples a column."""
    return [
        Typed(f"{prefix}{number}", kind, tuple(f"CAST({value} AS {kind})" for value in values))
        for number, (kind, values) in enumerate(samples.items())
    ]


def arrays_of(samples: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Makes of each type's samples one array, with a NULL at its end."""
    return {
        f"{kind}[]": (
            "ARRAY[" + ", ".join([*(f"CAST({v} AS {kind})" for v in values), "NULL"]) + "]",
        )
        for kind, values in samples.items()
        if f"{kind}[]" not in ARRAYS
    }


HELD: Final = [
    *columns_of(SAMPLES, "s"),
    *columns_of(ARRAYS, "shaped"),
    *columns_of(arrays_of(SAMPLES), "a"),
    *columns_of(arrays_of(UNHOLDABLE), "far"),  # in an array, text, nothing is too far
]
"""Columns whose values every store holds."""

REFUSED: Final = columns_of(UNHOLDABLE, "u")
"""Columns whose values no store holds: each is refused by name."""


def run(connection: psycopg.Connection[Any], statement: str) -> Any:
    """Runs SQL that a test has put together."""
    return connection.execute(cast("LiteralString", statement))


def make_types(connection: psycopg.Connection[Any]) -> None:
    """Makes the types of the samples that Postgres does not bring."""
    for statement in PREPARE:
        run(connection, statement)


def make_table(connection: psycopg.Connection[Any], name: str, columns: list[Typed]) -> None:
    """Makes a table of the columns, with a number for its key."""
    defined = ", ".join(f"{column.name} {column.type}" for column in columns)
    run(connection, f"CREATE TABLE {name} (id int PRIMARY KEY, {defined})")


def insert_all(
    connection: psycopg.Connection[Any], name: str, columns: list[Typed], first_id: int
) -> int:
    """Inserts every value, and NULL in each column at the end; returns how many rows."""
    rows = list(zip_longest(*(column.values for column in columns), fillvalue="NULL"))
    rows.append(("NULL",) * len(columns))
    for number, row in enumerate(rows, first_id):
        run(connection, f"INSERT INTO {name} VALUES ({number}, {', '.join(row)})")  # noqa: S608
    return len(rows)
