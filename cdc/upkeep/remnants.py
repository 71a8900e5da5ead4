"""Remnants: the objects that a capture created in its source's database, and their removal.

Only objects that Headwater created are dropped, and a name alone is no proof. A slot is ours if the
table of captures names it, a publication if this role owns it and it publishes the heartbeat, an
event trigger if it calls our function, the schema if it has all of our tables. The schema is
dropped last, because it contains the proof for the others, and each object is dropped in one
transaction. A removal that was killed at any moment can therefore be repeated, and finds the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from psycopg import Error, errors, sql

from cdc.capture import HEARTBEAT_TABLE
from cdc.postgres import escaped_topics, own_schema, publication, slot
from cdc.schema_change import trigger
from cdc.upkeep.errors import RemovalError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg import Connection

PREFIX: Final = "headwater_"
"""Prefix of the names of slots and publications; the source's name follows."""

SCHEMA: Final = "headwater"

_OF_SOURCE: Final = (
    *("view_positions", "snapshots", "view_shapes", "quarantine", "view_versions"),
    *("view_verifications", "alert_episodes", "alert_messages", "captures"),
)
"""Tables whose rows belong to one source each; captures last, because it is the proof."""

_FUNCTIONS: Final = ("note_schema_change()", "table_shape(bigint)", "may_stream(text)")

_SUPERUSER: Final = "only a superuser may drop them"
_LOCK_WAIT: Final = "SET LOCAL lock_timeout = '10s'"  # the job and the capture have stopped by then

_NOTED: Final = """
SELECT EXISTS (SELECT FROM headwater.captures WHERE source = %(source)s AND slot = %(slot)s)
"""
_OTHERS: Final = "SELECT source FROM headwater.captures WHERE source <> %s ORDER BY 1"
_SCHEMA_OWNED: Final = """
SELECT pg_has_role(nspowner, 'USAGE') FROM pg_namespace WHERE nspname = 'headwater'
"""
_NAMES: Final = """
SELECT substr(slot_name, %(after)s), active FROM pg_replication_slots
 WHERE database = current_database() AND starts_with(slot_name, %(prefix)s)
 UNION ALL
SELECT substr(pubname, %(after)s), false FROM pg_publication WHERE starts_with(pubname, %(prefix)s)
"""


class RemnantKind(StrEnum):
    """The kind of a remnant, in the order of removal."""

    SLOT = "slot"
    PUBLICATION = "publication"
    TRIGGERS = "triggers"
    SCHEMA = "schema"


@dataclass(frozen=True, slots=True)
class CaptureRemnant:
    """A database object that a capture created, or that has the name of one.

    Attributes:
        part: Its kind.
        name: Its name.
        removable: Whether Headwater created it, nothing else needs it, and this role may drop it.
        why: Why it is not removable; otherwise what it is or costs.
        statement: The statement that removes it by hand.
        held_bytes: Size of the source's log that it retains.
    """

    part: RemnantKind
    name: str
    removable: bool
    why: str
    statement: str
    held_bytes: int = 0


def find(connection: Connection[Any], source: str) -> list[CaptureRemnant]:
    """Returns the remnants of a source's capture, in the order of removal; changes nothing."""
    known = own_schema.exists(connection)
    others = _others(connection, source) if known else []
    return [
        *_slot(connection, source, known=known),
        *_publication(connection, source),
        *_triggers(connection, others, known=known),
        *_schema(connection, source, others, known=known),
    ]


def left_behind(connection: Connection[Any], source: str) -> list[str]:
    """Returns names of other sources with remnants whose slot no connector reads.

    They belong to an earlier trial, or to a project that is stopped.
    """
    given = {"prefix": PREFIX, "after": len(PREFIX) + 1}
    rows = connection.execute(_NAMES, given).fetchall()
    read = {name for name, active in rows if active}
    noted = _others(connection, source) if own_schema.exists(connection) else []
    return sorted({name for name, _ in rows} - read - {source} | set(noted) - read)


def drop(connection: Connection[Any], source: str, remnant: CaptureRemnant) -> list[str]:
    """Removes an object; returns what was removed, one line each, empty if it was already gone.

    Args:
        connection: To the database, in autocommit.
        source: Name of the source.
        remnant: A recent result of `find`.

    Raises:
        RemovalError: It is not removable, something else depends on it, or the server refuses.
        SlotError: A connector still reads from the slot.
    """
    now = next((each for each in find(connection, source) if each.part is remnant.part), None)
    if now is None:
        return []
    if not now.removable:
        raise RemovalError(
            f"{now.part} {now.name} was not removed", detail=now.why, hint=now.statement
        )
    try:
        return _drop(connection, source, now)
    except Error as error:
        raise RemovalError(
            f"{now.part} {now.name} cannot be removed",
            detail=error.diag.message_primary or error.sqlstate,
            hint=now.statement,
        ) from None


def _drop(connection: Connection[Any], source: str, remnant: CaptureRemnant) -> list[str]:
    match remnant.part:
        case RemnantKind.SLOT:
            gone = slot.drop(connection, remnant.name)
        case RemnantKind.PUBLICATION:
            gone = publication.drop(connection, remnant.name)
        case RemnantKind.TRIGGERS:
            gone = trigger.drop_all(connection)
        case RemnantKind.SCHEMA:
            return _drop_schema(connection, source)
    return [f"dropped {remnant.part} {remnant.name}"] if gone else []


