"""ExpectedVersion: what a writer thinks of a stream when it appends to it."""

from __future__ import annotations

from typing import Final

from eventstore.errors import BatchRefusedError

ANY: Final = -1
"""Whatever the stream's version is; for facts that contradict nothing."""

STREAM_EXISTS: Final = -2
"""At least one event is in the stream."""

NO_STREAM: Final = 0
"""No event is in the stream."""

VERSION_MAX: Final = 2**53
"""Larger than any stream; every number up to here is exact in JSON, too."""


def check_expected_version(expected_version: int) -> int:
    """Returns the expected version if it is one: `ANY`, `STREAM_EXISTS`, `NO_STREAM`, or exact.

    Raises:
        BatchRefusedError: It is no integer, or none of these.
    """
    # bool is an int in Python; True for 1 is a slip, never a meaning
    if type(expected_version) is not int or not STREAM_EXISTS <= expected_version <= VERSION_MAX:
        raise BatchRefusedError(
            "an expected version must be ANY, NO_STREAM, STREAM_EXISTS or a stream version",
            detail=f"{expected_version!r:.80}",
            hint="a stream's version is the number of its last event, starting at 1",
        )
    return expected_version


def accepts(expected_version: int, actual: int) -> bool:
    """Returns whether a stream at version `actual` (0: absent) is what the writer expects."""
    if expected_version == ANY:
        return True
    return actual > 0 if expected_version == STREAM_EXISTS else actual == expected_version
