"""Writes each blocking module that has a twin for asyncio, from that twin.

`python setup/twins.py` rewrites the modules. With `--check` it changes nothing, and exits 1 with
the difference when one is old.
"""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]

TWINS: Final = {
    "eventstore/async_store.py": "eventstore/store.py",
    "eventstore/postgres/async_log.py": "eventstore/postgres/log.py",
}
"""The blocking module of each for asyncio."""

WORDS: Final = (
    (r"\basync (?=def |for |with )|\bawait (?=[\w(])", ""),
    (r"\b__a(enter|exit)__", r"__\1__"),
    (r"\basync_(paging|running)\b", r"\1"),
    (
        r"\bAsync(EventStore|EventLog|PostgresEventLog|PlanRunner|Iterator|Sessions|Connection|Cursor)\b",
        r"\1",
    ),
)
"""What differs in every module: patterns, and what they become."""

PROSE: Final = {
    "eventstore/postgres/log.py": (
        (
            "the event log on Postgres for asyncio, with the same statements",
            "the event log on Postgres; functions in the schema enforce its rules",
        ),
        ("; belongs to the event loop that first uses it", ""),
    ),
    "eventstore/store.py": (
        (", over any `EventLog`, for asyncio", ", over any `EventLog`"),
        (
            """, for asyncio; the same answers as `EventStore`.

    A key ring may query its database. With a key ring, planning runs in a thread, including
    `decide` and `evolve`, and the first access to `.event` of a read event may block.
""",
            """.

    Threads: all methods may be called concurrently; an iterator belongs to one thread.
""",
        ),
        (
            "such as `PostgresEventLog(dsn)`",
            "such as `PostgresEventLog(dsn)` or `MemoryEventLog()`",
        ),
        (
            "Closes the log, for its other tenants too; a wait ends when its task is cancelled.",
            "Ends waits of this store and of its other tenants, and closes the log.",
        ),
    ),
}
"""What a docstring says of one of the two alone."""


def blocking(twin: str, name: str) -> str:
    """Returns the text of a blocking module."""
    text = (ROOT / twin).read_text(encoding="utf-8")
    for pattern, replacement in WORDS:
        text = re.sub(pattern, replacement, text)
    for said, instead in PROSE[name]:
        if text.count(said) != 1:
            raise SystemExit(f"{twin} does not say once: {said}")
        text = text.replace(said, instead)
    source = Path(twin).name
    notice = f"# Written by setup/twins.py from {source}: change that one, then run `make docs`.\n"
    for words in (["check", "--select=I", "--fix-only", "--quiet"], ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *words, f"--stdin-filename={name}", "-"]
        text = subprocess.run(
            ruff, cwd=ROOT, input=text, capture_output=True, text=True, check=True
        ).stdout
    return notice + text


def main(arguments: list[str]) -> int:
    """Writes the modules, or compares them with ``--check``."""
    old = False
    for twin, name in TWINS.items():
        path, text = ROOT / name, blocking(twin, name)
        found = path.read_text(encoding="utf-8")
        if arguments != ["--check"]:
            path.write_text(text, encoding="utf-8")
        elif found != text:
            old = True
            lines = found.splitlines(keepends=True), text.splitlines(keepends=True)
            sys.stdout.writelines(difflib.unified_diff(*lines, name, twin))
    return int(old)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
