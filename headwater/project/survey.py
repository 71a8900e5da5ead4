"""What `headwater init` chooses to mirror of a database, and why not the rest; reading only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from cdc import source as capture
from cdc.capture import OWN_TABLES, CaptureSpec
from cdc.postgres import catalog, identity, inventory
from cdc.postgres.check import Check, CheckState
from cdc.postgres.identity import FaultKind
from cdc.table import TableName
from cdc.topic_names import TopicNames, metric_name
from foundation.suggestion import did_you_mean
from headwater.errors import UsageError
from projections.definition.column_names import reserved, untabular
from projections.definition.search_options import unsearchable
from projections.definition.views import EVENT_TABLES, OUTBOX, Store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from psycopg import Connection

    from cdc.postgres.inventory import Relation
    from cdc.table import TableSchema

LARGE_BYTES: Final = 1024**3
"""From this size on a table is mirrored to the warehouse alone: the cache keeps rows in memory."""

_EVERYWHERE: Final = tuple(Store)
_WAREHOUSE: Final = (Store.TABLE,)
_PATTERN: Final = frozenset("*?[")
_EVENT_STORE_SCHEMAS: Final = frozenset({"eventstore", "headwater_migrations"})

_ROWS_PER_S: Final = {Store.TABLE: 100_000, Store.SEARCH: 15_000, Store.CACHE: 15_000}
"""What two cores were measured to load, about; wide rows take longer."""

_VIEW_STORE_S: Final = 0.065
"""What a view costs in each store, whatever it holds: its index, its files, its snapshot. Measured
with three stores: 16 tables were loaded in 26 s, 400 in 100 s."""

_DISK_SHARE: Final = {Store.TABLE: 0.5, Store.SEARCH: 1.5, Store.CACHE: 1.0}
"""Bytes on this machine for a byte at the source, about; the cache's are in memory as well."""

_DISK_USED: Final = 0.8
"""Share of the free disk that a first load may take."""

_KEYLESS: Final = (
    "add a primary key; or name the table in --tables, and its inserts are mirrored all the same"
)

NOT_ASKED: Final = "not among --tables and --schemas"
EXCLUDED: Final = "left out by --exclude"


@dataclass(frozen=True, slots=True)
class TableSelection:
    """The tables to mirror; `*` and `?` stand for characters, as in a shell.

    Attributes:
        tables: Names with or without schema; all if empty. One that is named in full is mirrored
            also where `init` would have left it out, if that is possible.
        schemas: Schemas; all if empty.
        exclude: Names that are left out, whatever else is asked for.
    """

    tables: tuple[str, ...] = ()
    schemas: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def refusal(self, table: TableName) -> str | None:
        """Says why a table is not asked for; None if it is."""
        if any(_matches(pattern, table) for pattern in self.exclude):
            return EXCLUDED
        if self.schemas and not any(fnmatchcase(table.schema, each) for each in self.schemas):
            return NOT_ASKED
        if self.tables and not any(_matches(pattern, table) for pattern in self.tables):
            return NOT_ASKED
        return None

    def names(self, table: TableName) -> bool:
        """Whether a table is asked for by its name, not by a pattern."""
        return bool({str(table), table.name} & set(self.tables))


@dataclass(frozen=True, slots=True)
class Choice:
    """What becomes of a table.

    Attributes:
        table: The table.
        rows: Its rows, about.
        size_bytes: Its size at the source.
        to: Stores that it is mirrored to; none if it is left out.
        reason: Why it is left out.
        repair: What lets it be mirrored.
        insert_only: It is captured although Postgres refuses UPDATE and DELETE on it then.
        escaped_topic: Its name is escaped in its topic, because another table has the usual one.
        notes: What has to be known of one that is mirrored.
    """

    table: TableName
    rows: int
    size_bytes: int
    to: tuple[Store, ...] = _EVERYWHERE
    reason: str | None = None
    repair: str | None = None
    insert_only: bool = False
    escaped_topic: bool = False
    notes: tuple[str, ...] = ()

    def without(self, reason: str, repair: str | None = None) -> Choice:
        """Returns it left out."""
        return replace(self, to=(), reason=reason, repair=repair)

    @property
    def disk_bytes(self) -> int:
        """What its first load takes on this machine, the log of it included."""
        stored = sum(_DISK_SHARE[store] for store in self.to)
        return round(self.size_bytes * (stored + 1)) if self.to else 0

    @property
    def load_s(self) -> float:
        """How long its first load takes, seconds."""
        return sum(_VIEW_STORE_S + self.rows / _ROWS_PER_S[store] for store in self.to)


