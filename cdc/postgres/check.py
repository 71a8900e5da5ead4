"""Check: one thing looked at, how it stands, and what repairs it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CheckState(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"  # works, and somebody should know
    FAIL = "fail"  # capture must not start


@dataclass(frozen=True, slots=True)
class Check:
    """One finding.

    Attributes:
        name: What was looked at.
        state: How it stands.
        message: What was found, in a few words.
        detail: More of it; never a secret.
        hint: The one command or change that repairs it.
    """

    name: str
    state: CheckState
    message: str
    detail: str | None = None
    hint: str | None = None
