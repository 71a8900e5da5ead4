"""Checks the sequence of heartbeats: they are numbered, so a missing one is detected."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cdc.broker.reading.heartbeats import Heartbeat
    from cdc.lsn import Lsn


def follow(
    number: int | None, lsn: Lsn | None, found: Iterable[Heartbeat]
) -> tuple[Heartbeat | None, str | None]:
    """Checks heartbeats in the order of arrival.

    A killed connector sends its last heartbeats again, with numbers and positions that were seen
    before.

    Args:
        number: Number of the newest previous heartbeat; None if there was none.
        lsn: Its position.
        found: The heartbeats after it, in the order of arrival.

    Returns:
        The newest heartbeat without a gap before it, None if there is none; and a description of
        the gap after it, None if there is none.
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
