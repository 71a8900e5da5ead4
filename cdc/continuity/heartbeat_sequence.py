"""Heartbeats in a row: each is numbered, so one that is missing shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cdc.broker.reading.heartbeats import Heartbeat
    from cdc.lsn import Lsn


def follow(
    number: int | None, lsn: Lsn | None, found: Iterable[Heartbeat]
) -> tuple[Heartbeat | None, str | None]:
    """Follows heartbeats in the order in which they arrived.

    A connector that was killed sends its last ones again: those have numbers and positions that
    were passed already.

    Args:
        number: Number of the newest one before; None if there was none.
        lsn: Its position.
        found: Those after it, as they arrived.

    Returns:
        The newest that follows all before it, None if there is none; and what is missing before
        the next, None if nothing is.
    """
    newest: Heartbeat | None = None
    for beat in found:
        if number is None or lsn is None or (beat.number == number + 1 and beat.lsn > lsn):
            newest, number, lsn = beat, beat.number, beat.lsn
        elif beat.number > number:
            return newest, f"heartbeat {beat.number} at {beat.lsn} came after {number} at {lsn}"
        elif beat.lsn > lsn:
            return newest, f"heartbeat {beat.number} came at {beat.lsn}, {number} at {lsn} before"
    return newest, None
