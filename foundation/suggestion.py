"""The hint that suggests the name that was probably meant."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """Returns a hint for a name that does not exist.

    Args:
        name: What was given.
        known: Names that exist.
        otherwise: The hint where none of them is like it.
    """
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]}?" if near else otherwise
