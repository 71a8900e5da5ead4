"""Plan of a source: what `apply` would change or refuse, as far as the servers that run can say."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cdc import continuity
from cdc.connect.rest import ConnectRest
from cdc.postgres import address, captures, escaped_topics, preflight, session
from cdc.postgres.check import CheckState
from cdc.postgres.errors import PostgresError
from cdc.schema_change import check as renamed
from cdc.schema_change import trigger_check
from cdc.upkeep import compaction, hiding, reconcile
from cdc.upkeep.difference import Difference, Part
from cdc.upkeep.reconcile import topic_specs

if TYPE_CHECKING:
    from collections.abc import Callable

    from psycopg import Connection

    from cdc.capture import CaptureSpec
    from cdc.continuity import Loss
    from cdc.postgres.check import Check


def plan(spec: CaptureSpec) -> list[Difference]:
    """Returns what `apply` would change, and what it would refuse; changes nothing.

    Raises:
        CdcError: Postgres, Kafka or Connect does not answer.
    """
    with session.connect(spec.dsn) as connection, closing(ConnectRest(spec.connect_url)) as rest:
        refused = _refused(connection, spec)
        recreate = continuity.raised_by_hand(connection, rest, spec)
        begun = []
        if recreate:
            begun = [_epoch(captures.epoch_of(connection, spec.name), spec)]
        else:
            spec = continuity.as_captured(connection, rest, spec)
            refused += _gaps(connection, spec, lambda: continuity.find_loss(connection, rest, spec))
        found = [
            d
            for step in reconcile.steps(connection, rest, spec, recreate=recreate)
            for d in step.differences
        ]
        found = [*begun, *found, *reconcile.unread(connection, spec)]
    return [*refused, *(replace(d, repaired=d.repaired and not refused) for d in found)]


def plan_first(spec: CaptureSpec) -> list[Difference]:
    """Returns the result of `plan` for a source whose Kafka and Connect were never started.

    Args:
        spec: The source; its addresses are not used.

    Raises:
        PostgresError: The source does not answer.
    """
    found = plan_at_source(spec)
    whole = not any(each.part is Part.SOURCE and not each.repaired for each in found)
    made = [Difference(Part.TOPIC, t.name, "", None, "created", whole) for t in topic_specs(spec)]
    return [
        *found,
        *made,
        Difference(Part.CONNECTOR, spec.connector, "", None, "registered", whole),
    ]


def plan_at_source(spec: CaptureSpec) -> list[Difference]:
    """Returns the part of `plan` that the source alone shows: all but topics and the connector.

    Args:
        spec: The source; the addresses of Kafka and Connect are not used.

    Raises:
        PostgresError: The source does not answer.
    """
    with session.connect(spec.dsn) as connection:
        refused = _refused(connection, spec)
        captured = captures.epoch_of(connection, spec.name)
        recreate = 0 < captured < spec.epoch
        begun = [_epoch(captured, spec)] if recreate else []
        if not recreate:
            spec = replace(spec, epoch=max(spec.epoch, captured))
            refused += _gaps(
                connection, spec, lambda: continuity.find_loss_at_source(connection, spec)
            )
        found = [
            difference
            for step in reconcile.at_source(connection, spec, recreate=recreate)
            for difference in step.differences
        ]
        found = [*begun, *found, *reconcile.unread(connection, spec)]
    return [*refused, *(replace(d, repaired=d.repaired and not refused) for d in found)]


def _refused(connection: Connection[Any], spec: CaptureSpec) -> list[Difference]:
    """Returns the problems to repair at the source before anything is created there."""
    return [
        Difference(Part.SOURCE, check.name, "", check.message, "ready", False, check.hint)
        for check in checks(connection, spec)
        if check.state is CheckState.FAIL
    ]


def checks(connection: Connection[Any], spec: CaptureSpec) -> list[Check]:
    """Checks all requirements of capture, with the roles concerned.

    Args:
        connection: To the source database, with the setup role.
        spec: The capture.

    Raises:
        PostgresError: The capture role cannot connect.
    """
    with session.connect(spec.reader_dsn) as reader:
        found = preflight.checks(
            connection,
            source=spec.name,
            tables=spec.required,
            slot=spec.slot,
            publication=spec.publication,
            reader=reader,
            columns=hiding.columns_read(connection, spec),
            insert_only=spec.insert_only,
        )
        return [
            *found,
            address.check(connection, spec.dsn, spec.connector_dsn or spec.reader_dsn),
            *renamed.checks(connection, spec.tables),
            *trigger_check.checks(connection, spec.tables),
            *hiding.checks(connection, spec),
            *escaped_topics.checks(connection, spec.topics, spec.tables),
            *compaction.checks(connection, spec),
        ]


def _epoch(captured: int, spec: CaptureSpec) -> Difference:
    return Difference(Part.SOURCE, spec.name, "epoch", str(captured), str(spec.epoch))


def _gaps(
    connection: Connection[Any], spec: CaptureSpec, find_loss: Callable[[], Loss | None]
) -> list[Difference]:
    """Returns the losses for which `apply` would refuse to continue."""
    try:
        loss = find_loss()
        if loss is not None:
            raise loss.error()
        if captures.find(connection, spec.name) is not None:
            continuity.refuse_lack_of_tables(connection, spec)
    except PostgresError as error:
        return [
            Difference(
                Part.SOURCE, spec.name, error.code, error.message, "whole", False, error.hint
            )
        ]
    return []
