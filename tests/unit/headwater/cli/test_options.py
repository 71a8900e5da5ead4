"""A parameter that is a group of options gives a command all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from headwater.cli import options as module
from headwater.cli.options import Commands, Json, LogOptions, ProjectOptions

Name = Annotated[str, typer.Argument()]


@pytest.fixture
def seen():
    return []


@pytest.fixture
def app(seen):
    commands = Commands()

    @commands.command("one")
    def one(options: ProjectOptions, name: Name = "x") -> None:
        seen.append((name, options))

    @commands.command("two")
    def two(name: Name, *, options: LogOptions, as_json: Json = False) -> None:
        seen.append((name, options, as_json))

    two("called as it was written", options=LogOptions())
    return commands


def test_a_group_has_its_options_and_their_defaults(app, seen):
    answers = [
        CliRunner().invoke(app, words)
        for words in (
            ["one"],
            ["one", "a", "-c", "x.toml", "--profile", "p"],
            ["two", "--tenant", "t", "--dsn", "d", "b", "--home", "h", "--json"],
        )
    ]

    assert [0, 0, 0] == [answer.exit_code for answer in answers]
    assert [
        ("called as it was written", LogOptions(), False),
        ("x", ProjectOptions()),
        ("a", ProjectOptions(config=Path("x.toml"), profile="p")),
        ("b", LogOptions(tenant="t", dsn="d", home=Path("h")), True),
    ] == seen


def test_options_that_a_group_adds_come_first():
    names = [each.name for each in module._options(LogOptions)]

    assert ["tenant", "dsn", "config", "home", "profile"] == names
