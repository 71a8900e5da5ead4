"""Differences between a source and its declaration, and the steps that remove them.

`steps` only reads; `ReconcileStep.do` makes exactly the changes that its differences show. `plan`
and `apply` therefore share one path: `plan` stops before the steps are executed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cdc import continuity
from cdc.broker.topics import topics
from cdc.broker.topics.topics import TopicSpec
from cdc.capture import OWN_TABLES
from cdc.connect import secrets
from cdc.connect.connector import connector_config, topic_config
from cdc.postgres import (
    address,
    captures,
    catalog,
    escaped_topics,
    own_schema,
    publication,
    session,
)
from cdc.postgres.check import CheckState
from cdc.retention import OURS
from cdc.schema_change import history, trigger
from cdc.snapshot import reads
from cdc.upkeep import hiding
from cdc.upkeep.difference import MASK, Difference, Part, of_properties

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from psycopg import Connection

    from cdc.capture import CaptureSpec
    from cdc.connect.rest import ConnectRest
    from cdc.postgres.address import DatabaseAddress

_HOUR_MS: Final = 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class ReconcileStep:
    """Differences of one part, and the function that removes them.

    Attributes:
        differences: The differences, at least one.
        do: Makes the part as declared; returns what was changed, one line each.
    """

    differences: tuple[Difference, ...]
    do: Callable[[], list[str]]


def steps(
    connection: Connection[Any], rest: ConnectRest, spec: CaptureSpec, *, recreate: bool = False
) -> list[ReconcileStep]:
    """Returns the necessary steps, in order; empty if everything is as declared.

    Args:
        connection: To the source database, as the role that sets up the capture.
        rest: The Connect worker.
        spec: The declared capture.
        recreate: Assume that connector, publication and slot are removed first.
    """
    spec = continuity.as_captured(connection, rest, spec)
    return [
        *at_source(connection, spec, recreate=recreate),
        *_topics(spec),
        *_secrets(connection, rest, spec),
        *_connector(connection, rest, spec, recreate=recreate),
    ]


def at_source(
    connection: Connection[Any], spec: CaptureSpec, *, recreate: bool = False
) -> list[ReconcileStep]:
    """Returns the steps in the source database, which precede all others."""
    return [
        *_schema(connection),
        *_topic_names(connection, spec),
        *_publication(connection, spec, recreate=recreate),
        *_shapes(connection, spec),
        *_slot(connection, spec, recreate=recreate),
    ]


def drift(connection: Connection[Any], rest: ConnectRest, spec: CaptureSpec) -> list[Difference]:
    """Returns every difference of an applied capture; changes nothing."""
    found = [found for step in steps(connection, rest, spec) for found in step.differences]
    return [*found, *_misnamed(connection, spec)]


def unread(connection: Connection[Any], spec: CaptureSpec) -> list[Difference]:
    """Returns the tables without a requested snapshot in this epoch."""
    asked = set()
    if own_schema.exists(connection):
        found = reads.of_source(connection, spec.name, spec.epoch)
        asked = {r.table for r in found if r.whole and r.state not in reads.GIVEN_UP}
    return [
        Difference(Part.TABLE, str(table), "", None, "is to be read")
        for table in spec.tables
        if table not in asked
    ]


def _misnamed(connection: Connection[Any], spec: CaptureSpec) -> Iterator[Difference]:
    """Yields rules whose hidden column was renamed: under its new name it would be captured."""
    for check in hiding.checks(connection, spec):
        if check.state is CheckState.FAIL:
            yield Difference(
                Part.TABLE, check.name, "", check.message, "hidden", repaired=False, hint=check.hint
            )


def topic_specs(spec: CaptureSpec) -> list[TopicSpec]:
    """Returns the declared topics of a source, without those of its outbox's messages."""
    kept = topic_config(spec)
    # Debezium's own heartbeats, one a second, are useless after an hour.
    brief = {**kept, "retention.ms": str(min(spec.topic_retention_ms, _HOUR_MS))}
    copies = spec.replication_factor
    return [
        *(
            TopicSpec(
                name,
                1 if table in OWN_TABLES else spec.topic_partitions,
                topic_config(spec, table),
                copies,
            )
            for table, name in spec.table_topics.items()
        ),
        TopicSpec(spec.transaction_topic, 1, kept, copies),
        TopicSpec(spec.heartbeat_topic, 1, brief, copies),
    ]


