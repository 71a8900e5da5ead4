"""Generates the pages that describe the code.

`python docs/generate.py` rewrites docs/api.md, docs/cli.md, docs/errors.md, docs/settings.md and
docs/types.md.
With `--check` it changes nothing, and exits 1 with the difference when a page is old.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import api_page
import typer
import types_page
from pydantic import BaseModel
from typer.main import get_command

from headwater.cli import command_line
from headwater.project.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

    from foundation.errors import PlatformError

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGES: Final = ("cdc", "eventstore", "projections", "headwater")
# Fields of the settings that the command line and the environment set, never the file.
FROM_OUTSIDE: Final = ("root", "home", "java_home")
NOTICE: Final = "<!-- written by docs/generate.py: run `make docs` after changing the code -->\n"


@dataclass(frozen=True, slots=True)
class ErrorEntry:
    """One line of the table of errors."""

    code: str
    name: str
    meaning: str
    retriable: bool
    exit_code: int


def main(arguments: list[str]) -> int:
    """Write the pages, or compare them with ``--check``."""
    docs = ROOT / "docs"
    pages = {
        docs / "api.md": api_page.page(NOTICE),
        docs / "cli.md": cli_page(),
        docs / "errors.md": errors_page(),
        docs / "settings.md": settings_page(),
        docs / "types.md": types_page.page(NOTICE),
    }
    if arguments != ["--check"]:
        for path, text in pages.items():
            path.write_text(text)
        return 0
    old = 0
    for path, text in pages.items():
        before = path.read_text() if path.exists() else ""
        lines = before.splitlines(), text.splitlines()
        difference = list(difflib.unified_diff(*lines, str(path), "from the code", lineterm=""))
        old += bool(difference)
        sys.stdout.writelines(f"{line}\n" for line in difference)
    return 1 if old else 0


def error_classes() -> Iterator[type[PlatformError]]:
    """Every class of the packages that declares an error code."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            names = _classes_with_code(path)
            if names:
                parts = path.relative_to(ROOT).with_suffix("").parts
                module = importlib.import_module(".".join(parts).removesuffix(".__init__"))
                yield from (vars(module)[name] for name in names)


def errors_page() -> str:
    """The table of error codes."""
    entries = sorted(map(_entry, error_classes()), key=lambda entry: entry.code)
    lines = [
        NOTICE,
        "# Error codes",
        "",
        "The meaning of a code never changes. `retry` says whether the same operation may succeed",
        "later without any other change; `exit` is the exit code of a command that fails with it.",
        "",
        "| code | error | meaning | retry | exit |",
        "|---|---|---|---|---|",
    ]
    for entry in entries:
        retry = "yes" if entry.retriable else "no"
        lines.append(
            f"| {entry.code} | `{entry.name}` | {entry.meaning} | {retry} | {entry.exit_code} |"
        )
    return "\n".join(lines) + "\n"


def cli_page() -> str:
    """Every command with its help and its options."""
    root = get_command(command_line())
    context = typer.Context(root, info_name="headwater")
    sections = [f"{NOTICE}\n# Commands\n", root.help or ""]
    for name, command, inner in _commands(root, context):
        sections.append(f"\n## `headwater {name}`\n\n{_plain(command.help)}")
        rows = [_row(parameter, inner) for parameter in command.params]
        rows = [row for row in rows if row]
        if rows:
            sections.append("\n| | |\n|---|---|\n" + "\n".join(rows))
    return "\n".join(sections).rstrip() + "\n"


