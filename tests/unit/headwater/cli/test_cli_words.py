"""Values that begin with a dash are values, in every command that takes a user's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from typer.main import get_command

from headwater.cli import command_line, main
from headwater.cli.words import in_order

if TYPE_CHECKING:
    from collections.abc import Iterator

TREE = get_command(command_line())


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    below = getattr(command, "commands", None)
    if not below:
        yield path, command
        return
    for name, each in below.items():
        yield from leaves(each, (*path, name))


TAKING_TEXT = [
    (path, command)
    for path, command in leaves(TREE)
    for argument in command.params
    if argument.param_type_name == "argument"
]
"""A line for each argument of each command."""


def parsed(*words: str) -> dict[str, Any]:
    """What a command is given by a line."""
    ordered, command = in_order(TREE, words), TREE
    while below := getattr(command, "commands", None):
        command = below[ordered.pop(0)]
    return command.make_context("command", ordered).params


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("cache", "get", "t", "-5"), {"name": "t", "key": ["-5"]}),
        (("cache", "get", "t", "-5", "7", "-6", "--json"), {"key": ["-5", "7", "-6"]}),
        (("cache", "get", "--json", "t", "-5"), {"key": ["-5"], "as_json": True}),
        (("cache", "get", "t", "-1.5e3"), {"key": ["-1.5e3"]}),
        (("cache", "get", "t", "-cat"), {"key": ["-cat"], "config": None}),
        (("cache", "get", "t", "--", "--5", "-6"), {"key": ["--5", "-6"]}),
        (("trace", "t", "-5", "--last", "3"), {"view": "t", "key": ["-5"], "last": 3}),
        (("search", "t", "-red"), {"text": "-red"}),
        (("search", "t", "-new"), {"text": "-new", "size": 10}),
        (("search", "t", "-"), {"text": "-"}),
        (("search", "t", "-n5", "-red"), {"text": "-red", "size": 5}),
        (("search", "t", "-n", "5", "-red"), {"text": "-red", "size": 5}),
        (("search", "t", "-red", "-w", "-a=-5"), {"text": "-red", "where": ["-a=-5"]}),
        (("search", "t", "--where=a=-5", "-red"), {"text": "-red", "where": ["a=-5"]}),
        (("query", "-- newest first\nSELECT 1"), {"sql": "-- newest first\nSELECT 1"}),
    ],
    ids=" ".join,
)
def test_a_word_with_a_dash_is_a_value_unless_it_is_an_option(
    words: tuple[str, ...], expected: dict[str, Any]
) -> None:
    found = parsed(*words)

    assert expected == {name: found[name] for name in expected}


@pytest.mark.parametrize(
    ("path", "command"),
    TAKING_TEXT,
    ids=lambda it: " ".join(it) if isinstance(it, tuple) else "takes",
)
def test_every_command_takes_a_value_with_a_dash(path: tuple[str, ...], command: Any) -> None:
    wanted = sum(1 for each in command.params if each.param_type_name == "argument")

    found = in_order(TREE, [*path, *["-5"] * wanted, "--json"])

    assert [*path, "--json", "--", *["-5"] * wanted] == found


@pytest.mark.parametrize(
    "words",
    [
        ("cache", "get", "t", "5", "--json"),
        ("-v", "search", "t", "red", "-n", "5"),
        ("search", "t", "--help"),
        ("search", "t", "-h"),
        ("cache", "gte", "-5"),
        ("-v",),
        (),
    ],
    ids=" ".join,
)
def test_a_line_without_such_a_value_stays_as_it_is(words: tuple[str, ...]) -> None:
    assert list(words) == in_order(TREE, words)


def test_a_mistyped_option_is_refused_with_the_way_to_give_a_value(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = main(["cache", "get", "t", "5", "--jsn"])

    said = capsys.readouterr().err
    assert (2, True, True) == (code, "No such option: --jsn" in said, "follows after --" in said)
