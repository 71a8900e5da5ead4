"""Process managers react to events of several streams with commands and timers.

This package declares them: it is pure and loads no driver. `eventstore.process.runner` runs them.
"""

from __future__ import annotations

from eventstore.process.manager import ProcessManager
from eventstore.process.reaction import (
    Cancel,
    CommandRejected,
    Complete,
    Dispatch,
    Reaction,
    Schedule,
    TimedOut,
)

__all__ = [
    "Cancel",
    "CommandRejected",
    "Complete",
    "Dispatch",
    "ProcessManager",
    "Reaction",
    "Schedule",
    "TimedOut",
]