def _schema(connection: Connection[Any]) -> Iterator[ReconcileStep]:
    if own_schema.pending(connection):
        have = "of an earlier release" if own_schema.exists(connection) else None
        made = Difference(Part.SCHEMA, "headwater", "", have, "upgraded" if have else "created")
        yield ReconcileStep((made,), lambda: own_schema.ensure(connection))


def _topic_names(connection: Connection[Any], spec: CaptureSpec) -> Iterator[ReconcileStep]:
    """Precedes the capture, because a job reads the names of topics from the source."""
    before = escaped_topics.names(connection, spec.name)
    changed = escaped_topics.differing(connection, spec.topics, spec.tables)
    if changed:
        yield ReconcileStep(
            tuple(
                Difference(Part.TABLE, str(table), "topic", before.of(table), spec.topics.of(table))
                for table in changed
            ),
            lambda: escaped_topics.note(connection, spec.topics, spec.tables),
        )


def _publication(
    connection: Connection[Any], spec: CaptureSpec, *, recreate: bool
) -> Iterator[ReconcileStep]:
    name = spec.publication
    found = None if recreate else publication.find(connection, name)
    if found is None:
        made = Difference(
            Part.PUBLICATION, name, "", None, f"created for {len(spec.captured)} tables"
        )
        yield ReconcileStep((made,), lambda: publication.ensure(connection, name, spec.captured))
        return
    lacking, extra = found.against(spec.captured)
    differences = [
        *(
            []
            if found.complete
            else [Difference(Part.PUBLICATION, name, "operations", "some", "all")]
        ),
        *(
            []
            if found.generated or not found.ours
            else [Difference(Part.PUBLICATION, name, "generated columns", None, "published")]
        ),
        *(Difference(Part.PUBLICATION, name, str(t), None, "published") for t in lacking),
        *(Difference(Part.PUBLICATION, name, str(t), "published", None) for t in extra),
    ]
    if differences:

        def do() -> list[str]:
            changes = publication.ensure(connection, name, spec.captured)
            gone = publication.leave_out(connection, name, extra)
            if gone:
                # its changes are no longer captured: adding it again requires a new snapshot
                reads.forget(connection, spec.name, extra)
            return changes + gone

        yield ReconcileStep(tuple(differences), do)


def _shapes(connection: Connection[Any], spec: CaptureSpec) -> Iterator[ReconcileStep]:
    """Precedes streaming: records the shape of each table, and creates the event triggers."""
    known = own_schema.exists(connection)
    differences = [
        Difference(Part.SCHEMA, str(table), "shape", None, "noted")
        for table in (history.unseen(connection, spec.tables) if known else spec.tables)
    ]
    if trigger.allowed(connection) and not (known and trigger.active(connection)):
        made = Difference(Part.SCHEMA, "headwater", "event triggers", None, "created")
        differences.insert(0, made)

    def do() -> list[str]:
        made = trigger.ensure(connection)
        return made + [f"shape of {t} noted" for t in history.observe(connection, spec.tables)]

    if differences:
        yield ReconcileStep(tuple(differences), do)


def _slot(
    connection: Connection[Any], spec: CaptureSpec, *, recreate: bool
) -> Iterator[ReconcileStep]:
    # a lost slot of an existing capture is not recreated here: that needs a repair
    if recreate or captures.find(connection, spec.name) is None:
        made = Difference(Part.SLOT, spec.slot, "", None, "made")
        yield ReconcileStep((made,), lambda: continuity.begin(connection, spec))


