"""UnknownPolicy: what becomes of events that this program has no class for."""

from __future__ import annotations

from enum import StrEnum


class UnknownPolicy(StrEnum):
    """What a subscription does with an event of an unknown type, or of a future version.

    It is never skipped. A plain read yields it, and its `.event` raises; a fold raises.

    Attributes:
        HALT: The subscription stops with `UndeclaredError`: deploy the program that knows it.
        PARK: The event's stream is parked, the others go on.
    """

    HALT = "halt"
    PARK = "park"
