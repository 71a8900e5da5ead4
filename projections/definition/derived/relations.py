"""The names in a SELECT that stand where a table can, found without an engine."""

from __future__ import annotations

import re
from typing import Final

_TOKEN: Final = re.compile(
    r"--[^\n]*|/\*.*?\*/"  # comments
    r"|[rR]'[^']*'|[rR]\"[^\"]*\""  # texts in which a backslash is one
    r"|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
    r"|`(?:[^`]|``)*`"
    r"|[A-Za-z_]\w*|[(),]|\S",
    re.DOTALL,
)
_NAME: Final = re.compile(r"[`\"]|[A-Za-z_]\w*$")
_BEFORE: Final = frozenset({"from", "join", "table"})
_BETWEEN: Final = frozenset({"lateral", "only"})
_AFTER: Final = frozenset(
    {
        *("select", "where", "group", "having", "order", "sort", "cluster", "distribute"),
        *("limit", "offset", "window", "qualify", "union", "except", "intersect", "minus"),
        *("values", "with"),
    }
)


def relations(sql: str) -> frozenset[str]:
    """Returns every name that stands where a table can, in lower case.

    More names than tables can be among them (what `extract(year FROM placed)` has, or the name of
    a WITH), never fewer.

    Args:
        sql: A query of Spark SQL.
    """
    found: set[str] = set()
    listed = [False]  # by bracket: whether a comma here is followed by a table
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
        elif word in _AFTER:
            listed[-1] = wanted = False
        elif word not in _BETWEEN:
            if wanted and _NAME.match(word):
                found.add(word.strip('`"').replace("``", "`"))
            wanted = False
        before = word
    return frozenset(found)
