"""How many lines the guide needs for a bank, and for a rule across streams."""

from __future__ import annotations

import ast
import doctest
import re
from pathlib import Path

import pytest

from eventstore import EventStore, Rejected, tagged
from eventstore.memory import MemoryEventLog

DOCS = Path(__file__).resolve().parents[3] / "docs"
BANK_LINES_MAX = 80
RULE = (
    r', tags=lambda e: \[f"email:\{e.email\}"\]',
    r", seen: tuple\[UserRegistered, ...\]",
    r'        if seen:\n            raise Rejected\("the address is taken"\)\n',
)
"""What the guide's unique e-mail address consists of."""


def statements(heading: str) -> str:
    """The code of a section, without its prompts and without what only shows results."""
    text = (DOCS / "eventstore.md").read_text().partition(f"\n## {heading}\n")[2]
    blocks = re.findall(r"```pycon\n(.*?)```", text.partition("\n## ")[0], re.DOTALL)
    examples = doctest.DocTestParser().get_examples("\n".join(blocks))
    return "".join(
        each.source
        for each in examples
        if isinstance(ast.parse(each.source).body[0], (ast.ClassDef, ast.Import, ast.ImportFrom))
        or each.source.startswith(("store =", "keyring =", "master_keys ="))
    )


def test_a_bank_has_few_lines():
    lines = [line for line in statements("Events, commands, rules").splitlines() if line.strip()]

    assert 50 < len(lines) <= BANK_LINES_MAX


@pytest.mark.parametrize("unique", [True, False])
def test_a_unique_address_costs_two_lines(unique):
    source = statements("Appending")
    source = source[source.index('@event("user.registered"') :]
    plain = source
    for part in RULE:
        plain, count = re.subn(part, "", plain)
        assert 1 == count
    names = {}
    imports = "from dataclasses import dataclass\nfrom eventstore import *\n"
    registry = "types = EventTypes()\nevent = types.event\n"
    exec(imports + registry + (source if unique else plain), names)  # noqa: S102
    store = EventStore(MemoryEventLog(), types=names["types"], deciders=[names["User"]])
    boundary = tagged("email:a@x") if unique else None
    store.handle(names["Register"]("1", "a@x"), boundary=boundary)

    assert 2 == source.count("\n") - plain.count("\n")
    if unique:
        with pytest.raises(Rejected):
            store.handle(names["Register"]("2", "a@x"), boundary=boundary)
    else:
        assert 1 == store.handle(names["Register"]("2", "a@x")).version
