"""Check: the result of one check, with its explanation and its remedy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CheckState(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARN = "warn"  # works, but needs attention
    FAIL = "fail"  # capture must not start


@dataclass(frozen=True, slots=True)
class Check:
    """A result with its explanation.

    Attributes:
        name: What was checked.
        state: The result.
        message: The finding, in a few words.
        detail: More about it; never a secret.
        hint: The one command or change that repairs it.
    """

    name: str
    state: CheckState
    message: str
    detail: str | None = None
    hint: str | None = None
