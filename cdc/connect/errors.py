"""Errors of Kafka Connect and the connector.

ConnectError
├── ConnectUnavailableError    HW-C020  the Connect worker does not answer, or is rebalancing
├── ConnectorRefusedError      HW-C021  the Connect worker rejects the request
├── ConnectorFailedError       HW-C022  the connector or its task failed
├── ConnectorNotRunningError   HW-C023  the connector did not start in time
└── ConverterMissingError      HW-C024  the worker lacks Headwater's converter class
"""

from __future__ import annotations

from cdc.errors import CdcError


class ConnectError(CdcError):
    """Root of the errors of Kafka Connect."""

    code = "HW-C02X"


class ConnectUnavailableError(ConnectError):
    """The Connect worker does not answer, or is rebalancing."""

    code = "HW-C020"
    retriable = True


class ConnectorRefusedError(ConnectError):
    """The Connect worker rejects the request."""

    code = "HW-C021"


class ConnectorFailedError(ConnectError):
    """The connector or its task failed, and a restart cannot repair it."""

    code = "HW-C022"


class ConnectorNotRunningError(ConnectError):
    """The connector did not start in time."""

    code = "HW-C023"
    retriable = True


class ConverterMissingError(ConnectError):
    """The worker lacks Headwater's converter class, or has an older version of it."""

    code = "HW-C024"
