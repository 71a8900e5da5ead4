"""UnknownPolicy: what becomes of events that this program has no class for."""

from __future__ import annotations

from enum import StrEnum


class UnknownPolicy(StrEnum):
    """What a subscription does with an event of an unknown type, or of a future version.

    The event is never skipped. A read yields it, and access to its `.event` raises an error, as
    does a fold.

    Attributes:
        HALT: The subscription stops with `UndeclaredError`: deploy the program that knows it.
        PARK: The event's stream is parked, and the others continue.
    """

    HALT = "halt"
    PARK = "park"
