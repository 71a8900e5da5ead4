"""One of each: a mechanism that all packages need is written once, and used everywhere."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("foundation", "cdc", "eventstore", "projections", "headwater")
CALLS = {
    "get_close_matches": {
        "foundation/suggestion.py": "did_you_mean",
    },
    "fsync": {
        "foundation/atomic_file.py": "write_atomically",
        "projections/common/driver_lock.py": "the token is written into the file that is locked",
        "projections/job/spark/class_archive.py": "a JVM has written the file",
    },
    "flock": {"foundation/file_lock.py": "lock and try_lock"},
    "lockf": {"foundation/file_lock.py": "try_lock, for a lock that a JVM sees"},
    "mkstemp": {},
}
"""Functions, and the modules that may call them, with the reason."""

LOCKS = {
    "foundation/advisory_lock.py": "AdvisoryLock",
    "eventstore/postgres/statement.py": "two locks inside the one statement of an append",
    "eventstore/subscription/statement.py": "a rebuild's lock, and the end of all of a session's",
}
"""Modules that write the SQL of an advisory lock."""

DRAFTS = {
    "foundation/atomic_file.py": "write_atomically",
    "headwater/runtime/java/jars.py": "a jar is downloaded, then checked, before it has its name",
    "headwater/runtime/servers/opensearch.py": "the file is rendered under its template's name",
    "headwater/runtime/servers/postgres.py": "a folder that initdb has filled",
    "projections/archive/table.py": "a folder, which is a table",
    "projections/common/spark_checkpoint.py": "a folder, which is a checkpoint",
    "projections/common/table_pins.py": "the draft is locked before it has its name",
    "projections/job/spark/class_archive.py": "a JVM has written the file",
    "projections/publishing/stable_table.py": "a commit is refused where its name is taken",
    "projections/stores/delta/bulk_load.py": "a folder, which is a table",
}
"""Modules that give a file or folder another name."""


def modules() -> dict[str, ast.Module]:
    paths = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in paths}


MODULES = modules()


def calls(tree: ast.Module) -> set[str]:
    """Names of the functions and methods that a module mentions: `fcntl.flock`, `flock`."""
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return attributes | {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def renames(tree: ast.Module) -> bool:
    """Whether a module renames a path: `path.replace(other)`; text is replaced by two arguments."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and len(node.args) == 1
        and not node.keywords
        and node.func.attr in {"rename", "replace"}
        for node in ast.walk(tree)
    )


@pytest.mark.parametrize("name", CALLS)
def test_a_function_is_called_where_its_mechanism_is(name):
    users = {path for path, tree in MODULES.items() if name in calls(tree)}

    assert users == CALLS[name].keys()


def test_files_are_replaced_by_one_function():
    assert {path for path, tree in MODULES.items() if renames(tree)} == DRAFTS.keys()


def test_advisory_locks_are_computed_by_one_module():
    users = {path for path in MODULES if "pg_advisory_" in (ROOT / path).read_text()}

    assert users == LOCKS.keys()


def test_options_that_choose_a_project_are_declared_once():
    options = ("--config", "--profile", "--json")
    users = {
        path
        for path, tree in MODULES.items()
        if path.startswith("headwater/cli/")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "typer.Option"
        and any(isinstance(word, ast.Constant) and word.value in options for word in node.args)
    }

    assert {"headwater/cli/options.py"} == users


def test_a_version_is_taken_apart_by_one_module():
    """No other module knows how many bits of a version are its lsn."""
    shifts = re.compile(r"(<<|>>)\s*56\b|LSN_BITS(: \w+)? = ")
    users = {path for path in MODULES if shifts.search((ROOT / path).read_text())}

    assert {"cdc/position.py"} == users
