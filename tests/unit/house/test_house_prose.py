"""Pages, help texts, messages and docstrings use the words of the field (the list below)."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("foundation", "cdc", "eventstore", "projections", "headwater")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

# Each with the word to use instead.
RULED_OUT = {
    r"whoever|whomever": "the actor: a writer, a reader, an operator",
    r"nobody|somebody": "no one who can act: name the actor",
    r"who (?:wants|wishes|cannot)": "to ...; a reader that cannot ...",
    r"(?:is|are|was|were|be|being) told(?! apart)": "reported, logged, notified",
    r"(?:is|are|was|were) said": "reported; by default (where nothing is said)",
    r"what lies|lies between": "the gap, the records between",
    r"whole reads?": "snapshot of the whole table",
    r"made from others": "derived views",
    r"how far behind|lateness of a view": "lag",
    r"set apart|what waits": "quarantined; excluded",
    r"(?:try|tries|tried|trying) (?:it |them |this )?again": "retry",
    r"(?:take|takes|took|taken|taking) (?:\w+ ){0,2}over(?! a| the last)": "adopt, hand over",
    r"shown version|version that is shown": "active version",
    r"withdrawn": "retired",
    r"attendants?|caretakers?": "background task, maintenance task",
    r"tenure": "driver lock (fencing token)",
    r"newcomers?": "backfill",
    r"laps?": "catch-up round",
    r"succession": "dependents",
    r"(?:no|more|enough|much) room|room (?:left|for|is)": "capacity",
    r"sieves?": "filter",
    r"couriers?|lookouts?": "channel worker, watcher",
    r"places? (?:in|of) (?:the|its|a|each) (?:\w+'s )?(?:log|record|row|version|query)": "position",
    r"for want of": "because ... is missing",
    r"reckon(?:s|ed)?": "compute, estimate",
    r"vouch(?:es|ed)?": "prove",
    r"stands? still": "paused, idle",
    r"cures?|cured": "repair",
    r"heals?|healed": "resolve, repair",
    r"anew": "again, recreated",
    r"gives? up the": "discard",
}
# The whole line's text as it stands, for a word that is right there.
ALLOWED: set[str] = set()

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"(?:^|[ ])# (.*)$")
CODE = re.compile(r"`[^`\n]*`")
# The name of a parameter or an attribute in a docstring is code. "stream: Of the event." is short
# for "the stream of the event", not inverted.
ENTRY = re.compile(r"^(\s+)[*\w]+:(?= )", re.MULTILINE)
ATTRIBUTE_OF = re.compile(r"^(\s*(?:- )?[*`\w]*): Of ", re.MULTILINE)
LINK_TARGET = re.compile(r"\]\([^)\s]*\)")
SEARCHES = {
    re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE): word for pattern, word in RULED_OUT.items()
}
# "Of a mirror, only the newest record ...": the verb's object before the subject.
SEARCHES[re.compile(r"(?:^|[.;:] |\| )Of (?:an?|the|each|every|these|such|which|two) ")] = (
    "the subject first"
)


def comments(block: re.Match[str]) -> str:
    """A block of code without its code; lines stay."""
    found = (COMMENT.search(line) for line in block.group().split("\n"))
    return "\n".join(comment.group(1) if comment else "" for comment in found)


def prose(text: str) -> str:
    """The text without code, except comments in blocks of code, and targets of links."""
    text = ATTRIBUTE_OF.sub(r"\1: of ", text)
    return LINK_TARGET.sub("]", CODE.sub("``", FENCE.sub(comments, text)))


def ruled_out(text: str) -> list[str]:
    """``line: words -> what to say`` for everything in the text that the vocabulary rules out."""
    return [
        f"{number}: {match.group().strip()} -> {word}"
        for number, line in enumerate(prose(text).splitlines(), 1)
        if line.strip() not in ALLOWED
        for search, word in SEARCHES.items()
        for match in search.finditer(line)
    ]


def sources(package: str) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted((ROOT / package).rglob("*.py")):
        yield path, ast.parse(path.read_text())


def docstrings(tree: ast.Module) -> Iterator[str]:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield text


def messages(node: ast.AST, inside: bool = False) -> Iterator[tuple[int, str]]:
    """Texts that a user sees: of errors, details, hints and help; values in them as ``x``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.JoinedStr):
            parts = [getattr(part, "value", "") for part in child.values]
            text = "".join(part if isinstance(part, str) else "``" for part in parts)
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            text = child.value
        else:
            yield from messages(child, inside=inside or for_users(child))
            continue
        if inside:
            yield child.lineno, text


def for_users(node: ast.AST) -> bool:
    if isinstance(node, ast.keyword):
        return node.arg in {"detail", "hint", "help"}
    if isinstance(node, ast.Call):
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        return name.endswith("Error")
    return isinstance(node, ast.Raise)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_uses_the_words_of_the_field(page: Path) -> None:
    seen = ruled_out(page.read_text())

    assert [] == seen


@pytest.mark.parametrize("package", PACKAGES)
def test_messages_and_help_texts_use_the_words_of_the_field(package: str) -> None:
    seen = [
        f"{path.relative_to(ROOT)}:{line} {hit}"
        for path, tree in sources(package)
        for line, text in messages(tree)
        for hit in ruled_out(text)
    ]

    assert [] == seen


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_use_the_words_of_the_field(package: str) -> None:
    seen = [
        f"{path.relative_to(ROOT)}: {hit}"
        for path, tree in sources(package)
        for text in docstrings(tree)
        for hit in ruled_out(ENTRY.sub(r"\1:", text))
    ]

    assert [] == seen


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("Whoever reads it waits.", ["1: Whoever"]),
        ("The view is told.\nIt tried again.", ["1: is told", "2: tried again"]),
        ("Of a mirror, only the newest record counts.", ["1: Of a"]),
        ("A row stands at its place in the log.", ["1: place in the log"]),
        ("The job takes the version over.", ["1: takes the version over"]),
        ("Then `nobody` calls:\n\n```python\nnobody()\n```\n", []),
        ("```sh\nread x  # nobody reads it\n```\n", ["2: nobody"]),
        ("The view stands still.", ["1: stands still"]),
        ("See [the page](nobody.md#whoever).", []),
        ("The mean is taken over a window.", []),
    ],
)
def test_the_search_for_words_sees_them(text: str, seen: list[str]) -> None:
    assert seen == [hit.partition(" -> ")[0] for hit in ruled_out(text)]


def test_texts_for_users_are_found() -> None:
    text = """
raise PlanError(f"view {name} waits", hint=("try" if late else "wait") + " again")
option(help="The view.")
said = "not for users"
"""

    assert ["view `` waits", "try", "wait", " again", "The view."] == [
        text for _, text in messages(ast.parse(text))
    ]
