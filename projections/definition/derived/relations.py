"""Reads the text of queries without an engine: names where a table can stand, and comments."""

from __future__ import annotations

import re
from typing import Final

from projections.errors import DeclarationError

_TOKEN: Final = re.compile(
    r"--[^\n]*|/\*.*?\*/"  # comments
    r"|[rR]'[^']*'|[rR]\"[^\"]*\""  # texts with backslash escapes
    r"|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
    r"|`(?:[^`]|``)*`"
    r"|[A-Za-z_]\w*|[(),]|\S",
    re.DOTALL,
)
_NAME: Final = re.compile(r"[`\"]|[A-Za-z_]\w*$")
_BEFORE: Final = frozenset({"from", "join", "table"})
_BETWEEN: Final = frozenset({"lateral", "only"})
_INLINE: Final = "values"
_QUERY: Final = frozenset({"select", "with"})
"""What can begin a query where a table is expected."""
_AFTER: Final = frozenset(
    {
        *("where", "group", "having", "order", "sort", "cluster", "distribute"),
        *("limit", "offset", "window", "qualify", "union", "except", "intersect", "minus"),
    }
)


def condition_of(what: str, where: str | None) -> str:
    """Returns a condition, which stands before other text in a query; empty if there is none.

    Raises:
        DeclarationError: It ends with a comment, which would hide that text.
    """
    tokens = _TOKEN.findall(where or "")
    if tokens and tokens[-1].startswith("--"):
        raise DeclarationError(
            f"the condition of {what} ends with a comment",
            detail=tokens[-1][:80],
            hint="write the comment before the condition, or as /* … */",
        )
    return where or ""


def relations(sql: str) -> frozenset[str]:
    """Returns every name in table position, in lower case.

    The result may contain more names than tables (from `extract(year FROM placed)`, or of a WITH),
    never fewer.

    Args:
        sql: A query of Spark SQL.
    """
    names: set[str] = set()
    listed = [False]  # for each open bracket: whether a table can follow a comma
    wanted, before = False, ""
    for token in _TOKEN.findall(sql):
        word = token.lower()
        if word.startswith(("--", "/*")):
            continue
        if word == "(":
            listed.append(wanted)
        elif word == ")":
            listed = listed[:-1] or [False]
            wanted = False
        elif word == ",":
            wanted = listed[-1]
        elif word in _BEFORE and before != "distinct":
            listed[-1] = wanted = True
        elif word in _QUERY or (word in _AFTER and not wanted):
            listed[-1] = wanted = False
        elif word not in _BETWEEN:
            if wanted and word != _INLINE and _NAME.match(word):
                names.add(word.strip('`"').replace("``", "`"))
            wanted = False
        before = word
    return frozenset(names)
