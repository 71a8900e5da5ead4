"""changes(): opens the changes of a source for an application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import structlog

from cdc.capture import CaptureSpec
from cdc.consumer.changes import Changes
from cdc.consumer.control import table_name
from cdc.consumer.errors import ConsumerSpecError, TableUndescribedError
from cdc.consumer.rows import RowDecoder
from cdc.consumer.spec import ConsumerSpec
from cdc.consumer.start import GroupStart
from cdc.errors import CdcError
from cdc.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cdc.column_rule import ColumnRules
    from cdc.table import TableName, TableSchema

_REACHED: Final = """
SELECT pg_is_in_recovery(), CASE WHEN pg_is_in_recovery()
    THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END::text"""

_log = structlog.get_logger(__name__)


def changes(  # noqa: PLR0913
    kafka: str | CaptureSpec,
    *,
    group: str,
    source: str | None = None,
    tables: Iterable[str | TableName] | None = None,
    start: GroupStart = GroupStart.BEGINNING,
    dsn: str | None = None,
    schemas: Mapping[TableName, TableSchema] | None = None,
    columns: Mapping[str, ColumnRules] | None = None,
    **options: Any,
) -> Changes:
    """Opens the changes of a source's tables, for one member of a consumer group.

        with changes("kafka:9092", source="shop", tables=["public.orders"], group="billing",
                     dsn="postgresql://…") as shop:
            shop.run(bill)

    Decoding needs the types of the tables' columns. They come from the source's catalog (`dsn`; a
    role that may connect suffices), or from `schemas`, for a program that cannot reach the
    database; values of a table missing there keep their JSON form.

    Args:
        kafka: `host:port[,host:port]`; or a `CaptureSpec`, which has source, tables and DSN.
        group: The consumer group. Its members share the partitions.
        source: The source's name.
        tables: The tables, as `schema.table`.
        start: Where to begin partitions without a committed offset; see `GroupStart`.
        dsn: The source database; never logged.
        schemas: Schemas of the tables, instead of the catalog.
        columns: The source's declared column rules: hashed and masked columns are text, regardless
            of the catalog.
        options: Other attributes of `ConsumerSpec`.

    Raises:
        ConsumerSpecError: An option is invalid.
        PostgresError: The catalog cannot be read.
        BrokerUnreachableError: No broker answers.
        TopicMissingError: A table has no topic.
    """
    spec, rows = opened(kafka, group, source, tables, start, dsn, schemas, columns, options)
    return Changes(spec, rows)


def opened(  # noqa: PLR0913, PLR0917  # the parameters of `changes`
    kafka: str | CaptureSpec,
    group: str,
    source: str | None,
    tables: Iterable[str | TableName] | None,
    start: GroupStart,
    dsn: str | None,
    schemas: Mapping[TableName, TableSchema] | None,
    columns: Mapping[str, ColumnRules] | None,
    options: dict[str, Any],
) -> tuple[ConsumerSpec, RowDecoder]:
    """Evaluates the arguments of `changes`; see there."""
    rules: dict[TableName, ColumnRules] = {}
    if isinstance(kafka, CaptureSpec):
        source = source or kafka.name
        tables = kafka.tables if tables is None else tables
        dsn = kafka.dsn if dsn is None and schemas is None else dsn
        rules = dict(kafka.columns)
        options = {"escaped_topics": kafka.escaped_topics, **options}
        kafka = kafka.kafka_bootstrap
    if source is None or tables is None:
        raise ConsumerSpecError("a consumer needs a source name and tables")
    if (dsn is None) == (schemas is None):
        raise ConsumerSpecError(
            "a consumer needs either dsn or schemas, for typed values",
            hint="schemas={} leaves values in their wire format",
        )
    if dsn is not None and "escaped_topics" not in options:
        options["escaped_topics"] = _escaped(dsn, source)
    spec = ConsumerSpec(
        kafka_bootstrap=kafka,
        source=source,
        group=group,
        tables=tuple(map(table_name, tables)),
        start=start,
        **options,
    )
    rules |= {table_name(table): rule for table, rule in (columns or {}).items()}
    return spec, _rows(spec, dsn, schemas, rules)


def _escaped(dsn: str, source: str) -> frozenset[TableName]:
    # a program that is given the schemas needs no driver of Postgres
    from cdc.postgres import escaped_topics, session  # noqa: PLC0415

    with session.connect(dsn) as connection:
        return escaped_topics.names(connection, source).escaped


def _rows(
    spec: ConsumerSpec,
    dsn: str | None,
    schemas: Mapping[TableName, TableSchema] | None,
    rules: Mapping[TableName, ColumnRules],
) -> RowDecoder:
    if dsn is None:
        return RowDecoder(schemas or {})
    known = dsn

    def describe_table(table: TableName, lsn: Lsn) -> tuple[TableSchema | None, Lsn]:
        try:
            found, reached = _described(known, [table], rules, lsn)
        except CdcError as error:
            _log.warning("table not described again", table=str(table), code=error.code)
            raise TableUndescribedError(
                f"table {table} has changed, and the source does not describe it",
                detail=error.code,
                hint=error.hint,
            ) from error
        return found.get(table), reached

    found, _ = _described(known, spec.tables, rules)
    missing = sorted(str(table) for table in set(spec.tables) - found.keys())
    if missing:
        raise ConsumerSpecError(
            f"the source has no table {missing[0]}",
            detail=", ".join(missing) if len(missing) > 1 else None,
            hint="check the name and its schema",
        )
    return RowDecoder(found, describe_table)


def _described(
    dsn: str,
    tables: Iterable[TableName],
    rules: Mapping[TableName, ColumnRules],
    at_least: Lsn | None = None,
) -> tuple[dict[TableName, TableSchema], Lsn]:
    """Describes tables; also returns the prior end of the log, or a standby's replay position.

    Raises:
        PostgresError: The database does not answer.
        TableUndescribedError: It is a standby that has not replayed up to the required position.
    """
    # loaded here: a consumer with schemas needs no driver
    from cdc.postgres import catalog, session  # noqa: PLC0415

    with session.connect(dsn) as connection:
        standby, text = connection.execute(_REACHED).fetchone() or (False, "")
        reached = Lsn.parse(str(text))
        if standby and at_least is not None and reached < at_least:
            raise TableUndescribedError("the standby has not replayed the log so far")
        return catalog.describe(connection, tables, rules), reached
