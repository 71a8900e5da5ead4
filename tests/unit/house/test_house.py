"""The rules of the house that no tool knows."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("foundation", "cdc", "eventstore", "projections", "headwater", "examples")
HEAVY = (
    *("pyspark", "kafka", "psycopg", "deltalake", "redis", "opensearchpy", "pandas", "pyarrow"),
    *("sqlalchemy", "lark"),
)
FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70

# Who may read the environment besides headwater.project.settings, and why. Handing the whole of it
# to a child, `{**os.environ, ...}`, reads nothing and is free to all.
READS_ENVIRONMENT: dict[str, str] = {
    "examples/bank/server.py": "a program of its own, configured as its platform does it",
    "headwater/runtime/supervisor/spawn.py": "hands its environment on to the supervisor, unread",
    "projections/job/spark/session.py": "Spark takes its Python and its Java from there only",
}

# Which tests call sleep(), and why; all others wait by `tests.waiting`.
SLEEPS: dict[str, str] = {
    "tests/waiting.py": "between two looks, and where work takes its time",
}

type_of_function = (ast.FunctionDef, ast.AsyncFunctionDef)


def tracked_files() -> list[Path]:
    """What git would commit: tracked, or new and not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    return sorted(path for path in paths if path.is_file())


def python_files(*folders: str) -> list[Path]:
    tops = [ROOT / folder for folder in folders]
    return [
        path
        for path in tracked_files()
        if path.suffix == ".py" and (not tops or any(path.is_relative_to(top) for top in tops))
    ]


def place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def test_importing_the_packages_loads_no_heavy_library():
    probe = (
        "import sys, foundation, cdc, eventstore, projections, headwater\n"
        f"print(*(name for name in {HEAVY!r} if name in sys.modules))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert [] == answer.stdout.split()


def test_every_folder_of_modules_is_a_package():
    """The import contracts see packages only."""
    folders = {path.parent for path in python_files(*PACKAGES)}

    assert [] == [place(folder) for folder in folders if not (folder / "__init__.py").is_file()]


@pytest.mark.parametrize("folder", ["docker", "docs", "setup", "tests"])
def test_a_folder_of_scripts_is_no_package_and_shadows_no_library(folder):
    assert [] == list((ROOT / folder).rglob("__init__.py"))


@pytest.mark.parametrize(
    "path", [path for path in python_files(*PACKAGES) if path.name == "__init__.py"], ids=place
)
def test_all_names_exactly_what_a_package_makes_public(path):
    bound, declared = set(), set()
    for node in tree_of(path).body:
        if isinstance(node, ast.ImportFrom | ast.Import):
            bound |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, (*type_of_function, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            declared = set(ast.literal_eval(node.value))
    public = {name for name in bound if not name.startswith("_")} - {"annotations", "TYPE_CHECKING"}

    assert declared == public


def test_only_the_settings_read_the_environment():
    named = re.compile("environ|getenv")
    readers = {
        place(path)
        for path in python_files(*PACKAGES)
        if named.search(path.read_text()) and reads_environment(tree_of(path))
    }
    strangers = {
        reader for reader in readers if not reader.startswith("headwater/project/settings")
    }

    assert set(READS_ENVIRONMENT) == strangers


def reads_environment(tree: ast.Module) -> bool:
    nodes = list(ast.walk(tree))
    handed_on = {
        id(value)
        for node in nodes
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if key is None
    }
    imported = any(
        name.name in {"environ", "getenv"}
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module == "os"
        for name in node.names
    )
    return imported or any(
        isinstance(node, ast.Attribute)
        and node.attr in {"environ", "getenv"}
        and ast.unparse(node.value) == "os"
        and id(node) not in handed_on
        for node in nodes
    )


def test_tests_wait_in_one_way_and_do_not_sleep():
    sleeping = {
        place(path)
        for path in python_files("tests")
        if "sleep" in path.read_text() and calls_of_sleep(tree_of(path))
    }

    assert set(SLEEPS) == sleeping


def functions_of(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, type_of_function)]


def calls_of_sleep(tree: ast.AST) -> list[ast.Call]:
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    names = ((call, getattr(call.func, "attr", getattr(call.func, "id", ""))) for call in calls)
    return [call for call, name in names if name == "sleep"]


def test_files_and_functions_stay_short():
    long_files = {
        place(path): lines
        for path in python_files()
        if (lines := len(path.read_text().splitlines())) > FILE_LINES_MAX
    }
    long_functions = {
        f"{place(path)}:{function.name}": lines
        for path in python_files()
        for function in functions_of(tree_of(path))
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > FUNCTION_LINES_MAX
    }

    assert ({}, {}) == (long_files, long_functions)


# Spelled in pieces: this file is searched as well.
FOREIGN = re.compile(
    r"""
    \b(?: pypi\.(?:org|io) | pythonhosted\.org | repo1?\.maven | maven\.apache\.org | maven\.org
      | registry\.npm | crates\.io/ | proxy\.golang | deb\.debian | archive\.ubuntu
      | (?:ghcr|quay|docker|gcr|mcr)\.io/ )
    | (?<![\w./-]) / (?: root | home/\w+ | Users/\w+ ) /
    """,
    re.VERBOSE,
)


def test_no_file_names_a_registry_host_or_somebody_s_home():
    found = []
    for path in tracked_files():
        if path == Path(__file__).resolve():
            continue
        text = path.read_bytes().decode(errors="replace")
        found += [
            f"{place(path)}:{number}: {hit[0]}"
            for number, line in enumerate(text.splitlines(), start=1)
            if (hit := FOREIGN.search(line))
        ]

    assert [] == found


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("https://" + "quay" + ".io/a/b:1", True),
        ("cd /" + "root" + "/x", True),
        ("image: postgres:18", False),
        ("at https://github.com/x", False),
        ("--root/tmp", False),
    ],
)
def test_the_search_for_hosts_and_homes_sees_them(text, seen):
    assert seen == bool(FOREIGN.search(text))


def test_no_test_of_every_run_may_hang_for_long():
    """Those of `make soak` have the time that their many seeds take."""
    late = []
    for path in python_files("tests"):
        limit_s = 900 if path.is_relative_to(ROOT / "tests" / "e2e") else 600
        text = path.read_text()
        if "mark.soak" not in text:
            limits = map(int, re.findall(r"mark\.timeout\((\d+)\)", text))
            late += [place(path) for found in limits if found > limit_s]

    assert [] == late
