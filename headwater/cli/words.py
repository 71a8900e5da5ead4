"""Values that begin with a dash: a key `-5` or a text `-red` is no option.

The words of a command line are put in order before they are parsed: options, `--`, values. A word
with one dash is an option only if the command has it. A word with two dashes is always an option,
so a mistyped one is refused; a value of that kind follows after `--`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_END: Final = "--"
_HELP: Final = frozenset({"-h", "--help"})
_NUMBER: Final = re.compile(r"\d+(\.\d+)?")


def in_order(tree: Any, words: Sequence[str]) -> list[str]:
    """Returns a command line in which no value can be parsed as an option.

    Args:
        tree: All commands, as Typer builds them.
        words: Words after the program's name. They are returned as they are unless a value among
            them begins with a dash.
    """
    command, begin = _asked(tree, words)
    options = {
        name: option
        for option in getattr(command, "params", ())
        if option.param_type_name == "option"
        for name in (*option.opts, *option.secondary_opts)
    }
    named, values = _apart(options, words[begin:])
    if not any(value.startswith("-") for value in values):
        return list(words)
    return [*words[:begin], *named, _END, *values]


def _asked(tree: Any, words: Sequence[str]) -> tuple[Any, int]:
    """Returns the command of a line, and the index of its first own word."""
    command, place = tree, 0
    while commands := getattr(command, "commands", None):
        while place < len(words) and words[place].startswith("-"):
            place += 1  # a group has flags only
        if place == len(words) or words[place] not in commands:
            return None, len(words)  # the parser reports it
        command, place = commands[words[place]], place + 1
    return command, place


def _apart(options: Mapping[str, Any], words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Options with their arguments, and values."""
    named: list[str] = []
    values: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if word == _END:
            return named, [*values, *left]
        if not _is_option(options, word):
            values.append(word)
            continue
        named.append(word)
        if _takes_next(options, word) and left:
            named.append(left.pop(0))
    return named, values


def _is_option(options: Mapping[str, Any], word: str) -> bool:
    name = word.partition("=")[0]
    if not word.startswith("-") or word == "-" or re.search(r"\s", name):
        return False
    if word.startswith("--") or name in _HELP or name in options:
        return True
    first, attached = options.get(word[:2]), word[2:]
    if first is None:
        return False
    return bool(_NUMBER.fullmatch(attached)) and not _is_flag(first)  # such as -n5


def _takes_next(options: Mapping[str, Any], word: str) -> bool:
    option = options.get(word)
    return option is not None and not _is_flag(option)


def _is_flag(option: Any) -> bool:
    return bool(option.is_flag or option.count)