def settings_page() -> str:
    """Every key of `headwater.toml`, section by section."""
    lines = [
        NOTICE,
        "# Settings",
        "",
        "Keys of `headwater.toml`. A value may contain `${NAME}` or `${NAME:-default}`, replaced",
        "from the environment or from `.env` beside the file. Settings under `[profile.NAME]`",
        "override the others when that profile is selected.",
    ]
    places: dict[type[BaseModel], list[str]] = {}
    for path, model in _sections(Settings, ""):
        places.setdefault(model, []).append(f"`[{path}]`" if path else "Above every section")
    for model, titles in places.items():
        meanings = _meanings(model)
        rows = [
            _setting(key, field, meanings.get(key, ""))
            for key, field in model.model_fields.items()
            if key not in FROM_OUTSIDE and _section(field) is None
        ]
        if rows:
            lines += ["", f"## {', '.join(titles)}", ""]
            lines += ["| key | default | meaning |", "|---|---|---|", *rows]
    return "\n".join(lines) + "\n"


def _sections(model: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """The model and every section inside it, each with its place in the file."""
    yield path, model
    for name, field in model.model_fields.items():
        if (found := _section(field)) is not None:
            section, keyed = found
            step = f"{name}.NAME" if keyed else name
            yield from _sections(section, f"{path}.{step}".lstrip("."))


def _section(field: FieldInfo) -> tuple[type[BaseModel], bool] | None:
    """The section a key opens, and whether it is one of many by name."""
    candidates = [(field.annotation, False)]
    candidates += [(part, True) for part in getattr(field.annotation, "__args__", ())]
    for candidate, keyed in candidates:
        if inspect.isclass(candidate) and issubclass(candidate, BaseModel):
            return candidate, keyed
    return None


def _setting(name: str, field: FieldInfo, meaning: str) -> str:
    default = field.get_default(call_default_factory=True)
    shown = "" if default in (None, {}, ()) else f"`{default}`"
    return f"| `{name}` | {shown} | {meaning} |"


def _meanings(model: type[BaseModel]) -> dict[str, str]:
    """What the docstring says of each attribute."""
    _, _, attributes = inspect.cleandoc(model.__doc__ or "").partition("Attributes:\n")
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {8,}.*)*)", attributes, re.MULTILINE)
    return {name: _plain(text).replace("|", "\\|") for name, text in entries}


def _classes_with_code(path: Path) -> list[str]:
    tree = ast.parse(path.read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return [node.name for node in classes if any(_is_code(item) for item in node.body)]


def _is_code(item: ast.stmt) -> bool:
    if isinstance(item, ast.AnnAssign):
        targets: list[ast.expr] = [item.target]
    elif isinstance(item, ast.Assign):
        targets = item.targets
    else:
        return False
    named = any(isinstance(target, ast.Name) and target.id == "code" for target in targets)
    value = item.value
    return named and isinstance(value, ast.Constant) and str(value.value).startswith("HW-")


def _entry(error: type[PlatformError]) -> ErrorEntry:
    return ErrorEntry(
        code=vars(error)["code"],
        name=f"{_imported_from(error)}.{error.__qualname__}",
        meaning=_plain((error.__doc__ or "").split("\n\n")[0]),
        retriable=getattr(error, "retriable", False),
        exit_code=error.exit_code,
    )


def _imported_from(error: type[PlatformError]) -> str:
    """The module that users import an error from: a package `errors` exports its modules' own."""
    package = error.__module__.rpartition(".")[0]
    return package if package.endswith(".errors") else error.__module__


# typer carries a click of its own without public types for its commands and parameters
def _commands(group: Any, context: typer.Context) -> Iterator[tuple[str, Any, typer.Context]]:
    for name, command in sorted(getattr(group, "commands", {}).items()):
        if command.hidden:
            continue
        inner = typer.Context(command, info_name=name, parent=context)
        path = inner.command_path.removeprefix("headwater ")
        yield path, command, inner
        yield from _commands(command, inner)


def _row(parameter: Any, context: typer.Context) -> str:
    record = parameter.get_help_record(context)
    if record is None:
        return ""
    term, meaning = (" ".join(text.split()).replace("|", "\\|") for text in record)
    return f"| `{term}` | {meaning} |"


def _plain(text: str | None) -> str:
    """Help text as Markdown: literals in single backticks, one paragraph a line."""
    paragraphs = (text or "").replace("``", "`").replace("\b", "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs).strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
