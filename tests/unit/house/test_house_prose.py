"""README, CONTRIBUTING and the pages of docs/ use the words of the field (the list below)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# Written from the code, whose texts say what these pages say.
GENERATED = {"api.md", "cli.md", "errors.md", "settings.md", "types.md"}
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in GENERATED),
]

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
}
# The whole line's text as it stands, for a word that is right there.
ALLOWED: set[str] = set()

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK_TARGET = re.compile(r"\]\([^)\s]*\)")
SEARCHES = {
    re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE): word for pattern, word in RULED_OUT.items()
}
# "Of a mirror, only the newest record ...": the verb's object before the subject.
SEARCHES[re.compile(r"(?:^|[.;:] |\| )Of (?:an?|the|each|every|these|such|which|two) ")] = (
    "the subject first"
)


def prose(text: str) -> str:
    """The text without blocks of code, code in a line, and targets of links; lines stay."""
    text = FENCE.sub(lambda block: "\n" * block.group().count("\n"), text)
    return LINK_TARGET.sub("]", CODE.sub("``", text))


def ruled_out(text: str) -> list[str]:
    """``line: words -> what to say`` for everything in the text that the vocabulary rules out."""
    return [
        f"{number}: {match.group().strip()} -> {word}"
        for number, line in enumerate(prose(text).splitlines(), 1)
        if line.strip() not in ALLOWED
        for search, word in SEARCHES.items()
        for match in search.finditer(line)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_uses_the_words_of_the_field(page: Path) -> None:
    assert [] == ruled_out(page.read_text())


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("Whoever reads it waits.", ["1: Whoever"]),
        ("The view is told.\nIt tried again.", ["1: is told", "2: tried again"]),
        ("Of a mirror, only the newest record counts.", ["1: Of a"]),
        ("A row stands at its place in the log.", ["1: place in the log"]),
        ("The job takes the version over.", ["1: takes the version over"]),
        ("Then `nobody` calls:\n\n```python\nnobody()\n```\n", []),
        ("See [the page](nobody.md#whoever).", []),
        ("The mean is taken over a window.", []),
    ],
)
def test_the_search_for_words_sees_them(text: str, seen: list[str]) -> None:
    assert seen == [hit.partition(" -> ")[0] for hit in ruled_out(text)]