@dataclass(frozen=True, slots=True)
class DatabaseSurvey:
    """What is chosen of a database.

    Attributes:
        source: Name of the source.
        choices: A choice for each table.
        eventstore: Whether the database has an event store of Headwater's.
        findings: What keeps the whole source from being captured now.
    """

    source: str
    choices: tuple[Choice, ...]
    eventstore: bool = False
    findings: tuple[Check, ...] = ()

    @property
    def mirrored(self) -> list[Choice]:
        """What is mirrored."""
        return [choice for choice in self.choices if choice.to]

    @property
    def left_out(self) -> list[Choice]:
        """What is not."""
        return [choice for choice in self.choices if not choice.to]

    def by_note(self) -> list[tuple[str, list[Choice]]]:
        """Returns notes on mirrored tables, each with the tables that it applies to."""
        found: dict[str, list[Choice]] = {}
        for choice in self.mirrored:
            for note in choice.notes:
                found.setdefault(note, []).append(choice)
        return list(found.items())

    def by_reason(self) -> Iterator[tuple[str, list[Choice]]]:
        """What is left out, by why."""

        def reason(choice: Choice) -> str:
            return choice.reason or ""

        for each, choices in groupby(sorted(self.left_out, key=reason), key=reason):
            yield each, list(choices)


def survey(
    connection: Connection[Any], dsn: str, source: str, wanted: TableSelection, disk_free_bytes: int
) -> DatabaseSurvey:
    """Looks at a database and chooses what to mirror; changes nothing.

    Args:
        connection: To the database.
        dsn: How it was reached.
        source: Name of the source.
        wanted: What is asked for.
        disk_free_bytes: Free disk of this machine.

    Raises:
        UsageError: A table or schema that is asked for does not exist.
    """
    found = inventory.relations(connection)
    eventstore = inventory.has_event_store(connection)
    if eventstore:
        found = [each for each in found if each.schema not in _EVENT_STORE_SCHEMAS]
    tables = [each.table for each in found]
    _refuse_unknown(wanted, tables)
    described = catalog.describe(connection, tables)
    looker = _Looker(source, wanted, described, outbox=eventstore)
    choices = {each.table: looker.choice(each) for each in found}
    findings: list[Check] = []
    captured = tuple(table for table, choice in choices.items() if choice.to)
    if captured:
        spec = CaptureSpec(
            source,
            dsn,
            captured,
            connect_url="",
            kafka_bootstrap="",
            outbox=OUTBOX if eventstore else None,
            insert_only=_accepted(connection, wanted, captured),
            escaped_topics=frozenset(table for table in captured if choices[table].escaped_topic),
        )
        for table in spec.insert_only:
            choices[table] = replace(choices[table], insert_only=True)
        findings = looker.checked(choices, capture.checks(connection, spec))
    kept = _sized(list(choices.values()), wanted, disk_free_bytes)
    return DatabaseSurvey(source, tuple(kept), eventstore, tuple(findings))


def _accepted(
    connection: Connection[Any], wanted: TableSelection, tables: Sequence[TableName]
) -> frozenset[TableName]:
    """Tables that are asked for by name although Postgres will refuse UPDATE and DELETE on them."""
    named = [table for table in tables if wanted.names(table)]
    found = identity.faults(connection, named) if named else {}
    return frozenset(
        table
        for table, faults in found.items()
        if all(fault.kind is not FaultKind.WRONG for fault in faults)
        and any(fault.kind is FaultKind.REFUSED for fault in faults)
    )


