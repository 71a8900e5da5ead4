"""The connector's configuration: every property with the reason for its value."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from cdc.broker.producing.producer import RECORD_BYTES_MAX
from cdc.change_event import EPOCH_HEADER
from cdc.connect import column_rules, converter, outbox, secrets
from cdc.postgres import own_schema, session
from cdc.retention import TopicRetention

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cdc.capture import CaptureSpec
    from cdc.postgres.address import DatabaseAddress
    from cdc.table import TableName

CONNECTOR_CLASS: Final = "io.debezium.connector.postgresql.PostgresConnector"
EPOCH_PROPERTY: Final = "transforms.epoch.value.literal"
_MIB: Final = 1024 * 1024
_REGEX_SPECIAL: Final = re.compile(r"[^A-Za-z0-9_]")

_VALUES: Final = {
    # Each value is sent as the text that Postgres prints, except booleans and integers.
    **converter.properties(),
    # Otherwise Debezium silently omits types that it does not know.
    "include.unknown.datatypes": "true",
    "schema.refresh.mode": "columns_diff_exclude_unchanged_toast",
}

_FAILURES: Final = {
    # Fail; the default of the first property is to omit the value with a warning.
    "event.converting.failure.handling.mode": "fail",
    "event.processing.failure.handling.mode": "fail",
    "errors.tolerance": "none",
    # A slot ahead of the stored offset was recreated or moved: changes are missing, so fail.
    "offset.mismatch.strategy": "trust_offset",
    # The slot is confirmed only up to what Kafka has acknowledged.
    "lsn.flush.mode": "connector",
    "slot.drop.on.stop": "false",
    # Supervision restarts a failed task with its own backoff; the task must not retry itself.
    "slot.max.retries": "3",
    "slot.retry.delay.ms": "2000",
    "retriable.restart.connector.wait.ms": "1000",
}

_EVENTS: Final = {
    "tombstones.on.delete": "true",
    "skipped.operations": "none",  # truncates too
    # Messages of pg_logical_emit_message would go to a topic that was never created.
    "message.prefix.exclude.list": "(?s).*",
    "provide.transaction.metadata": "true",
    # Context headers would repeat the connector's and its task's name on every record.
    "extended.headers.enabled": "false",
    "transforms": "epoch",
    "transforms.epoch.type": "org.apache.kafka.connect.transforms.InsertHeader",
    "transforms.epoch.header": EPOCH_HEADER,
    # Text is sent as its bytes; the headers of a key change (old key, new key) are JSON objects.
    "header.converter": "org.apache.kafka.connect.storage.SimpleHeaderConverter",
}

_CONVERTERS: Final = {
    f"{part}.converter{suffix}": value
    for part in ("key", "value")
    for suffix, value in (
        ("", "org.apache.kafka.connect.json.JsonConverter"),
        # A schema in every record would be nine tenths of its bytes.
        (".schemas.enable", "false"),
        # By default, a NULL is replaced by the column's DEFAULT.
        (".replace.null.with.default", "false"),
    )
}

_SPEED: Final = {
    "snapshot.fetch.size": "10000",
    "max.batch.size": "8192",
    "max.queue.size": "32768",
    # A limit in rows does not bound memory: wide rows would not fit into a small heap.
    "max.queue.size.in.bytes": str(64 * _MIB),
    # Longest wait for a batch; a shorter wait costs a small machine more than it gains.
    "poll.interval.ms": "50",
    "status.update.interval.ms": "1000",
    "statistics.metrics.enabled": "false",
    "producer.override.acks": "all",
    "producer.override.enable.idempotence": "true",  # keeps the order with several in flight
    "producer.override.max.in.flight.requests.per.connection": "5",
    "producer.override.compression.type": "lz4",
    "producer.override.linger.ms": "5",
    "producer.override.batch.size": str(_MIB // 2),
    "producer.override.buffer.memory": str(64 * _MIB),
    "producer.override.max.request.size": str(RECORD_BYTES_MAX),
}


def connector_config(
    spec: CaptureSpec,
    address: DatabaseAddress,
    *,
    keys: Mapping[TableName, Sequence[str]] | None = None,
    excluded: Mapping[TableName, Sequence[str]] | None = None,
    options: str = "",
) -> dict[str, str]:
    """Renders the tuned configuration.

    Args:
        spec: The capture.
        address: The database as the connector reaches it.
        keys: Key columns of tables for which Debezium would choose others, such as those of the
            replica identity's index.
        excluded: Columns to omit: generated ones, which a snapshot reads and the log lacks.
        options: Options of its sessions, which override settings of its role.
    """
    named = {"message.key.columns": _keys(keys)} if keys else {}
    if patterns := [*_excluded(excluded or {}), *_hidden(spec)]:
        named["column.exclude.list"] = ",".join(patterns)
    found = {
        **stock_config(spec, address),
        **named,
        "publication.autocreate.mode": "disabled",
        # Row security then fails the capture; by default it would silently omit rows.
        "driver.options": " ".join(filter(None, (options, address.options, session.UNFILTERED))),
        "snapshot.mode": "no_data",  # `cdc.snapshot` reads the tables
        "heartbeat.interval.ms": str(spec.heartbeat_interval_ms),
        "heartbeat.action.query": own_schema.BEAT,
        EPOCH_PROPERTY: str(spec.epoch),
        # Each session except the replication session first queries whether the slot was verified.
        "database.initial.statements": f"SELECT headwater.may_stream('{spec.name}')",
        # It would recreate a missing slot, and lose earlier commits. No property prevents that, but
        # a time limit that the driver rejects does.
        "internal.create.slot.command.timeout": "-1",
        **_VALUES,
        **_FAILURES,
        **_EVENTS,
        **_SPEED,
        **(_CONVERTERS if spec.outbox is None else _with_outbox(spec, spec.outbox)),
    }
    found |= _topic_names(spec)
    return {**found, **column_rules.properties(spec, found["converters"])}


def stock_config(spec: CaptureSpec, address: DatabaseAddress) -> dict[str, str]:
    """Renders only the required properties; all others keep Debezium's defaults.

    With `pgoutput` and our publication it is a complete connector: the peer in benchmarks.
    """
    return {
        "connector.class": CONNECTOR_CLASS,
        "tasks.max": "1",
        "topic.prefix": spec.name,
        "plugin.name": "pgoutput",
        "slot.name": spec.slot,
        "publication.name": spec.publication,
        "table.include.list": ",".join(table_pattern(table) for table in sorted(spec.captured)),
        **_database(spec, address),
    }


def topic_config(spec: CaptureSpec, table: TableName | None = None) -> dict[str, str]:
    """Returns the Kafka properties of a table's topic, or of other topics with records."""
    kept = TopicRetention(spec.topic_retention_ms) if table is None else spec.retention_of(table)
    return {
        "compression.type": "producer",  # stored as sent, without recompression
        "max.message.bytes": str(RECORD_BYTES_MAX),
        **kept.properties(),
    }


