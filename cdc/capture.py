"""CaptureSpec: what is captured of one source, and the names that follow from it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cdc.column_rule import ColumnRules, Hiding, refuse_weak_salt
from cdc.errors import CaptureSpecError
from cdc.retention import TopicRetention
from cdc.table import TableName
from cdc.topic_names import TOPIC_LENGTH_MAX, TopicNames, metric_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HEARTBEAT_TABLE: Final = TableName("headwater", "heartbeat")
"""Written at every heartbeat and captured like any table, so an idle database frees its log too."""

SCHEMA_TABLE: Final = TableName("headwater", "schema_changes")
"""The table of schema changes, captured like any table, so that each schema change precedes the
rows with the new schema in the log."""

OWN_TABLES: Final = (HEARTBEAT_TABLE, SCHEMA_TABLE)
"""Tables that are captured in addition to the declared ones."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,52}")  # 63 bytes with the prefix, Postgres' limit
_DAY_MS: Final = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class CaptureSpec:
    """A source, and how to capture it.

    Attributes:
        name: Name of the source: lower-case letters, digits and `_`; prefix of its topics.
        dsn: The database, `postgresql://…`, with the role that sets up capture and stores its
            state.
        capture_dsn: The same database with the capture role, for connector and snapshots; see
            `cdc.upkeep.role`. None if that is the role of `dsn`.
        tables: Tables to capture; the heartbeat table is added.
        outbox: Table whose inserted rows are sent as messages; see `cdc.connect.outbox`. None if
            there is none.
        connect_url: Kafka Connect's REST interface.
        kafka_bootstrap: `host:port[,host:port]`.
        epoch: Incarnation of the source, 1 to 127; raised when its slot is deliberately recreated.
        heartbeat_interval_ms: How often the heartbeat row is written.
        guard_interval_s: Seconds between two comparisons with Kafka.
        topic_partitions: Number of partitions of a new table topic.
        topic_retention_ms: How long topics keep records.
        retention: Tables whose topics have another retention.
        replication_factor: Number of copies of each topic; -1 for the broker's default.
        connector_dsn: The database as the connector reaches it, if different.
        secrets_folder: Folder for secrets that only Connect's workers can read; the configuration
            refers to its files. None if there is none.
        columns: Rules for excluded, hashed and masked columns.
        insert_only: Tables captured without a key, although Postgres then refuses UPDATE and DELETE
            on them.
        escaped_topics: Tables whose names are escaped in their topics; see `TopicNames`.
        salt: Secret for hashing columns; it must stay secret, because it allows finding hashed
            values by trial.
        connector_password: Reference to the password in Connect's form, `${provider:path:key}`.
            None puts the password itself into the configuration, in clear text.
        snapshot_workers: Number of table ranges read in parallel.
        connector_salt: Reference to the salt, in the same form.
        deadline_s: Longest wait for the connector's task to run.

    Raises:
        CaptureSpecError: The name cannot be a slot's, no table is named, or two tables share a
            topic.
        ColumnRuleError: Columns are hashed, but there is no salt.
    """

    name: str
    dsn: str = field(repr=False)
    tables: tuple[TableName, ...]
    connect_url: str
    kafka_bootstrap: str
    outbox: TableName | None = None
    epoch: int = 1
    heartbeat_interval_ms: int = 1_000
    guard_interval_s: float = 10.0
    topic_partitions: int = 1
    topic_retention_ms: int = 7 * _DAY_MS
    retention: Mapping[TableName, TopicRetention] = field(default_factory=dict)
    replication_factor: int = -1
    capture_dsn: str | None = field(default=None, repr=False)
    connector_dsn: str | None = field(default=None, repr=False)
    secrets_folder: Path | None = None
    connector_password: str | None = None
    snapshot_workers: int = 2
    columns: Mapping[TableName, ColumnRules] = field(default_factory=dict)
    insert_only: frozenset[TableName] = frozenset()
    escaped_topics: frozenset[TableName] = frozenset()
    salt: str | None = field(default=None, repr=False)
    connector_salt: str | None = None
    deadline_s: float = 60.0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise CaptureSpecError(
                "a source name has only lower-case letters, digits and _",
                detail=f"{self.name[:80]!r}",
                hint=(
                    "use at most 53 characters, starting with a letter; the name becomes "
                    "part of the slot's name"
                ),
            )
        if not self.tables:
            raise CaptureSpecError(f"source {self.name} has no tables")
        if len(set(self.captured)) < len(self.captured):
            raise CaptureSpecError(f"source {self.name} names a table twice")
        _refuse_shared_topics(self.topics, self.captured)
        for what, named in (
            ("a retention", self.retention),
            ("column rules", self.columns),
            ("an escaped topic", self.escaped_topics),
        ):
            if strange := set(named) - set(self.tables):
                raise CaptureSpecError(
                    f"source {self.name} has {what} for a table that it does not capture",
                    detail=", ".join(sorted(map(str, strange))),
                )
        refuse_weak_salt(self.salt, self.columns.values())
        if self.outbox is not None:
            _refuse_topics_of_messages(self.topics, self.tables)

    @property
    def slot(self) -> str:
        """Name of the replication slot."""
        return f"headwater_{self.name}"

    @property
    def publication(self) -> str:
        """Name of the publication."""
        return f"headwater_{self.name}"

    @property
    def connector(self) -> str:
        """Name of the connector."""
        return f"headwater-{self.name}"

    @property
    def required(self) -> tuple[TableName, ...]:
        """Tables that the source must have: the captured tables and the outbox."""
        return self.tables if self.outbox is None else (*self.tables, self.outbox)

    @property
    def captured(self) -> tuple[TableName, ...]:
        """All published tables: the declared ones, the outbox, and Headwater's own."""
        return (*self.required, *OWN_TABLES)

    @property
    def topics(self) -> TopicNames:
        """Names of the tables' topics."""
        return TopicNames(self.name, self.escaped_topics)

    @property
    def table_topics(self) -> dict[TableName, str]:
        """Topic of each table, Headwater's own included; the outbox's messages have their own."""
        return {table: self.topics.of(table) for table in (*self.tables, *OWN_TABLES)}

    @property
    def reader_dsn(self) -> str:
        """The DSN of the database with the capture role."""
        return self.capture_dsn or self.dsn

    @property
    def hiding(self) -> Hiding:
        """Returns the rules and the salt for the source's columns."""
        return Hiding(self.columns, self.salt)

    def retention_of(self, table: TableName) -> TopicRetention:
        """Returns how long the topic of a table keeps its records."""
        return self.retention.get(table) or TopicRetention(self.topic_retention_ms)

    @property
    def outbox_prefix(self) -> str:
        """Returns the topic prefix of outbox messages."""
        return self.topics.outbox_prefix

    @property
    def transaction_topic(self) -> str:
        """Topic of the markers for begin and end of transactions."""
        return f"{self.name}.transaction"

    @property
    def heartbeat_topic(self) -> str:
        """Topic of Debezium's own heartbeats."""
        return f"__debezium-heartbeat.{self.name}"


