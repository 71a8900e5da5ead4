"""HandlerFailure: what `on_failure` receives about an error that a handler raised."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerFailure:
    """A failure of a handler, or of a process manager's reaction, as `on_failure` receives it.

    Attributes:
        subscription: Name of the subscription or process manager.
        tenant: Tenant of the event or timer.
        stream: Stream of the event; None for a timer.
        global_position: Global position of the event; None for a timer.
        process_id: Process of the timer; None for an event.
        timer: Name of the timer; None for an event.
        attempts: Number of calls of the handler.
        error: The error with its traceback; None if the handler swallowed a database error.
        error_type: Name of the error's class.
        error_code: The error's stable code; None if it has none.
        error_location: `file:line` of the handler's own code; None if unknown.
        retry_in_s: Seconds until the retry; None if it is parked until an operator decides.
    """

    subscription: str
    tenant: str
    stream: str | None = None
    global_position: int | None = None
    process_id: str | None = None
    timer: str | None = None
    attempts: int
    error: BaseException | None
    error_type: str
    error_code: str | None
    error_location: str | None
    retry_in_s: float | None

    @property
    def parked(self) -> bool:
        """Whether it waits until an operator decides."""
        return self.retry_in_s is None
