"""Hints that suggest a similar existing name."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """Returns a hint for a name that does not exist.

    Args:
        name: The given name.
        known: Names that exist.
        otherwise: The hint if no known name is similar.
    """
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]}?" if near else otherwise
