"""Tracebacks and locations of errors, without their messages, which may contain values of rows."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final

from eventstore.errors import EventStoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

FRAMES_MAX: Final = 40
"""Frames of each error in a traceback: an endless recursion has a thousand."""

_CAUSES_MAX: Final = 10
_LOCATION_CHARACTERS: Final = 200
_NOT_THE_USERS: Final = tuple(
    {
        str(Path(__file__).parents[1]),
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    }
)


def traceback_of(error: BaseException) -> str:
    """Returns the tracebacks of an error and its causes, oldest first, without their messages.

    The message of an `EventStoreError` is included, because it never contains values.
    """
    said = []
    for one in reversed(list(_causes(error))):
        frames = traceback.extract_tb(one.__traceback__)[-FRAMES_MAX:]
        said += [*traceback.format_list(frames), kind_of(one)]
        said.append(f": {one}\n" if isinstance(one, EventStoreError) else "\n")
    return "".join(said)


def kind_of(error: BaseException) -> str:
    """Returns the full name of an error's class."""
    return f"{type(error).__module__}.{type(error).__qualname__}"[:200]


def location_of(error: BaseException) -> str | None:
    """Returns `folder/file:line` of the innermost frame outside libraries; None without one."""
    found = None
    ours = False
    for frame, line in traceback.walk_tb(error.__traceback__):
        path = frame.f_code.co_filename
        own = not path.startswith(_NOT_THE_USERS)
        if own or not ours:
            found = (path, line)
            ours = ours or own
    if found is None:
        return None
    return f"{'/'.join(Path(found[0]).parts[-2:])}:{found[1]}"[-_LOCATION_CHARACTERS:]


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Returns an error, its cause, the cause's cause and so on."""
    one: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if one is None:
            return
        yield one
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
