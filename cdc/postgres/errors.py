"""Errors of the source database.

PostgresError
├── HostUnknownError          HW-C010  the host is unknown or unreachable
├── PostgresRefusedError      HW-C011  no Postgres server listens on the port
├── DatabaseMissingError      HW-C012  the server has no such database
├── CredentialsError          HW-C013  the server rejects the user or the password
├── PostgresUnavailableError  HW-C014  the server cannot answer now
├── PreflightError            HW-C015  the database cannot be captured as it is
├── PublicationDriftError     HW-C016  the publication is foreign, or was changed
├── SlotError                 HW-C017  the slot is lost, someone else's, or of another database
└── SchemaOwnerError          HW-C019  schema `headwater` contains objects of other origin
"""

from __future__ import annotations

from cdc.errors import CdcError


class PostgresError(CdcError):
    """Root of the errors of the source database."""

    code = "HW-C01X"


class HostUnknownError(PostgresError):
    """The host of the DSN cannot be resolved or reached."""

    code = "HW-C010"


class PostgresRefusedError(PostgresError):
    """The host refuses the connection, or the server on the port is not Postgres."""

    code = "HW-C011"


class DatabaseMissingError(PostgresError):
    """The server has no database of this name."""

    code = "HW-C012"


class CredentialsError(PostgresError):
    """The server rejects this user or password."""

    code = "HW-C013"


class PostgresUnavailableError(PostgresError):
    """The server cannot answer now: it is starting, stopping, full or too slow."""

    code = "HW-C014"
    retriable = True


class PreflightError(PostgresError):
    """The database cannot be captured; the detail lists every reason."""

    code = "HW-C015"


class PublicationDriftError(PostgresError):
    """The publication was not created by Headwater, or was changed; it is left as it is."""

    code = "HW-C016"


class SlotError(PostgresError):
    """The replication slot is lost, active elsewhere, or of another database or plugin."""

    code = "HW-C017"


class SlotExistsError(SlotError):
    """Another process created a replication slot of this name."""


class SchemaOwnerError(PostgresError):
    """The schema `headwater` contains triggers, rules or functions of other origin.

    An administrator who writes to it would run them with his own rights.
    """

    code = "HW-C019"
