"""The tables of alerts: episodes of rows, and messages to send.

A change of a row's state is recorded in one transaction with its messages, so a killed process has
recorded both or neither. A message is deleted only once its channel has accepted it, and is sent
again under the same id if that is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson
from psycopg.types.json import Jsonb

from foundation.advisory_lock import AdvisoryLock
from projections.alerting.episode import Episode, EpisodeState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from datetime import datetime, timedelta

    import psycopg

    from cdc.lsn import Lsn
    from projections.alerting.episode import EpisodeStep
    from projections.definition.alert import Alert

    Connection = psycopg.Connection[Any]

CONDITION: Final = "condition"
"""Stands for a channel in a record that a condition cannot be evaluated."""

EVALUATION_LOCK: Final = AdvisoryLock.named("headwater.alerts")
DISPATCH_LOCK: Final = AdvisoryLock.named("headwater.alert_messages")
_AT_ROWS: Final = AdvisoryLock.named("headwater.alert_rows")
_WITHHOLD: Final = """
UPDATE headwater.alert_messages AS m
   SET body = convert_to((b.document || '{"row": null}')::text, 'UTF8')
  FROM (SELECT number, convert_from(body, 'UTF8')::jsonb AS document
          FROM headwater.alert_messages WHERE source = %s) AS b
 WHERE b.number = m.number AND b.document ->> 'row' IS NOT NULL
"""
_VACUUM: Final = "VACUUM headwater.alert_messages"
_NOW: Final = "SELECT clock_timestamp()"
_KNOWN: Final = (
    "SELECT key, state, since, ended, until FROM headwater.alert_episodes"
    " WHERE source = %s AND alert = %s"
)
_KEEP: Final = """
INSERT INTO headwater.alert_episodes AS e (source, alert, key, columns, state, since, ended, until)
VALUES (%(source)s, %(alert)s, %(key)s, %(columns)s, %(state)s, %(since)s, %(ended)s, %(until)s)
ON CONFLICT (source, alert, key) DO UPDATE
   SET state = excluded.state, since = excluded.since, ended = excluded.ended,
       until = excluded.until
RETURNING number, columns
"""
_FORGET: Final = (
    "DELETE FROM headwater.alert_episodes WHERE source = %(source)s AND alert = %(alert)s"
    " AND key = %(key)s RETURNING number, columns"
)
_QUEUE: Final = """
INSERT INTO headwater.alert_messages (source, alert, key, channel, id, body)
SELECT %(source)s, %(alert)s, %(key)s, channel, %(id)s, %(body)s
  FROM unnest(%(channels)s::text[]) AS channel
"""
# messages about one row are sent in order
_DUE: Final = """
SELECT number, alert, key, channel, id, body, attempts FROM headwater.alert_messages AS m
 WHERE source = %s AND next_at <= clock_timestamp() AND channel = ANY (%s)
   AND NOT EXISTS (
       SELECT FROM headwater.alert_messages AS e WHERE e.source = m.source AND e.alert = m.alert
          AND e.key = m.key AND e.channel = m.channel AND e.number < m.number)
 ORDER BY number LIMIT 100
"""
_DELETE: Final = "DELETE FROM headwater.alert_messages WHERE number = %s"
_FAILED: Final = """
UPDATE headwater.alert_messages
   SET attempts = attempts + 1, next_at = clock_timestamp() + %s, code = %s WHERE number = %s
"""
_RETIRE_MESSAGES: Final = (
    "DELETE FROM headwater.alert_messages WHERE source = %s"
    " AND NOT (alert || ' ' || channel = ANY (%s))"
)
_RETIRE_EPISODES: Final = (
    "DELETE FROM headwater.alert_episodes WHERE source = %s AND NOT (alert = ANY (%s))"
)
_ROW_STATES: Final = """
SELECT alert, key, state, since FROM headwater.alert_episodes WHERE source = %s
 ORDER BY alert, since, key
