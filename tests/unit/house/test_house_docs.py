"""Pages written from the code say what the code says."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("foundation", "cdc", "eventstore", "projections", "headwater", "examples")
CODE = re.compile(r"HW-[A-Z]?\d{2}[\dX]")  # X: the family that such codes belong to


@cache
def declared_codes() -> list[tuple[str, str]]:
    """(code, class) of every class body that assigns ``code``."""
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    found += [(code, f"{path.stem}.{node.name}") for code in codes_of(node)]
    return found


def codes_of(node: ast.ClassDef) -> list[str]:
    found = []
    for item in node.body:
        match item:
            case ast.Assign([ast.Name("code")], ast.Constant(code)):
                found.append(code)
            case ast.AnnAssign(ast.Name("code"), value=ast.Constant(code)):
                found.append(code)
    return found


def test_every_error_code_means_one_thing():
    uses = Counter(code for code, _ in declared_codes())

    assert [] == [code for code, count in uses.items() if count > 1]


def test_every_error_code_has_the_house_form():
    assert [] == [found for found in declared_codes() if not CODE.fullmatch(found[0])]


@pytest.mark.parametrize("script", ["docs/generate.py", "setup/twins.py"])
def test_what_is_written_from_the_code_is_current(script):
    command = [sys.executable, script, "--check"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (0, "", "") == (answer.returncode, answer.stdout, answer.stderr)


def test_every_declared_code_is_in_the_table_of_errors():
    page = (ROOT / "docs" / "errors.md").read_text()

    assert [] == [code for code, _ in declared_codes() if f"| {code} |" not in page]


LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*?) *$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    words = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text) for text in headings(page))
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in words}


def headings(page: Path) -> list[str]:
    return HEADING.findall(FENCE.sub("", page.read_text()))


def dead_links(page: Path) -> list[str]:
    dead = []
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if "://" in link or link.startswith("mailto:"):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    return dead


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_a_page_lead_to_a_file_and_its_heading(page: Path) -> None:
    assert [] == dead_links(page)


def test_a_dead_link_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# The `one` heading\n[a](#the-one-heading) [b](#other) [c](gone.md)\n")

    assert ["#other", "gone.md"] == dead_links(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_two_headings_of_a_page_have_one_anchor(page: Path) -> None:
    if page.name != "CHANGELOG.md":  # each of its versions has the same parts
        assert len(headings(page)) == len(anchors(page))


NAMED_PATH = re.compile(r"`([\w./]+/[\w.]+\.(?:py|sql))`")


def test_the_files_that_a_newcomer_opens_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    _, _, section = page.partition("## Where to start\n")
    tasks = [line for line in section.partition("\n## ")[0].splitlines() if "`" in line][1:]
    named = [NAMED_PATH.findall(task) for task in tasks]

    assert 10 == len(named)
    assert [] == [task for task, paths in zip(tasks, named, strict=True) if len(paths) < 2]
    assert [] == [path for paths in named for path in paths if not (ROOT / path).is_file()]


TABLE = re.compile(
    r"CREATE (?:UNLOGGED )?(?:TABLE|SEQUENCE) (?:IF NOT EXISTS )?((?:headwater|eventstore\w*)\.\w+)"
)
FILE_NAME = r"\.[a-z-]+(?:\.lock)?|[\w.-]+\.(?:json|msgpack)"
STORED_NAME = re.compile(
    rf'^_?[A-Z_]+(?:: Final)? = "(headwater[._-][\w.-]+|{FILE_NAME})"', re.MULTILINE
)
# Names of a column in a query's plan, of a module, an attribute, classes of Java; endings of files.
NOT_STORED = {
    "headwater.input",
    "headwater_views",
    "headwater_expectations",
    "headwater.connect.v1.ColumnRules",
    "headwater.connect.v1.ExactValues",
    "headwater.connect.v1.TopicNames",
    ".parquet",
}


def stored_names() -> set[str]:
    """Tables, and constants that name a property, a key, a header, a lock or a file."""
    files = [p for package in PACKAGES[:4] for p in sorted((ROOT / package).rglob("*.py"))]
    for package in ("cdc", "eventstore", "projections"):
        files += sorted((ROOT / package).rglob("*.sql"))
    texts = [path.read_text() for path in files]
    tables = {name.removeprefix("headwater.") for text in texts for name in TABLE.findall(text)}
    return tables | {name for text in texts for name in STORED_NAME.findall(text)} - NOT_STORED


def test_the_page_of_state_lists_all_that_is_stored():
    page = (ROOT / "docs" / "state.md").read_text()
    named = "\n".join(re.findall(r"`[^`\n]+`", page))

    assert [] == sorted(name for name in stored_names() if name not in named)


def test_the_names_of_what_is_stored_are_found():
    assert {"heartbeat", "eventstore.events", "headwater.floor", ".writer"} <= stored_names()
