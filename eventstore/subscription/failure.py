"""HandlerFailure: what `on_failure` receives about an error that a handler raised."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerFailure:
    """A failure of a handler, or of a process' reaction, as `on_failure` is given it.

    Attributes:
        subscription: Name of the subscription or process manager.
        tenant: Whose event it is.
        stream: The event's stream; None for a timer.
        global_position: Of the event; None for a timer.
        process_id: Whose timer it is; None for an event.
        timer: Its name; None for an event.
        attempts: How often the handler was called.
        error: What it raised, with its traceback; None if it swallowed an error of the database.
        error_type: Name of its class.
        error_code: Its stable code; None if it has none.
        error_location: `file:line` of the handler's own code; None if unknown.
        retry_in_s: When it is retried; None if it is parked until someone decides.
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
        """Whether it waits until someone decides."""
        return self.retry_in_s is None
