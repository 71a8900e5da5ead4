"""Errors of Kafka Connect and the connector.

ConnectError
├── ConnectUnavailableError    HW-C020  the worker does not answer
├── ConnectorRefusedError      HW-C021  the worker does not take the configuration
├── ConnectorFailedError       HW-C022  the connector or its task failed for good
├── ConnectorNotRunningError   HW-C023  the connector did not run in time
└── ConverterMissingError      HW-C024  the worker lacks our converter
"""

from __future__ import annotations

from cdc.errors import CdcError


class ConnectError(CdcError):
    """Root of the errors of Kafka Connect."""

    code = "HW-C02X"


class ConnectUnavailableError(ConnectError):
    """The worker does not answer, or is busy with its group."""

    code = "HW-C020"
    retriable = True


class ConnectorRefusedError(ConnectError):
    """The worker does not take the request."""

    code = "HW-C021"


class ConnectorFailedError(ConnectError):
    """The connector or its task failed in a way that a restart does not cure."""

    code = "HW-C022"


class ConnectorNotRunningError(ConnectError):
    """The connector did not come to run in time."""

    code = "HW-C023"
    retriable = True


class ConverterMissingError(ConnectError):
    """The worker does not have the class that sends values exactly, or has an older one."""

    code = "HW-C024"
