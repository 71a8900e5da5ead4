"""Lines that differ in one name, such as a table's, said in one line once they are many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_EACH_MAX: Final = 5
"""So many lines of one kind are printed one by one."""

_NAMED_MAX: Final = 3


def condensed(lines: Iterable[str]) -> Iterator[str]:
    """Yields the lines in their order, and long runs that differ in one word as one line.

    Args:
        lines: What was done, one step each.
    """
    run: list[list[str]] = []
    place: int | None = None  # of the word in which its lines differ
    for line in lines:
        words = line.split(" ")
        found = _word(run[0], words) if run else None
        if run and (found is None or found != (place if len(run) > 1 else found)):
            yield from _said(run, place)
            run = []
        place = found
        run.append(words)
    yield from _said(run, place)


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


def _said(run: list[list[str]], place: int | None) -> Iterator[str]:
    if place is None or len(run) <= _EACH_MAX:
        yield from (" ".join(words) for words in run)
        return
    several = names(words[place] for words in run)
    yield " ".join([*run[0][:place], several, *run[0][place + 1 :]])