"""
_PENDING: Final = """
SELECT alert, channel, count(*) FILTER (WHERE next_at < 'infinity'), max(attempts), min(made_at),
       max(code)
  FROM headwater.alert_messages WHERE source = %s GROUP BY alert, channel ORDER BY alert, channel
"""
# a message without a channel, which is never sent
_SET_PAUSED: Final = """
INSERT INTO headwater.alert_messages AS m (source, alert, key, channel, id, body, code, next_at)
VALUES (%(source)s, %(alert)s, '', %(channel)s, %(alert)s, '{}', %(why)s, 'infinity')
ON CONFLICT (source, channel, id) DO UPDATE SET code = excluded.code WHERE m.code <> excluded.code
"""
_CLEAR_PAUSED: Final = (
    "DELETE FROM headwater.alert_messages"
    " WHERE source = %(source)s AND channel = %(channel)s AND id = %(alert)s"
)


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A message for one channel.

    Attributes:
        number: Its number in the table.
        alert: Name of the alert.
        key: Text of the row's key.
        channel: Name of the channel.
        id: The message's id.
        body: The message, as JSON.
        attempts: Number of failed attempts.
    """

    number: int
    alert: str
    key: str
    channel: str
    id: str
    body: bytes
    attempts: int


@dataclass(frozen=True, slots=True)
class AlertRowState:
    """The recorded state of a row that meets an alert's condition, or met it until recently.

    Attributes:
        alert: Name of the alert.
        key: Text of the row's key.
        state: The state of its episode.
        since: When it was first seen to meet the condition.
    """

    alert: str
    key: str
    state: EpisodeState
    since: datetime


@dataclass(frozen=True, slots=True)
class PendingMessages:
    """Messages that a channel has not accepted yet, or an alert that is not evaluated.

    Attributes:
        alert: Name of the alert.
        channel: Name of the channel, or `CONDITION`.
        messages: Number of messages; 0 for `CONDITION`.
        attempts: Greatest number of attempts for one message.
        since: When the oldest was created.
        code: Why the last attempt failed; None if there was none.
    """

    alert: str
    channel: str
    messages: int
    attempts: int
    since: datetime
    code: str | None


def try_reserve(connection: Connection, source: str, lock: AdvisoryLock) -> bool:
    """Acquires the lock for this session; returns False if another session holds it.

    Args:
        connection: To the source.
        source: Its name.
        lock: `EVALUATION_LOCK` or `DISPATCH_LOCK`.
    """
    row = connection.execute(lock.in_session_if_free, (source,)).fetchone()
    return bool(row and row[0])


def now(connection: Connection) -> datetime:
    """Returns the time of the source: episodes have no other clock."""
    row: Any = connection.execute(_NOW).fetchone()
    source_time: datetime = row[0]
    return source_time


def begin_evaluation(connection: Connection, source: str) -> None:
    """Begins an evaluation in the current transaction; see `withhold`."""
    connection.execute(_AT_ROWS.in_transaction_shared, (source,))


def withhold(connection: Connection, source: str) -> int:
    """Removes the rows from all pending messages; returns how many had one.

    It waits for running evaluations, whose rows are removed as well; later evaluations read the
    view as published after that.
    """
    with connection.transaction():
        connection.execute(_AT_ROWS.in_transaction, (source,))
        withheld = connection.execute(_WITHHOLD, (source,)).rowcount
    connection.execute(_VACUUM)  # otherwise they stay in the table's file until it is reused
    return withheld


def known(connection: Connection, source: str, alert: str) -> dict[str, Episode]:
    """Returns the states of an alert's rows, by key."""
    rows = connection.execute(_KNOWN, (source, alert)).fetchall()
    return {key: Episode(EpisodeState(state), *times) for key, state, *times in rows}


