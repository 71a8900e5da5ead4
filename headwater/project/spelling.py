"""Names of a database, spelled so that Python, TOML and Headwater take them.

Postgres takes any character in a name; a view takes ASCII letters, digits and underscores.
"""

from __future__ import annotations

import builtins
import keyword
import re
import unicodedata
from typing import TYPE_CHECKING, Final

import headwater
from projections.definition.views import Source

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from cdc.table import TableName

VIEW_LENGTH_MAX: Final = 63
SOURCE_LENGTH_MAX: Final = 53
"""Longest name of a source: it becomes part of its slot's name."""

PROJECT_LENGTH_MAX: Final = 39

CHANGES: Final = "changes"
"""Name under which queries read the archive, unless a view has it."""

_SQL_WORDS: Final = frozenset(
    {
        *("all", "any", "cluster", "distribute", "except", "exists", "false", "from", "group"),
        *("having", "intersect", "interval", "join", "lateral", "limit", "minus", "null", "offset"),
        *("only", "order", "qualify", "select", "some", "sort", "table", "trim", "true", "union"),
        *("user", "current_user", "session_user", "values", "where", "window", "with"),
    }
)
"""Words of the two dialects of queries and views that cannot everywhere name a view unquoted."""

_TAKEN_VIEWS: Final = frozenset({CHANGES}) | _SQL_WORDS
"""Names that a query gives to something else than a view."""

_CYRILLIC: Final = "CYRILLIC SMALL LETTER "
_SOUNDS: Final = {
    "A": "a",
    "BE": "b",
    "VE": "v",
    "GHE": "g",
    "DE": "d",
    "IE": "e",
    "IO": "e",
    "ZHE": "zh",
    "ZE": "z",
    "I": "i",
    "SHORT I": "y",
    "KA": "k",
    "EL": "l",
    "EM": "m",
    "EN": "n",
    "O": "o",
    "PE": "p",
    "ER": "r",
    "ES": "s",
    "TE": "t",
    "U": "u",
    "EF": "f",
    "HA": "kh",
    "TSE": "ts",
    "CHE": "ch",
    "SHA": "sh",
    "SHCHA": "shch",
    "HARD SIGN": "",
    "YERU": "y",
    "SOFT SIGN": "",
    "E": "e",
    "YU": "yu",
    "YA": "ya",
    "BYELORUSSIAN-UKRAINIAN I": "i",
    "YI": "yi",
    "UKRAINIAN IE": "ye",
    "GHE WITH UPTURN": "g",
    "SHORT U": "u",
}
"""Cyrillic letters, by their names in Unicode, in Latin ones."""


def identifier(text: str, length_max: int, otherwise: str) -> str:
    """Returns a name of lower-case ASCII letters, digits and underscores, a letter first.

    Args:
        text: Any text; letters of other scripts are transliterated where that is known.
        length_max: Longest name.
        otherwise: Name of a text of which nothing is left.
    """
    # case pairs stay apart from words: `OrderLines` is order_lines, `HTTPServer` is http_server
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", text)
    latin = "".join(map(_latin, apart.casefold()))
    lowered = re.sub(r"[^a-z0-9_]+", "_", latin).strip("_")
    if not lowered:
        return otherwise
    named = lowered if lowered[0].isalpha() else f"{otherwise}_{lowered}"
    return named[:length_max].rstrip("_")


def variable(name: str) -> str:
    """Returns a Python variable for a source, which hides nothing that its module may need."""
    taken = keyword.iskeyword(name) or keyword.issoftkeyword(name) or hasattr(builtins, name)
    return f"{name}_db" if taken or name in _IMPORTED else name


_IMPORTED: Final = frozenset(headwater.__all__) | {"headwater"}


def literal(text: str) -> str:
    """Returns a Python string literal in double quotes, on one line and without hidden marks."""
    return f'"{"".join(map(_printed, text))}"'


def printable(text: str) -> str:
    """Returns a text for a comment or a message: on one line, with hidden characters escaped."""
    return "".join(char if char.isprintable() else _printed(char) for char in text)


def reference(source: str, table: TableName, tables: Sequence[TableName]) -> str:
    """Returns the expression for a table of a source: `shop.orders`, or `shop["sales.orders"]`.

    Args:
        source: Variable of the source.
        table: The table.
        tables: All tables of the source.
    """
    alone = sum(other.name == table.name for other in tables) == 1
    if alone and is_attribute(table.name):
        return f"{source}.{table.name}"
    return f"{source}[{literal(str(table))}]"


def is_attribute(name: str) -> bool:
    """Whether a table of this name is reached as an attribute of its source."""
    # Python reads identifiers in this normal form, and what a source has itself comes first
    plain = name.isidentifier() and unicodedata.normalize("NFKC", name) == name
    return plain and not keyword.iskeyword(name) and not name.startswith("__") and name not in _OWN


_OWN: Final = frozenset(dir(Source)) | Source.__dataclass_fields__.keys()


def view_names(
    tables: Sequence[TableName], source: str = "", others: Collection[str] = ()
) -> dict[TableName, str]:
    """Returns a name for the view of each table: the table's own if it can be, else one like it.

    Where that is taken, its schema comes before it; where that is taken too, a number after it.

    Args:
        tables: The tables.
        source: Name that comes before a table's where another source has a view of that name.
        others: Names of views of other sources.
    """
    names: dict[TableName, str] = {}
    taken = {*_TAKEN_VIEWS, *others}
    # a table whose name is a view's as it is gets that, whatever comes before it
    for table in sorted(tables, key=lambda each: each.name != _base(each)):
        base = _base(table)
        if base in others:
            base = identifier(f"{source}_{base}", VIEW_LENGTH_MAX, "table")
        with_schema = identifier(f"{table.schema}_{table.name}", VIEW_LENGTH_MAX, "table")
        numbered = (_numbered(base, number) for number in range(2, len(tables) + 3))
        name = next(each for each in (base, with_schema, *numbered) if each not in taken)
        taken.add(name)
        names[table] = name
    return {table: names[table] for table in tables}


def _base(table: TableName) -> str:
    return identifier(table.name, VIEW_LENGTH_MAX, "table")


def _numbered(base: str, number: int) -> str:
    end = f"_{number}"
    return base[: VIEW_LENGTH_MAX - len(end)].rstrip("_") + end


def _latin(char: str) -> str:
    name = unicodedata.name(char, "")
    if name.startswith(_CYRILLIC):
        return _SOUNDS.get(name.removeprefix(_CYRILLIC), "")
    return "".join(part for part in unicodedata.normalize("NFKD", char) if part.isascii())


def _printed(char: str) -> str:
    if char == '"':
        return '\\"'
    return char if char.isprintable() and char != "\\" else ascii(char)[1:-1]
