"""SQL statements of the runner; 40_subscriptions.sql of the schema explains the functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from psycopg.types.json import Json

from eventstore.log import LogPart
from eventstore.model.event import StoredEvent
from eventstore.postgres import statement
from eventstore.postgres.statement import Statement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventstore.model.query import Query

HEAD: Final = "SELECT eventstore.head()"
WANT_WAKE: Final = "SELECT eventstore.want_wake()"
LISTEN: Final = "LISTEN eventstore"
ACT_FOR: Final = "SELECT set_config('eventstore.tenant', %s, false)"

NAME_TABLES: Final = (
    "UPDATE eventstore.subscriptions SET tables = %s"
    " WHERE tenant = %s AND name = %s AND tables <> %s"
)
TAKE_TURNS: Final = "SELECT pg_advisory_xact_lock(1749237, hashtext(%s || '/' || %s))"
DECLARE: Final = "SELECT eventstore.declare_subscription(%s, %s, %s, %s, %s)"
JOIN: Final = "SELECT eventstore.join_subscription(%s, %s, %s)"
REPARTITION: Final = "SELECT eventstore.repartition_subscription(%s, %s, %s)"
CLAIM: Final = "SELECT eventstore.claim_partitions(%s, %s)"
LEAVE: Final = "SELECT pg_advisory_unlock_all()"

LOCK: Final = (
    "SELECT partition, partitions, global_position, replay_until, replay_through, resume_at,"
    " earlier FROM eventstore.subscriptions"
    " WHERE tenant = %s AND name = %s AND partition = ANY (%s)"
    " ORDER BY partition FOR NO KEY UPDATE"
)

# runs after LOCK as a statement of its own, so that its snapshot includes earlier commits
LOOK: Final = (
    "SELECT eventstore.high_water_mark(), eventstore.head(),"
    " ARRAY(SELECT stream FROM eventstore.parked_events"
    "        WHERE tenant = %(tenant)s AND subscription = %(name)s AND state <> 'waiting'),"
    " (SELECT count(*) FROM eventstore.parked_events"
    "   WHERE tenant = %(tenant)s AND subscription = %(name)s AND state = 'parked'),"
    " (SELECT extract(epoch FROM min(retry_at) - clock_timestamp())::double precision"
    "    FROM eventstore.parked_events"
    "   WHERE tenant = %(tenant)s AND subscription = %(name)s AND state = 'retrying'"
    "     AND eventstore.partition_of(tenant, stream, %(partitions)s) = ANY (%(mine)s)),"
    " (SELECT paused_at IS NOT NULL FROM eventstore.subscriptions"
    "   WHERE tenant = %(tenant)s AND name = %(name)s AND partition = 0)"
)

ADVANCE: Final = (
    "UPDATE eventstore.subscriptions"
    "   SET global_position = CASE WHEN replay_through <= %(reached)s THEN resume_at"
    "           ELSE %(reached)s END,"
    "       replay_through = CASE WHEN replay_through > %(reached)s THEN replay_through END,"
    "       resume_at = CASE WHEN replay_through > %(reached)s THEN resume_at END,"
    "       earlier = CASE WHEN %(settled)s THEN NULL ELSE earlier END,"
    "       updated_at = clock_timestamp()"
    " WHERE tenant = %(tenant)s AND name = %(name)s AND partition = ANY (%(partitions)s)"
    "   AND global_position = %(before)s"
)

# for a checkpoint move without handled events: if a crash undoes it, nothing is lost
NO_FSYNC: Final = "SET LOCAL synchronous_commit = off"

PARK: Final = (
    "INSERT INTO eventstore.parked_events (tenant, subscription, stream, global_position, state,"
    " live, attempts, error_code, error_type, error_location, retry_at)"
    " SELECT %s, %s, stream, global_position, state, live, attempts, error_code, error_type,"
    "        error_location, clock_timestamp() + wait_s * interval '1 second'"
    "   FROM unnest(%s::text[], %s::bigint[], %s::text[], %s::boolean[], %s::integer[],"
    "               %s::text[], %s::text[], %s::text[], %s::double precision[])"
    "        AS e(stream, global_position, state, live, attempts, error_code, error_type,"
    "             error_location, wait_s)"
)

# The upper bound keeps a clock that was set back from delaying an event beyond the longest wait.
DUE: Final = (
    "SELECT stream FROM eventstore.parked_events"
    " WHERE tenant = %s AND subscription = %s AND state = 'retrying'"
    "   AND eventstore.partition_of(tenant, stream, %s) = ANY (%s)"
    "   AND NOT retry_at BETWEEN clock_timestamp() AND"
    "       clock_timestamp() + %s * interval '1 second'"
    " ORDER BY retry_at LIMIT 100"
)

LOCK_STREAM: Final = (
    "SELECT partitions FROM eventstore.subscriptions"
    " WHERE tenant = %(tenant)s AND name = %(name)s"
    "   AND partition = eventstore.partition_of(tenant, %(stream)s, partitions)"
    " FOR NO KEY UPDATE"
)

FIRST_PARKED: Final = (
    "SELECT global_position, live, attempts FROM eventstore.parked_events AS p"
    " WHERE tenant = %s AND subscription = %s AND stream = %s AND state = 'retrying'"
    "   AND NOT EXISTS (SELECT FROM eventstore.subscriptions AS s"
    "     WHERE s.tenant = p.tenant AND s.name = p.subscription AND s.partition = 0"
    "       AND s.paused_at IS NOT NULL)"
)

EVENT: Final = (
    f"SELECT {', '.join(StoredEvent._fields)} FROM eventstore.log"  # noqa: S608
    " WHERE tenant = %s AND global_position = %s"
)

# events parked because their type or version was undeclared
UNKNOWN: Final = (
    "SELECT stream, global_position FROM eventstore.parked_events"
    " WHERE tenant = %s AND subscription = %s AND state = 'parked' AND error_code = %s"
    "   AND eventstore.partition_of(tenant, stream, %s) = ANY (%s)"
)
RETRY: Final = "SELECT eventstore.retry_parked(%s, %s, %s)"

DELIVERED: Final = (
    "DELETE FROM eventstore.parked_events"
    " WHERE tenant = %s AND subscription = %s AND stream = %s AND global_position = %s"
)
PROMOTE: Final = "SELECT eventstore.promote_parked(%s, %s, %s)"

FAILED_AGAIN: Final = (
    "UPDATE eventstore.parked_events"
    "   SET state = CASE WHEN %(wait_s)s::double precision IS NULL THEN 'parked'"
    "           ELSE 'retrying' END,"
    "       retry_at = clock_timestamp() + %(wait_s)s * interval '1 second',"
    "       attempts = %(attempts)s, error_code = %(error_code)s, error_type = %(error_type)s,"
    "       error_location = %(error_location)s"
    " WHERE tenant = %(tenant)s AND subscription = %(name)s AND stream = %(stream)s"
    "   AND global_position = %(global_position)s AND state = 'retrying'"
)


class Range(NamedTuple):
    """The next page to read.

    Attributes:
        tenant: Tenant of the events.
        query: Query that the events match.
        after: Only global positions greater than this.
        through: Only global positions up to this one.
        limit: Maximum size of the page, which includes events of other partitions.
        partitions: Number of partitions.
        wanted: Partitions whose events are returned.
        earlier: Checkpoints of former partitionings; events that these have passed are omitted.
    """

    tenant: str
    query: Query
    after: int
    through: int
    limit: int
    partitions: int
    wanted: Sequence[int]
    earlier: Any


def read(part: Range) -> Statement:
    """Returns the statement for a page: rows of last, size, partition and the event.

    Events of other partitions are not returned. `last` and `size` describe the whole page; if no
    event is returned, they come in one row without an event.
    """
    page = statement.read_log(
        part.tenant,
        LogPart(query=part.query),
        after=part.after,
        through=part.through,
        limit=part.limit,
    )
    wanted = ["own.partition = ANY (%s)"]
    values: list[Any] = [list(part.wanted)]
    if part.earlier is not None:
        wanted.append(
            "NOT eventstore.delivered_before(%s, own.tenant, own.stream, own.global_position)"
        )
        values.append(Json(part.earlier))
    sql = (
        f"WITH page AS MATERIALIZED ({page.sql})"  # noqa: S608
        " SELECT bounds.last, bounds.size, own.*"
        " FROM (SELECT max(global_position) AS last, count(*) AS size FROM page) AS bounds"
        " LEFT JOIN (SELECT eventstore.partition_of(tenant, stream, %s) AS partition, page.*"
        f"             FROM page) AS own ON {' AND '.join(wanted)}"
        " ORDER BY own.global_position"
    )
    return Statement(sql, [*page.parameters, part.partitions, *values])