class _Looker:
    """Chooses by what each table is, and by what `headwater doctor` says of it."""

    def __init__(
        self,
        source: str,
        wanted: TableSelection,
        described: Mapping[TableName, TableSchema],
        *,
        outbox: bool,
    ) -> None:
        self._wanted = wanted
        self._described = described
        self._names = TopicNames(source)
        self._taken = {metric_name(self._names.of(t)) for t in (*OWN_TABLES, *EVENT_TABLES)}
        self._outbox = outbox

    def choice(self, relation: Relation) -> Choice:
        """Returns what becomes of a table by itself."""
        table = relation.table
        choice = Choice(table, relation.rows, relation.size_bytes)
        reason = next(self._reasons(relation), None)
        if reason is not None:
            return choice.without(reason)
        return self._within_stores(replace(choice, escaped_topic=self._escaped(table)))

    def _escaped(self, table: TableName) -> bool:
        """Whether the usual topic of a table is another table's, or one of the outbox."""
        topic = metric_name(self._names.of(table))
        if topic in self._taken or (self._outbox and self._names.of_outbox(table)):
            return True
        self._taken.add(topic)
        return False

    def _within_stores(self, choice: Choice) -> Choice:
        """Keeps a table out of the stores that cannot have a column of its names."""
        columns = self._described[choice.table].by_name
        if (name := reserved(columns)) is not None:
            return choice.without(
                f"has a column {name}, a name that is reserved",
                "mirror it without the column: except_column_list of view.mirror",
            )
        refusals = {}
        if (found := untabular(columns)) is not None:
            refusals[Store.TABLE] = f"not in the warehouse: {found[1]}"
        if (name := unsearchable(columns)) is not None:
            refusals[Store.SEARCH] = (
                f"not in search: the engine cannot index a column named {name!r}"
            )
        kept = tuple(store for store in choice.to if store not in refusals)
        return replace(choice, to=kept, notes=(*choice.notes, *refusals.values()))

    def checked(self, choices: dict[TableName, Choice], checks: Iterable[Check]) -> list[Check]:
        """Leaves out what cannot be captured; returns what keeps the whole source from it."""
        by_name = {f"table {table}": table for table, choice in choices.items() if choice.to}
        findings = []
        for check in checks:
            table = by_name.get(check.name)
            if table is None:
                findings += [check] if check.state is CheckState.FAIL else []
            elif check.state is CheckState.FAIL:
                choices[table] = self._refused(choices[table], check)
            elif (check.state is CheckState.WARN or check.detail) and choices[table].to:
                choices[table] = self._warned(choices[table], check)
        return findings

    def _refused(self, choice: Choice, check: Check) -> Choice:
        if not choice.to:
            return choice  # for the first reason that was found
        keyless = not self._described[choice.table].key
        return choice.without(check.message, _KEYLESS if keyless else check.hint)

    def _warned(self, choice: Choice, check: Check) -> Choice:
        # a table without a key is never published by itself: the server would refuse writes
        if not self._described[choice.table].key and not self._wanted.names(choice.table):
            return choice.without(check.message, _KEYLESS)
        return replace(choice, notes=(*choice.notes, check.message))

    def _reasons(self, relation: Relation) -> Iterator[str]:
        table = relation.table
        if (refusal := self._wanted.refusal(table)) is not None:
            yield refusal
        if relation.kind == "f":
            yield "foreign table: its changes are in another database's log"
        if relation.unlogged:
            yield "unlogged: its changes are not in the log"
        if relation.extension and not self._wanted.names(table):
            yield f"belongs to the extension {relation.extension}"
        if relation.columns == 0:
            yield "has no columns"
        if table not in self._described:
            yield "has no columns but generated ones that are not in the log"
        if TableName.parse(str(table)) != table:
            yield "cannot be declared: the name of its schema has a dot"


def _sized(choices: list[Choice], wanted: TableSelection, disk_free_bytes: int) -> list[Choice]:
    """Keeps large tables out of memory, and out of a disk that they would fill."""
    found = {choice.table: choice for choice in choices}
    left_bytes = disk_free_bytes * _DISK_USED
    for choice in sorted(choices, key=lambda each: each.size_bytes):
        if not choice.to:
            continue
        smaller = _out_of_memory(choice, wanted) if choice.size_bytes >= LARGE_BYTES else choice
        if smaller.disk_bytes > left_bytes and not wanted.names(choice.table):
            smaller = choice.without(
                "is too large for the disk of this machine",
                "name it in --tables to mirror it all the same, or put --home on another disk",
            )
        left_bytes -= smaller.disk_bytes
        found[choice.table] = smaller
    return list(found.values())


def _out_of_memory(choice: Choice, wanted: TableSelection) -> Choice:
    if Store.TABLE in choice.to:
        return replace(choice, to=_WAREHOUSE)
    if wanted.names(choice.table):
        return choice
    return choice.without(
        "is too large for search and the cache, and the warehouse cannot have its columns",
        "name it in --tables to mirror it all the same, or rename a column",
    )


def _matches(pattern: str, table: TableName) -> bool:
    exact = pattern in {str(table), table.name}
    return exact or fnmatchcase(str(table), pattern) or fnmatchcase(table.name, pattern)


def _refuse_unknown(wanted: TableSelection, tables: Sequence[TableName]) -> None:
    for pattern in (*wanted.tables, *wanted.exclude):
        if not any(_matches(pattern, table) for table in tables):
            raise _unknown("table", pattern, list(map(str, tables)))
    schemas = sorted({table.schema for table in tables})
    for pattern in wanted.schemas:
        if not any(fnmatchcase(schema, pattern) for schema in schemas):
            raise _unknown("schema", pattern, schemas)


def _unknown(what: str, name: str, there: list[str]) -> UsageError:
    if _PATTERN & set(name):
        return UsageError(f"no {what} matches {name}", hint="quote * in the shell")
    wanted = name if what == "schema" or "." in name else f"public.{name}"
    hint = did_you_mean(wanted, there, "--dry-run shows what there is")
    return UsageError(f"the database has no {what} {name}", hint=hint)
