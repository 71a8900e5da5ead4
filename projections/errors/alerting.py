"""Errors of alerts and their messages."""

from __future__ import annotations

from projections.errors.base import ProjectionError


class AlertError(ProjectionError):
    """An alert cannot be evaluated, or its messages cannot be sent."""

    code = "HW-P145"


class AlertConditionError(AlertError):
    """An alert's condition cannot be evaluated, or too many rows meet it."""

    code = "HW-P146"


class AlertSignatureError(AlertError):
    """A message's signature is invalid, or a secret cannot be read."""

    code = "HW-P147"


class AlertUndeliveredError(AlertError):
    """A channel did not accept a message; it is retried."""

    code = "HW-P148"
    retriable = True
