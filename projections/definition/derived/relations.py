"""Finds the names in a SELECT that stand where a table can, without an engine."""

from __future__ import annotations

import re
from typing import Final

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
_AFTER: Final = frozenset(
    {
        *("select", "where", "group", "having", "order", "sort", "cluster", "distribute"),
        *("limit", "offset", "window", "qualify", "union", "except", "intersect", "minus"),
        *("values", "with"),
    }
)


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
        elif word in _AFTER:
            listed[-1] = wanted = False
        elif word not in _BETWEEN:
            if wanted and _NAME.match(word):
                names.add(word.strip('`"').replace("``", "`"))
            wanted = False
        before = word
    return frozenset(names)