def table_pattern(table: TableName) -> str:
    """Returns a regular expression, as Debezium splits and reads them, for exactly this table."""
    return _pattern(table.unquoted)


def _pattern(name: str) -> str:
    return f"(?-i:{_escaped(name)})"  # Debezium ignores case otherwise


def _escaped(name: str) -> str:
    return _REGEX_SPECIAL.sub(lambda found: "\\" + found[0], name)


def _excluded(columns: Mapping[TableName, Sequence[str]]) -> list[str]:
    return [
        _pattern(f"{table.unquoted}.{name}") for table in sorted(columns) for name in columns[table]
    ]


def _hidden(spec: CaptureSpec) -> list[str]:
    """Returns patterns of excluded columns; an allow-list excludes all others, also later ones."""
    found = _excluded({table: sorted(rules.exclude) for table, rules in spec.columns.items()})
    for table, rules in sorted(spec.columns.items()):
        if rules.only is not None:
            taken = "|".join(map(_escaped, sorted({*rules.only, *rules.treated})))
            found.append(f"(?s-i:{_escaped(table.unquoted)}\\.(?!(?:{taken})\\z).*)")
    return found


def _topic_names(spec: CaptureSpec) -> dict[str, str]:
    """Returns the properties for topics that Debezium would name differently, if there are any."""
    if not spec.escaped_topics:
        return {}
    found = {"topic.naming.strategy": converter.TOPIC_NAMES}
    for number, table in enumerate(sorted(spec.escaped_topics)):
        named = {"schema": table.schema, "table": table.name, "topic": spec.topics.of(table)}
        found |= {f"named.{number}.{part}": value for part, value in named.items()}
    return found


def _with_outbox(spec: CaptureSpec, table: TableName) -> dict[str, str]:
    return {
        **outbox.router(spec, table),
        **outbox.message_topics(spec, topic_config(spec)),
        **outbox.converters(_CONVERTERS),
        **converter.properties(bytes_of=table),
    }


def _keys(keys: Mapping[TableName, Sequence[str]]) -> str:
    # In this property's syntax, a pattern must not contain `:` or a blank. Columns are patterns,
    # too: the table's name, a dot and the column's name.
    def by_number(found: re.Match[str]) -> str:
        return f"\\x{{{ord(found[0]):x}}}"

    return ";".join(
        f"(?-i){_REGEX_SPECIAL.sub(by_number, table.unquoted)}:{_listed(columns, by_number)}"
        for table, columns in sorted(keys.items())
    )


def _listed(columns: Sequence[str], by_number: Callable[[re.Match[str]], str]) -> str:
    return ",".join(_REGEX_SPECIAL.sub(by_number, column) for column in columns)


def _database(spec: CaptureSpec, address: DatabaseAddress) -> dict[str, str]:
    return {
        "database.hostname": address.host,
        "database.port": str(address.port),
        "database.user": address.user,
        "database.password": secrets.reference(spec, secrets.PASSWORD, address.password),
        "database.dbname": address.database,
        **{
            f"database.{word}": (
                secrets.reference(spec, word, value) if word == secrets.KEY_PASSWORD else value
            )
            for word, value in address.tls.items()
        },
    }