@dataclass(frozen=True, slots=True)
class AlertRecorder:
    """Records the states of an alert's rows.

    Attributes:
        source: Name of the source.
        alert: The alert.
        columns: Columns of the view's key.
        position: The boundary at which the view was read.
        rows: Rows that meet the condition, by key.
        at: The time.
    """

    source: str
    alert: Alert
    columns: tuple[str, ...]
    position: Lsn
    rows: Mapping[str, Mapping[str, Any]]
    at: datetime

    def note(self, connection: Connection, step: EpisodeStep, before: Episode | None) -> None:
        """Records a state change and its messages, in the current transaction."""
        names: dict[str, Any] = {"source": self.source, "alert": self.alert.name, "key": step.key}
        episode = step.episode
        if episode is None:
            recorded = connection.execute(_FORGET, names).fetchone()
        else:
            row = self.rows.get(step.key, {})
            values = {
                "state": episode.state,
                "since": episode.since,
                "ended": episode.ended,
                "until": episode.until,
                # a known row's messages stay unchanged
                "columns": Jsonb({name: row.get(name) for name in self.columns}),
            }
            recorded = connection.execute(_KEEP, names | values).fetchone()
        if step.event is None or recorded is None:
            return
        number, columns = recorded
        since = self.at if before is None else before.since
        message_id = f"{self.source}.{self.alert.name}.{number}.{step.event}"
        body = {
            "id": message_id,
            "alert": self.alert.name,
            "event": step.event,
            "view": self.alert.view,
            "key": columns,
            "since": since,
            "at": self.at,
            "position": str(self.position),
            "row": self.rows.get(step.key),
        }
        channels = [each.name for each in self.alert.to]
        written = orjson.dumps(body, option=orjson.OPT_UTC_Z)
        queued = {"id": message_id, "body": written, "channels": channels}
        connection.execute(_QUEUE, names | queued)


def due(connection: Connection, source: str, channels: Collection[str]) -> list[QueuedMessage]:
    """Returns messages that can be sent now; only the first for each row and channel.

    Args:
        connection: To the source.
        source: Its name.
        channels: Names of the channels that accept messages.
    """
    rows = connection.execute(_DUE, (source, list(channels))).fetchall()
    return [QueuedMessage(*row) for row in rows]


def delete_accepted(connection: Connection, message: QueuedMessage) -> None:
    """Deletes a message that its channel has accepted."""
    connection.execute(_DELETE, (message.number,))


def record_failure(
    connection: Connection, message: QueuedMessage, code: str, again_in: timedelta
) -> None:
    """Records why a channel has not accepted a message, and when to retry."""
    connection.execute(_FAILED, (again_in, code, message.number))


def retire(connection: Connection, source: str, alerts: Collection[Alert]) -> None:
    """Deletes episodes and messages of alerts and channels that are no longer declared."""
    channels = [f"{each.name} {channel.name}" for each in alerts for channel in each.to]
    channels += [f"{each.name} {CONDITION}" for each in alerts]
    connection.execute(_RETIRE_MESSAGES, (source, channels))
    connection.execute(_RETIRE_EPISODES, (source, [each.name for each in alerts]))


def set_paused(connection: Connection, source: str, alert: str, why: str) -> None:
    """Records why an alert is paused, for `alert list`; clears it if `why` is empty.

    Args:
        connection: To the source.
        source: Its name.
        alert: Name of the alert.
        why: The cause, without values of rows; empty to clear it.
    """
    names = {"source": source, "alert": alert, "channel": CONDITION, "why": why}
    connection.execute(_SET_PAUSED if why else _CLEAR_PAUSED, names)


def row_states(connection: Connection, source: str) -> Iterator[AlertRowState]:
    """Yields the rows with a recorded state."""
    for alert, key, state, since in connection.execute(_ROW_STATES, (source,)).fetchall():
        yield AlertRowState(alert, key, EpisodeState(state), since)


def pending_messages(connection: Connection, source: str) -> list[PendingMessages]:
    """Returns the unsent messages, by alert and channel."""
    return [PendingMessages(*row) for row in connection.execute(_PENDING, (source,)).fetchall()]
