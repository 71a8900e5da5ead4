"""One name, one class: a public class is known by its name alone, in all four packages."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("foundation", "cdc", "eventstore", "projections", "headwater")


def classes(text: str) -> list[str]:
    """Returns the public classes at the top level of a module, also under an `if` or a `try`."""
    found, pending = [], list(ast.parse(text).body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.ClassDef):
            found.append(node.name)
        elif isinstance(node, ast.If | ast.Try):
            pending += [*node.body, *node.orelse]
            pending += [each for part in getattr(node, "handlers", ()) for each in part.body]
    return sorted(name for name in found if not name.startswith("_"))


def test_classes_are_found_at_the_top_level_and_under_a_condition():
    text = """
class Open: ...
class _Own: ...
if True:
    class Within: ...
    def made():
        class Local: ...
try:
    import json
except ImportError:
    class Instead: ...
"""
    assert ["Instead", "Open", "Within"] == classes(text)


def test_no_two_public_classes_share_a_name():
    places = defaultdict(set)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for name in classes(path.read_text()):
                places[name].add(path.relative_to(ROOT).as_posix())

    assert len(places) > 500
    assert {} == {name: sorted(where) for name, where in places.items() if len(where) > 1}
