"""Reporting: logs a failure of a handler and calls `on_failure`, outside any transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from eventstore.subscription.failure import HandlerFailure
from eventstore.subscription.trace import traceback_of

if TYPE_CHECKING:
    from eventstore.subscription.retry import Failure
    from eventstore.subscription.session import RunnerSession
    from eventstore.subscription.subscription import Subscription

_log = structlog.get_logger(__name__)


async def report(  # noqa: PLR0913  # an event's place or a timer's
    session: RunnerSession,
    subscription: Subscription,
    failure: Failure,
    retry_in_s: float | None,
    *,
    first: bool,
    stream: str | None = None,
    global_position: int | None = None,
    process_id: str | None = None,
    timer: str | None = None,
) -> None:
    """Logs a failure and calls `on_failure`, outside any transaction.

    Args:
        session: Session of the runner.
        subscription: Subscription whose handler failed.
        failure: The failure.
        retry_in_s: Seconds until the retry; None if it is parked.
        first: Whether it is the first failure. The traceback is logged for the first failure, and
            when the event or timer is parked.
        stream: Stream of the event.
        global_position: Global position of the event.
        process_id: Process of the timer.
        timer: Name of the timer.
    """
    what = "event failed" if timer is None else "timer failed"
    place = {"stream": stream, "global_position": global_position}
    place |= {"process_id": process_id, "timer": timer}
    said = {
        "subscription": subscription.name,
        "tenant": subscription.owner,
        **{name: value for name, value in place.items() if value is not None},
        "error_type": failure.error_type,
        "error_code": failure.error_code,
        "error_location": failure.error_location,
        "attempts": failure.attempts,
    }
    if failure.error is not None and (first or retry_in_s is None):
        said["traceback"] = traceback_of(failure.error)
    if retry_in_s is None:
        _log.error(f"{what}, it is parked", **said)
    else:
        _log.warning(f"{what}, it is retried", retry_in_s=round(retry_in_s, 3), **said)
    if subscription.on_failure is None:
        return
    told = HandlerFailure(
        subscription=subscription.name,
        tenant=subscription.owner,
        stream=stream,
        global_position=global_position,
        process_id=process_id,
        timer=timer,
        attempts=failure.attempts,
        error=failure.error,
        error_type=failure.error_type,
        error_code=failure.error_code,
        error_location=failure.error_location,
        retry_in_s=retry_in_s,
    )
    try:
        await session.call(
            f"on_failure of subscription {subscription.name}", subscription.on_failure, told
        )
    except Exception as error:  # noqa: BLE001  # an observer must not stop the runner
        _log.error(
            "on_failure failed", subscription=subscription.name, traceback=traceback_of(error)
        )