def _topics(spec: CaptureSpec) -> Iterator[ReconcileStep]:
    wanted = topic_specs(spec)
    there = topics.find(spec.kafka_bootstrap, [topic.name for topic in wanted])
    missing = [topic for topic in wanted if topic.name not in there]
    if missing:
        yield ReconcileStep(
            tuple(Difference(Part.TOPIC, topic.name, "", None, "created") for topic in missing),
            lambda: topics.ensure(spec.kafka_bootstrap, missing),
        )
    for topic in wanted:
        if topic.name in there:
            yield from _topic(spec.kafka_bootstrap, there[topic.name], topic)


def _topic(bootstrap: str, have: TopicSpec, want: TopicSpec) -> Iterator[ReconcileStep]:
    ours = {key: value for key, value in have.configs.items() if key in OURS}
    differences = of_properties(Part.TOPIC, want.name, ours, want.configs)
    if have.partitions != want.partitions:
        refused = Difference(
            Part.TOPIC,
            want.name,
            "partitions",
            str(have.partitions),
            str(want.partitions),
            repaired=False,
            hint="keys would move between partitions: declare the present number",
        )
        yield ReconcileStep((refused,), list)
    if differences:

        def do() -> list[str]:
            changed = {found.aspect: found.want for found in differences}
            topics.alter(bootstrap, want.name, changed)
            return [str(found) for found in differences]

        yield ReconcileStep(tuple(differences), do)


def _secrets(
    connection: Connection[Any], rest: ConnectRest, spec: CaptureSpec
) -> Iterator[ReconcileStep]:
    wanted = _secret_values(connection, spec)
    names = secrets.differing(spec, wanted)
    if not names:
        return

    def do() -> list[str]:
        secrets.write(spec, wanted)
        if rest.config(spec.connector) is not None:
            rest.restart(spec.connector, only_failed=False)  # it still uses the old values
        return [f"wrote {name} for connector {spec.connector}" for name in names]

    yield ReconcileStep(
        tuple(Difference(Part.SECRET, f"{spec.name}/{name}", "", None, MASK) for name in names), do
    )


def _connector(
    connection: Connection[Any], rest: ConnectRest, spec: CaptureSpec, *, recreate: bool
) -> Iterator[ReconcileStep]:
    wanted = _config(connection, spec)
    found = None if recreate else rest.config(spec.connector)
    if found is None:
        differences = [Difference(Part.CONNECTOR, spec.connector, "", None, "registered")]
        verb = "registered"
    else:
        found.pop("name", None)
        differences = of_properties(Part.CONNECTOR, spec.connector, found, wanted)
        verb = "changed"

    def do() -> list[str]:
        rest.put_config(spec.connector, wanted)
        return [f"{verb} connector {spec.connector}"]

    if differences:
        yield ReconcileStep(tuple(differences), do)


def _config(connection: Connection[Any], spec: CaptureSpec) -> dict[str, str]:
    return connector_config(
        spec,
        _address(connection, spec),
        keys=catalog.keys_besides_primary(connection, spec.tables),
        excluded=catalog.generated_columns(connection, spec.tables),
        options=session.own_options(connection.info.server_version),
    )


def _address(connection: Connection[Any], spec: CaptureSpec) -> DatabaseAddress:
    """Returns the connector's address of the database: that of the sessions with the same DSN."""
    dsn = spec.connector_dsn or spec.reader_dsn
    return address.over_tcp(connection, dsn) if dsn == spec.dsn else address.resolve(dsn)


def _secret_values(connection: Connection[Any], spec: CaptureSpec) -> dict[str, str]:
    reached = _address(connection, spec)
    found = {} if spec.connector_password else {secrets.PASSWORD: reached.password}
    if key_password := reached.tls.get(secrets.KEY_PASSWORD):
        found[secrets.KEY_PASSWORD] = key_password
    if spec.salt is not None and not spec.connector_salt:
        found[secrets.SALT] = spec.salt
    return found


def applied(found: Iterable[ReconcileStep]) -> list[str]:
    """Executes all steps in order; returns what was changed."""
    return [change for step in found for change in step.do()]
