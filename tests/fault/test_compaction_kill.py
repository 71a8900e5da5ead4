"""A compaction killed between any two of its messages to the server leaves old or new."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import psycopg
import pytest

from eventstore.postgres.audit import PostgresAudit

if TYPE_CHECKING:
    from eventstore.model.event import StoredEvent
    from eventstore.postgres.log import PostgresEventLog

pytestmark = [pytest.mark.integration, pytest.mark.fault]

EVENTS: Final = 12
THROUGH: Final = 9
DIES_AT_MOST: Final = 200

CHILD: Final = """
import os, signal, sys
from dataclasses import dataclass
import psycopg
from eventstore.serialization.codec import Codec
from eventstore.upkeep.compaction import StreamFold
from eventstore.deciding.decider import Decider
from eventstore.postgres.compaction import PostgresCompactor
from eventstore.serialization.registry import EventTypes

dsn, left = sys.argv[1], int(sys.argv[2])
types = EventTypes()

@types.event("counter.added")
@dataclass(frozen=True)
class Added:
    number: int

wait = psycopg.Connection.wait

def counted(self, *args, **kwargs):
    # each call sends something and takes the answer; half of the deaths come after the answer
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    answer = wait(self, *args, **kwargs)
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer

psycopg.Connection.wait = counted
decider = Decider(
    category="counter", decide=lambda command, state: None,
    evolve=lambda state, event: state * 2 + event.number,
    initial_state=int, commands=(), stream_id=str,
)
PostgresCompactor(dsn, events_max=5).compact(StreamFold(decider, Codec(types)), "counter-1", 9)
"""


def compact(dsn: str, dies_at: int) -> int:
    """Exit code of a process that compacts and dies at its n-th step; 0 if it got to the end."""
    child = subprocess.run(
        [sys.executable, "-c", CHILD, dsn, str(dies_at)], check=False, timeout=60
    )
    return child.returncode


def rows(log: PostgresEventLog) -> list[tuple[int, str, bytes]]:
    return [
        (row.stream_position, row.type, row.data) for row in log.read_stream("default", "counter-1")
    ]


def originals(log: PostgresEventLog) -> list[StoredEvent]:
    return list(log.read_log(None))


def test_killed_anywhere_the_stream_is_as_before_or_after_a_step_and_a_rerun_ends_it(
    pg_log: PostgresEventLog, store_dsn: str
) -> None:
    with psycopg.connect(store_dsn) as connection:
        connection.execute(
            "INSERT INTO eventstore.events (global_position, tenant, stream, stream_position, type,"
            " schema_version, event_id, data, occurred_at)"
            " SELECT nextval('eventstore.global_position'), 'default', 'counter-1', n,"
            " 'counter.added', 1, gen_random_uuid(), format('{\"number\":%%s}', n)::json, now()"
            " FROM generate_series(1, %s::bigint) AS n",
            (EVENTS,),
        )
    audit = PostgresAudit(store_dsn)
    head = audit.seal()
    before, everything = rows(pg_log), originals(pg_log)
    seen = []

    dies_at, code = 0, -signal.SIGKILL
    while code == -signal.SIGKILL:
        dies_at += 1
        assert dies_at < DIES_AT_MOST
        # each death a step later than the last one, on what that one left
        code = compact(store_dsn, dies_at)
        now = rows(pg_log)
        assert everything == originals(pg_log)
        assert now[0][0] in {1, 5, THROUGH}
        assert before[now[0][0] :] == now[1:]
        seen.append(now[0][0])

    assert 0 == code
    assert {1, 5, THROUGH} == set(seen)
    assert seen == sorted(seen)
    state = 0
    for number in range(1, THROUGH + 1):
        state = state * 2 + number
    assert f'"state":{state}'.encode() in rows(pg_log)[0][2]
    assert audit.verify(head).clean
