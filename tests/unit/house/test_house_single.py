"""One of each: a mechanism that all packages need is written once, and used everywhere."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
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
    "eventstore/postgres/append_statement.py": "two locks inside the one statement of an append",
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
    "projections/job/bulk_load.py": "a folder, which is a table",
    "projections/job/loaded_table.py": "a complete file, which becomes one of another table",
    "projections/common/task_files.py": "pyarrow writes the file, by its name",
    "projections/job/spark/class_archive.py": "a JVM has written the file",
    "projections/publishing/stable_table.py": "a commit is refused where its name is taken",
}
"""Modules that give a file or folder another name."""

DESCRIBED = {
    "eventstore/serialization/registry.py": "while the class is declared",
    "eventstore/serialization/wire.py": "decoder, under a lock",
}
"""Modules that have msgspec describe a type when a function runs.

If another thread uses the type for the first time meanwhile, the process ends with a segmentation
fault. Everywhere else, decoders are made when their module is imported.
"""


@dataclass(frozen=True, slots=True)
class Module:
    """What the tests look at in a module: not its tree, which is large.

    Attributes:
        text: Its source.
        names: Functions and methods that it mentions: of `fcntl.flock`, `flock`.
        renames: Whether it renames a path.
        declares: Whether it declares an option that chooses a project.
    """

    text: str
    names: frozenset[str]
    renames: bool
    declares: bool


@pytest.fixture(scope="module")
def modules() -> dict[str, Module]:
    """The modules of the packages, by path."""
    paths = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return {path.relative_to(ROOT).as_posix(): module(path.read_text()) for path in paths}


def module(text: str) -> Module:
    nodes = list(ast.walk(ast.parse(text)))
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    names = attributes | {node.id for node in nodes if isinstance(node, ast.Name)}
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    return Module(text, frozenset(names), any(map(renames, calls)), any(map(declares, calls)))


def renames(call: ast.Call) -> bool:
    """Whether it renames a path: `path.replace(other)`; text is replaced by two arguments."""
    return (
        isinstance(call.func, ast.Attribute)
        and len(call.args) == 1
        and not call.keywords
        and call.func.attr in {"rename", "replace"}
    )


def declares(call: ast.Call) -> bool:
    """Whether it is one of the options that choose a project."""
    options = ("--config", "--profile", "--json")
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    return name == "Option" and any(
        isinstance(word, ast.Constant) and word.value in options for word in call.args
    )


@pytest.mark.parametrize("name", CALLS)
def test_a_function_is_called_where_its_mechanism_is(modules, name):
    users = {path for path, found in modules.items() if name in found.names}

    assert users == CALLS[name].keys()


def test_files_are_replaced_by_one_function(modules):
    assert {path for path, found in modules.items() if found.renames} == DRAFTS.keys()


def test_advisory_locks_are_computed_by_one_module(modules):
    users = {path for path, found in modules.items() if "pg_advisory_" in found.text}

    assert users == LOCKS.keys()


def test_options_that_choose_a_project_are_declared_once(modules):
    commands = {path: found for path, found in modules.items() if path.startswith("headwater/cli/")}
    users = {path for path, found in commands.items() if found.declares}

    assert {"headwater/cli/options.py"} == users


def test_a_version_is_taken_apart_by_one_module(modules):
    """No other module knows how many bits of a version are its lsn."""
    shifts = re.compile(r"(<<|>>)\s*56\b|LSN_BITS(: \w+)? = ")
    users = {path for path, found in modules.items() if shifts.search(found.text)}

    assert {"cdc/position.py"} == users


def test_types_are_described_to_msgspec_when_a_module_is_imported(modules):
    later = re.compile(
        r"msgspec\.convert\(|msgspec\.\w+\.decode\([^\n]*\btype=|^ +.*msgspec\.\w+\.Decoder\(",
        re.MULTILINE,
    )
    users = {path for path, found in modules.items() if later.search(found.text)}

    assert users == DESCRIBED.keys()