def _drop_schema(connection: Connection[Any], source: str) -> list[str]:
    others = _others(connection, source)
    with connection.transaction():
        connection.execute(_LOCK_WAIT)
        if others:
            for table in _OF_SOURCE:
                connection.execute(
                    sql.SQL("DELETE FROM {} WHERE source = %s").format(
                        sql.Identifier(SCHEMA, table)
                    ),
                    (source,),
                )
            escaped_topics.forget(connection, source)
            return [f"removed what was noted of {source}; {', '.join(others)} stays in the schema"]
        for function in _FUNCTIONS:
            connection.execute(f"DROP FUNCTION IF EXISTS headwater.{function}".encode())
        names = (*own_schema.TABLES, own_schema.RECORD)
        tables = sql.SQL(", ").join(sql.Identifier(SCHEMA, name) for name in names)
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(tables))
        try:
            with connection.transaction():
                connection.execute("DROP SCHEMA headwater")
        except errors.DependentObjectsStillExist:
            return ["dropped what Headwater made in schema headwater; the rest of it stays"]
    return ["dropped schema headwater"]


def _slot(connection: Connection[Any], source: str, *, known: bool) -> Iterator[CaptureRemnant]:
    name = PREFIX + source
    found = slot.status(connection, name)
    if found is None:
        return
    statement = slot.dropping(name)
    noted = known and connection.execute(_NOTED, {"source": source, "slot": name}).fetchone()
    ours = bool(noted and noted[0]) and found.decodes(connection.info.dbname)
    if not ours:
        why = "no capture of this database is noted with it: it may be another's"
        yield CaptureRemnant(RemnantKind.SLOT, name, False, why, statement, found.retained_bytes)
        return
    read = f"read by {found.holder or 'a process'}" if found.active else "no reader"
    why = f"{read}, holds {found.retained_bytes / 1024 / 1024:.1f} MiB of the source's log"
    yield CaptureRemnant(RemnantKind.SLOT, name, True, why, statement, found.retained_bytes)


def _publication(connection: Connection[Any], source: str) -> Iterator[CaptureRemnant]:
    name = PREFIX + source
    found = publication.find(connection, name)
    if found is None:
        return
    statement = f"DROP PUBLICATION {sql.Identifier(name).as_string(connection)};"
    if HEARTBEAT_TABLE not in found.tables:
        why = "does not publish headwater.heartbeat: Headwater did not make it"
    elif not found.ours:
        why = "another role made it"
    else:
        why = f"publishes {len(found.tables)} tables"
        yield CaptureRemnant(RemnantKind.PUBLICATION, name, True, why, statement)
        return
    yield CaptureRemnant(RemnantKind.PUBLICATION, name, False, why, statement)


def _triggers(
    connection: Connection[Any], others: list[str], *, known: bool
) -> Iterator[CaptureRemnant]:
    names = trigger.existing(connection)
    if not names:
        return
    statement = " ".join(f"DROP EVENT TRIGGER {name};" for name in names)
    why = "note changes of tables"
    if others:
        why = f"needed by {', '.join(others)}"
    elif not known:
        why = "schema headwater does not have Headwater's tables: another may have made them"
    elif not trigger.superuser(connection):
        why = _SUPERUSER
    removable = known and not others and why is not _SUPERUSER
    yield CaptureRemnant(RemnantKind.TRIGGERS, ", ".join(names), removable, why, statement)


def _schema(
    connection: Connection[Any], source: str, others: list[str], *, known: bool
) -> Iterator[CaptureRemnant]:
    owned = connection.execute(_SCHEMA_OWNED).fetchone()
    if owned is None:
        return
    statement = "DROP SCHEMA headwater CASCADE;  -- after a look at what it has"
    if not known:
        why = "does not have Headwater's tables: another made it, or it was emptied by hand"
        yield CaptureRemnant(RemnantKind.SCHEMA, SCHEMA, False, why, statement)
    elif others:
        noted = connection.execute(
            "SELECT EXISTS (SELECT FROM headwater.captures WHERE source = %s)", (source,)
        ).fetchone()
        if noted and noted[0]:
            why = f"what is noted of {source}; the rest is needed by {', '.join(others)}"
            yield CaptureRemnant(RemnantKind.SCHEMA, SCHEMA, True, why, statement)
    elif not owned[0]:
        yield CaptureRemnant(RemnantKind.SCHEMA, SCHEMA, False, "another role made it", statement)
    elif trigger.existing(connection) and not trigger.superuser(connection):
        why = "event triggers call its functions, and only a superuser may drop those"
        yield CaptureRemnant(RemnantKind.SCHEMA, SCHEMA, False, why, statement)
    else:
        why = f"{len(own_schema.TABLES)} tables: what is captured, how far views have come"
        yield CaptureRemnant(RemnantKind.SCHEMA, SCHEMA, True, why, statement)


def _others(connection: Connection[Any], source: str) -> list[str]:
    return [str(name) for (name,) in connection.execute(_OTHERS, (source,)).fetchall()]
