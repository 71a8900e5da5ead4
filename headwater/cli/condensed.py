"""Condenses many lines that differ in one name, such as a table's, to one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_EACH_MAX: Final = 5
"""Maximum number of lines of one kind that are printed one by one."""

_NAMED_MAX: Final = 3


def condensed(lines: Iterable[str]) -> Iterator[str]:
    """Yields the lines in order; a long run whose lines differ in one word becomes one line.

    Args:
        lines: The completed steps, one each.
    """
    run: list[list[str]] = []
    place: int | None = None  # of the word in which its lines differ
    for line in lines:
        words = line.split(" ")
        differing = _word(run[0], words) if run else None
        if run and (differing is None or differing != (place if len(run) > 1 else differing)):
            yield from _run_lines(run, place)
            run = []
        place = differing
        run.append(words)
    yield from _run_lines(run, place)


def names(several: Iterable[str]) -> str:
    """Returns the first of several names, and how many more there are."""
    given = list(several)
    more = len(given) - _NAMED_MAX
    if more <= 1:
        return ", ".join(given)
    return f"{', '.join(given[:_NAMED_MAX])} and {more} more"


def _word(first: list[str], other: list[str]) -> int | None:
    """Number of the only word in which two lines differ; None if they differ otherwise."""
    if len(first) != len(other):
        return None
    differing = [number for number, word in enumerate(first) if word != other[number]]
    return differing[0] if len(differing) == 1 else None


def _run_lines(run: list[list[str]], place: int | None) -> Iterator[str]:
    if place is None or len(run) <= _EACH_MAX:
        yield from (" ".join(words) for words in run)
        return
    several = names(words[place] for words in run)
    yield " ".join([*run[0][:place], several, *run[0][place + 1 :]])
