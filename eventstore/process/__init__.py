"""Process managers: what reacts to events of several streams with commands and timers.

What is here is pure and loads no driver; `eventstore.process.runner` runs it.
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
