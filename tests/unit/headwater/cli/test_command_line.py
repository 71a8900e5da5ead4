"""A command is loaded with its own module, and is the same whichever others are."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from typer.main import get_command

from headwater import __version__
from headwater.cli import command_line
from headwater.cli.app import _GROUPS, _MODULES

WHOLE: Any = get_command(command_line())
NAMES = sorted(WHOLE.commands)


def _said(group: Any, name: str) -> list[tuple[str, str | None, list[str]]]:
    command = group.commands[name]
    inner = getattr(command, "commands", {})
    own = (name, command.help, [parameter.name for parameter in command.params])
    return [own, *(each for below in sorted(inner) for each in _said(command, below))]


def test_every_command_is_named_with_the_module_that_has_it() -> None:
    assert sorted([*_MODULES, *_GROUPS]) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_command_that_is_loaded_alone_is_that_of_the_whole_tree(name: str) -> None:
    alone: Any = get_command(command_line(["--verbose", name, "--json"]))

    assert _said(WHOLE, name) == _said(alone, name)
    module = _MODULES.get(name)
    assert {each for each in NAMES if module and _MODULES.get(each) == module} | {name} == set(
        alone.commands
    )


def test_what_is_no_command_is_looked_for_among_all() -> None:
    tree: Any = get_command(command_line(["stauts"]))
    assert NAMES == sorted(tree.commands)


def test_a_command_loads_nothing_of_the_others() -> None:
    code = """if True:
        import sys
        from headwater.cli import main
        main(["status", "--help"])
        print(*sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())

    assert "headwater.cli.services" in loaded
    assert not loaded & {"headwater.cli.view", "headwater.cli.events"}


def test_the_version_is_shown_without_any_command_being_loaded():
    code = """if True:
        import sys
        from headwater.cli import main
        main(["--version"])
        print(*(name for name in sys.modules if name.startswith("headwater.cli.")))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    shown, loaded = done.stdout.splitlines()

    assert f"headwater {__version__}" == shown
    assert {"app", "hints", "options", "output", "words"} >= {
        name.removeprefix("headwater.cli.") for name in loaded.split()
    }
