"""What docs/capture-operations.md shows can be typed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from headwater.cli import command_line
from headwater.project.project import open_project

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "capture-operations.md").read_text()
VARIABLES = ("ADMIN_PASSWORD", "CAPTURE_PASSWORD", "HEADWATER_SALT")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_its_settings_and_declarations_open_as_a_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections: dict[str, list[str]] = {}
    for block in blocks("toml"):
        head, *lines = block.splitlines()
        sections.setdefault(head, []).extend(lines)
    text = "\n".join(line for head, lines in sections.items() for line in (head, *lines))
    (tmp_path / "headwater.toml").write_text(text)
    (tmp_path / "views.py").write_text("\n".join(blocks("python")))
    for name in VARIABLES:
        monkeypatch.setenv(name, f"the value of {name}")

    project = open_project(tmp_path / "headwater.toml")

    settings = project.settings.for_source("shop")
    assert "the value of HEADWATER_SALT" == (settings.salt and settings.salt.get_secret_value())
    assert settings.connector_password == "${file:/etc/connect/shop.properties:password}"
    assert {"public.people", "public.staff"} == settings.retention.keys()
    assert {"email"} == {name for rule in project.source.columns.values() for name in rule.hash}


@pytest.mark.parametrize(
    "line", [line for block in blocks("sh") for line in block.splitlines() if line.strip()]
)
def test_its_commands_exist_with_their_options(line: str) -> None:
    words = shlex.split(line.split("#", maxsplit=1)[0].split(">", maxsplit=1)[0])
    command = get_command(command_line())
    context = typer.Context(command, info_name=words.pop(0))
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]  # type: ignore[attr-defined]

    made = command.make_context(context.info_name, words)  # refuses what it does not know
    assert [] == made.args
    assert not hasattr(command, "commands"), f"{line} is no whole command"
