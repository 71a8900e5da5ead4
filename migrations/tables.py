"""The tables of the newest revision, so that `alembic check` can say what differs.

The revisions are SQL; this mirrors what they come to, and creates nothing. Functions, views,
triggers, policies and grants have no place in SQLAlchemy's metadata: they are in the SQL only.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)

SCHEMAS: Final = ("eventstore", "eventstore_keys")
"""What belongs to the event store. Nobody else's tables are looked at."""

metadata: Final = MetaData(
    schema="eventstore",
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(constraint_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(table_name)s_%(constraint_name)s",
    },
)

# a column's `default` below is its server's
_NOW: Final = "clock_timestamp()"


def _name(name: str, **options: Any) -> Column[str]:
    """A text that is compared byte by byte."""
    return Column(name, Text(collation="C"), **({"nullable": False} | options))


def _moment(name: str, **options: Any) -> Column[Any]:
    return Column(name, DateTime(timezone=True), **({"nullable": False} | options))


def _count(name: str, **options: Any) -> Column[int]:
    return Column(name, BigInteger, **({"nullable": False} | options))


def _events(name: str, *constraints: CheckConstraint, recorded: str | None) -> Table:
    """The log and its archive: the same columns, the same identity, the same ways in."""
    return Table(
        name,
        metadata,
        _count("global_position", autoincrement=False),
        _name("tenant"),
        _name("stream"),
        _count("stream_position"),
        _name("type"),
        Column("schema_version", SmallInteger, nullable=False),
        Column("event_id", Uuid, nullable=False),
        Column("data", JSON, nullable=False),
        Column("metadata", JSON),
        Column("tags", ARRAY(Text)),
        Column("correlation_id", Text),
        Column("causation_id", Text),
        Column("actor", Text),
        _moment("occurred_at"),
        _moment("recorded_at", server_default=text(recorded) if recorded else None),
        PrimaryKeyConstraint("global_position"),
        UniqueConstraint("tenant", "stream", "stream_position", name="stream_position"),
        UniqueConstraint("tenant", "event_id", name="event_id"),
        *constraints,
        Index("tenant", "tenant", "global_position"),
        Index("category", "tenant", text("split_part(stream, '-', 1)"), "global_position"),
        Index("type", "tenant", "type", "global_position"),
    )


events: Final = _events(
    "events",
    CheckConstraint("stream_position >= 1", name="stream_position"),
    CheckConstraint("schema_version >= 1", name="schema_version"),
    recorded=_NOW,
)
archived_events: Final = _events("archived_events", recorded=None)

event_tags: Final = Table(
    "event_tags",
    metadata,
    _name("tenant"),
    _name("tag"),
    _count("global_position"),
    PrimaryKeyConstraint("tenant", "tag", "global_position"),
)

idempotency_keys: Final = Table(
    "idempotency_keys",
    metadata,
    _name("tenant"),
    _name("key"),
    Column("digest", LargeBinary, nullable=False),
    Column("versions", ARRAY(BigInteger), nullable=False),
    _count("global_position"),
    _count("transaction_id"),
    _moment("recorded_at", server_default=text(_NOW)),
    PrimaryKeyConstraint("tenant", "key"),
    CheckConstraint("octet_length(digest) = 32", name="digest"),
    Index("recorded_at", "recorded_at"),
)

snapshots: Final = Table(
    "snapshots",
    metadata,
    _name("tenant"),
    _name("stream"),
    _name("fold"),
    _count("stream_position"),
    Column("state", LargeBinary, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("subjects", ARRAY(Text), nullable=False, server_default=text("'{}'::text[]")),
    _moment("taken_at", server_default=text(_NOW)),
    PrimaryKeyConstraint("tenant", "stream", "fold"),
)

outbox: Final = Table(
    "outbox",
    metadata,
    Column("message_id", Uuid, nullable=False),
    _name("tenant"),
    _name("topic"),
    Column("stream", LargeBinary, nullable=False),
    _name("type"),
    Column("version", Integer, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Column("correlation_id", Text),
    _moment("occurred_at", server_default=text(_NOW)),
    PrimaryKeyConstraint("message_id"),
    CheckConstraint("topic ~ '^[A-Za-z0-9_-]{1,128}$'", name="topic"),
    CheckConstraint("octet_length(payload) BETWEEN 1 AND 1048576", name="payload"),
)

tenant_roles: Final = Table(
    "tenant_roles",
    metadata,
    Column("role", String, nullable=False),  # type name, which SQLAlchemy reads as this
    _name("tenant"),
    PrimaryKeyConstraint("role"),
)

compactions: Final = Table(
    "compactions",
    metadata,
    _count("number", autoincrement=False),
    _name("action"),
    _name("tenant"),
    _name("stream"),
    _count("first_position"),
    _count("through_position"),
    _count("global_position"),
    Column("positions", ARRAY(BigInteger), nullable=False, server_default=text("'{}'::bigint[]")),
    Column("digest", LargeBinary, nullable=False),
    _moment("recorded_at"),
    Column("hash", LargeBinary, nullable=False),
    PrimaryKeyConstraint("number"),
    CheckConstraint("action IN ('compacted', 'dropped')", name="action"),
    CheckConstraint("1 <= first_position AND first_position <= through_position", name="range"),
    CheckConstraint("(action = 'dropped') = (cardinality(positions) > 0)", name="positions"),
    CheckConstraint("octet_length(digest) = 32", name="digest"),
    CheckConstraint("octet_length(hash) = 32", name="hash"),
    Index("stream", "tenant", "stream", "number"),
)

seals: Final = Table(
    "seals",
    metadata,
    _count("block", autoincrement=False),
    _count("after_position"),
    _count("through_position"),
    _count("event_total"),
    Column("positions", ARRAY(BigInteger), nullable=False),
    Column("hashes", LargeBinary, nullable=False),
    _moment("sealed_at"),
    Column("digest", LargeBinary, nullable=False),
    PrimaryKeyConstraint("block"),
    UniqueConstraint("after_position", name="after_position"),
    CheckConstraint("block >= 1", name="block"),
    CheckConstraint("after_position < through_position", name="range"),
    CheckConstraint("cardinality(positions) BETWEEN 1 AND 4096", name="positions"),
    CheckConstraint("octet_length(hashes) = 32 * cardinality(positions)", name="hashes"),
    CheckConstraint("octet_length(digest) = 32", name="digest"),
)
