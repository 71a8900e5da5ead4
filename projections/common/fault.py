"""Faults: pass a typed error from Spark's workers, through a JVM, to the driver."""

from __future__ import annotations

import re
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from foundation.errors import PlatformError

_MARK = "HEADWATER-FAULT"
_PATTERN = re.compile(_MARK + r"(\{.*?\})" + _MARK)


@dataclass(frozen=True, slots=True)
class Fault:
    """An error in text form.

    Attributes:
        code: Its stable code.
        message: The error's message.
        detail: The observed detail.
        hint: How to repair it.
        retriable: Whether a retry may succeed.
    """

    code: str
    message: str
    detail: str | None
    hint: str | None
    retriable: bool

    @classmethod
    def of(cls, error: PlatformError) -> Fault:
        """Describes an error."""
        return cls(error.code, error.message, error.detail, error.hint, error.retriable)

    @classmethod
    def find(cls, text: str) -> Fault | None:
        """Finds the description in a stack trace; None if there is none."""
        found = _PATTERN.search(text)
        return None if found is None else cls(**orjson.loads(found[1]))


def kind_and_place(error: Exception) -> str:
    """Returns an error's class and origin, never its text, which may contain a value."""
    places = traceback.extract_tb(error.__traceback__)
    where = ", ".join(f"{Path(place.filename).name}:{place.lineno}" for place in places[-4:])
    return f"{type(error).__name__} at {where}"


class FaultError(RuntimeError):
    """Replaces a typed error in a worker; its text is the error's description."""

    def __init__(self, error: PlatformError) -> None:
        super().__init__(_MARK + orjson.dumps(asdict(Fault.of(error))).decode() + _MARK)
