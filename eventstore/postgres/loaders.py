"""Loaders: values of the log as they are stored, whatever the session's settings are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.adapt import Loader
from psycopg.types.string import ByteaBinaryLoader, ByteaLoader

if TYPE_CHECKING:
    from psycopg.abc import AdaptContext

_UTC_NAMES: Final = ("UTC", "Etc/UTC", "GMT", "Etc/GMT", "Zulu")
_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)  # of Postgres' binary format


def loads_as_stored(context: AdaptContext) -> None:
    """Loads json columns as the stored bytes, and instants in UTC.

    The session's time zone is the caller's, or that of the role or database. An application that
    takes the date of an event must get the same one from each of its readers.
    """
    context.adapters.register_loader("json", ByteaBinaryLoader)
    context.adapters.register_loader("json", _JsonText)
    connection = context.connection
    zone = connection.info.parameter_status("TimeZone") if connection is not None else None
    if zone not in _UTC_NAMES:
        context.adapters.register_loader("timestamptz", _InUtc)


class _InUtc(Loader):
    """Loads an instant in UTC. The driver's loader is faster, but takes the session's zone."""

    format = psycopg.pq.Format.BINARY

    def load(self, data: Any) -> datetime:
        """Returns the instant of a binary value."""
        microseconds = int.from_bytes(data, "big", signed=True)
        try:
            return _EPOCH + timedelta(microseconds=microseconds)
        except OverflowError:
            raise psycopg.DataError("the instant is outside the years 1 to 9999") from None


class _JsonText(ByteaLoader):
    """Loads json in text format, which is the text itself, not hexadecimal as for bytea."""

    def load(self, data: Any) -> bytes:
        """Returns the bytes of a text value."""
        return bytes(data)
