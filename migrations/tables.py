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
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Identity,
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
from sqlalchemy.schema import conv

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

subject_keys: Final = Table(
    "subject_keys",
    metadata,
    _name("tenant"),
    _name("subject"),
    Column("generation", Integer, nullable=False, server_default=text("1")),
    Column("wrapped_key", LargeBinary),
    _name("master_key_id", nullable=True),
    _moment("created_at", server_default=text(_NOW)),
    _moment("shredded_at", nullable=True),
    PrimaryKeyConstraint("tenant", "subject"),
    CheckConstraint("generation >= 1", name="generation"),
    CheckConstraint(
        "(wrapped_key IS NULL) = (shredded_at IS NOT NULL)"
        " AND (wrapped_key IS NULL) = (master_key_id IS NULL)",
        name="shredded",
    ),
    Index(
        "master_key_id",
        "master_key_id",
        "tenant",
        "subject",
        postgresql_where=text("wrapped_key IS NOT NULL"),
    ),
    schema="eventstore_keys",
)

subscriptions: Final = Table(
    "subscriptions",
    metadata,
    _name("tenant"),
    _name("name"),
    Column("partition", Integer, nullable=False),
    Column("partitions", Integer, nullable=False),
    Column("lock_id", Integer, Identity(always=True), nullable=False),
    _count("global_position"),
    _count("replay_until", server_default=text("0")),
    _count("replay_through", nullable=True),
    _count("resume_at", nullable=True),
    Column("earlier", JSON),
    _moment("updated_at", server_default=text(_NOW)),
    Column("tables", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    Column("reactor", Boolean, nullable=False, server_default=text("false")),
    _moment("paused_at", nullable=True),
    _moment("breaker_opened_at", nullable=True),
    Column("breaker_error", Text),
    PrimaryKeyConstraint("tenant", "name", "partition"),
    UniqueConstraint("lock_id", name="lock_id"),
    CheckConstraint("partition >= 0 AND partition < partitions", name="partition"),
    CheckConstraint("global_position >= 0", name="global_position"),
    CheckConstraint("(replay_through IS NULL) = (resume_at IS NULL)", name="replay"),
)

parked_events: Final = Table(
    "parked_events",
    metadata,
    _name("tenant"),
    _name("subscription"),
    _name("stream"),
    _count("global_position"),
    Column("state", Text, nullable=False),
    Column("live", Boolean, nullable=False),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("error_code", Text),
    Column("error_type", Text),
    _moment("retry_at", nullable=True),
    _moment("parked_at", server_default=text(_NOW)),
    Column("error_location", Text),
    PrimaryKeyConstraint("tenant", "subscription", "stream", "global_position"),
    CheckConstraint("state IN ('retrying', 'parked', 'waiting')", name="state"),
    CheckConstraint("(state = 'retrying') = (retry_at IS NOT NULL)", name="retry_at"),
    Index(
        conv("uq_parked_events_head"),
        "tenant",
        "subscription",
        "stream",
        unique=True,
        postgresql_where=text("state <> 'waiting'"),
    ),
)

processes: Final = Table(
    "processes",
    metadata,
    _name("tenant"),
    _name("manager"),
    _name("process_id"),
    Column("inputs", Integer, nullable=False, server_default=text("0")),
    _moment("started_at", server_default=text(_NOW)),
    _moment("completed_at", nullable=True),
    PrimaryKeyConstraint("tenant", "manager", "process_id"),
)

process_inputs: Final = Table(
    "process_inputs",
    metadata,
    _name("tenant"),
    _name("manager"),
    _name("process_id"),
    Column("number", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    _count("global_position", nullable=True),
    Column("name", Text),
    Column("reason", Text),
    _moment("at", nullable=True),
    _moment("taken_at", server_default=text(_NOW)),
    PrimaryKeyConstraint("tenant", "manager", "process_id", "number"),
    CheckConstraint(
        "CASE kind"
        " WHEN 'event' THEN global_position IS NOT NULL"
        " WHEN 'timeout' THEN name IS NOT NULL AND at IS NOT NULL"
        " WHEN 'refusal' THEN name IS NOT NULL AND reason IS NOT NULL"
        " ELSE false END",
        name="kind",
    ),
    Index(
        conv("uq_process_inputs_event"),
        "tenant",
        "manager",
        "process_id",
        "global_position",
        unique=True,
        postgresql_where=text("global_position IS NOT NULL"),
    ),
)

timers: Final = Table(
    "timers",
    metadata,
    _name("tenant"),
    _name("manager"),
    _name("process_id"),
    _name("name"),
    _moment("due_at"),
    _moment("fires_at"),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("error_code", Text),
    Column("error_type", Text),
    Column("error_location", Text),
    PrimaryKeyConstraint("tenant", "manager", "process_id", "name"),
    Index("fires_at", "tenant", "manager", "fires_at"),
)