def _refuse_shared_topics(topics: TopicNames, tables: tuple[TableName, ...]) -> None:
    seen: dict[str, TableName] = {}
    for table in tables:
        topic = topics.of(table)
        if len(topic) > TOPIC_LENGTH_MAX:
            raise CaptureSpecError(
                f"the name of table {table} is too long for a topic",
                detail=f"{len(topic)} characters, {TOPIC_LENGTH_MAX} at most",
            )
        other = seen.setdefault(metric_name(topic), table)
        if other != table:
            raise CaptureSpecError(
                f"tables {other} and {table} would share a topic",
                detail=f"{topics.of(other)} and {topic}",
                hint=f"{_escape_hint(table)}; a captured table keeps its topic, so if {table} is"
                f" captured already, list {str(other)!r} instead",
            )


def _refuse_topics_of_messages(topics: TopicNames, tables: tuple[TableName, ...]) -> None:
    for table in tables:
        if topics.of_outbox(table):
            raise CaptureSpecError(
                f"the topic of table {table} could also be an outbox topic",
                detail=f"outbox topics begin with {topics.outbox_prefix}",
                hint=_escape_hint(table),
            )


def _escape_hint(table: TableName) -> str:
    return f"add escaped_topics=[{str(table)!r}] to the source: its topic gets a name of its own"
