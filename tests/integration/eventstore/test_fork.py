"""A store that a module makes, and processes that are forked from there (gunicorn --preload)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress

import pytest

from eventstore.errors import StoreUnavailableError
from eventstore.model.event import AppendRequest, StreamAppend
from eventstore.postgres import answer
from tests.fix_subscription import new_event

pytestmark = pytest.mark.integration

PREAMBLE = """
import json, os, sys, threading, time
from datetime import UTC, datetime
from uuid import uuid4
from eventstore.model.event import AppendRequest, NewEvent, StreamAppend
from eventstore.privacy.master_key import new_master_keys
from eventstore.postgres.keyring import PostgresKeyRing
from eventstore.postgres.log import PostgresEventLog

log = PostgresEventLog(sys.argv[1], page=2)
ring = PostgresKeyRing(sys.argv[1], new_master_keys("k"), cache_s=0)

def append(stream):
    event = NewEvent("note.made", b"{}", uuid4(), datetime.now(UTC))
    log.append(AppendRequest((StreamAppend(stream, (event,)),)))

def forked(*works):
    "Runs each work in a child of its own; returns what they say, None for one that hangs."
    children = []
    for work in works:
        receive, send = os.pipe()
        if os.fork() == 0:
            said = work()
            os.write(send, json.dumps(said).encode())
            os._exit(0)
        os.close(send)
        children.append(receive)
    found = []
    for receive in children:
        import select
        ready, _, _ = select.select([receive], [], [], 20)
        said = os.read(receive, 65536) if ready else b""
        found.append(json.loads(said) if said else None)
    return found
"""


def run(dsn: str, body: str) -> object:
    """Runs a program; returns what its last line says."""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PREAMBLE + textwrap.dedent(body), dsn],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        try:
            out, err = program.communicate(timeout=120)
        finally:
            with suppress(ProcessLookupError):  # children that hang
                os.killpg(program.pid, signal.SIGKILL)
    assert 0 == program.returncode, err
    return json.loads(out.splitlines()[-1])


def test_each_child_reads_what_it_asks_for(store_dsn):
    said = run(
        store_dsn,
        """
        streams = [f"order-{n}" for n in range(4)]
        for stream in streams:
            append(stream)
        def reads(stream):
            def work():
                seen = [e.stream for _ in range(100) for e in log.read_stream("default", stream)]
                append(stream)
                return sorted(set(seen)) + [len(seen), log.stream_version("default", stream)]
            return work
        said = forked(*map(reads, streams))
        own = [e.stream for _ in range(100) for e in log.read_stream("default", "order-0")]
        print(json.dumps([said, sorted(set(own)), log.stream_version("default", "order-3")]))
        os._exit(0)
        """,
    )

    assert [[[f"order-{n}", 100, 2] for n in range(4)], ["order-0"], 2] == said


def test_a_child_forked_while_threads_hold_locks_and_connections_goes_on(store_dsn):
    said = run(
        store_dsn,
        """
        append("order-1")
        ring.key_of("default", "ada", create=True)
        stop = threading.Event()
        def busy():
            while not stop.is_set():
                log.high_water_mark()
                list(log.read_stream("default", "order-1"))
        threads = [threading.Thread(target=busy, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        held = [log._mark._lock, ring._lock]
        for lock in held:
            lock.acquire()
        def work():
            key = ring.key_of("default", "ada")
            return [log.high_water_mark(), len(list(log.read_log("default"))), key is not None]
        works = [work] * 6
        children = []
        threading.Timer(1, lambda: [lock.release() for lock in held]).start()
        said = forked(*works)
        stop.set()
        print(json.dumps(said))
        os._exit(0)
        """,
    )

    assert [[1, 1, True]] * 6 == said


def test_a_read_of_the_log_that_was_under_way_goes_on_in_the_child(store_dsn):
    said = run(
        store_dsn,
        """
        for n in range(9):
            append(f"order-{n}")
        reading = log.read_log("default")
        first = [next(reading).global_position]
        said = forked(lambda: [e.global_position for e in reading])
        rest = [e.global_position for e in reading]
        print(json.dumps([first, rest, said]))
        os._exit(0)
        """,
    )

    assert [[1], list(range(2, 10)), [list(range(2, 10))]] == said


def test_a_child_that_closes_its_store_leaves_the_parent_s_alone(store_dsn):
    said = run(
        store_dsn,
        """
        append("order-1")
        import psycopg
        def sessions():
            with psycopg.connect(sys.argv[1]) as looking:
                return {pid for (pid,) in looking.execute(
                    "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
                    " AND application_name = 'headwater eventstore'")}
        before = sessions()
        def work():
            log.close()
            import gc; gc.collect()
            return "closed"
        said = forked(work)
        append("order-2")
        print(json.dumps([said, len(before) > 0, before <= sessions()]))
        os._exit(0)
        """,
    )

    assert [["closed"], True, True] == said


def test_a_child_leaves_the_alarm_of_its_parent_s_runner_alone():
    program = """
        import os, time
        from eventstore.subscription.alarm import Alarm
        alarm = Alarm()
        alarm.open()
        if os.fork() == 0:
            alarm.ring()
            os._exit(0)
        os.wait()
        began = time.monotonic()
        alarm.wait(0.3)
        print(time.monotonic() - began)
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert float(done.stdout) > 0.29


def test_events_that_were_not_asked_for_are_refused(pg_log):
    for stream in ("order-1", "order-2"):
        pg_log.append(AppendRequest((StreamAppend(stream, (new_event(),)),)))
    one, two = pg_log.read_log("default")

    with pytest.raises(StoreUnavailableError, match="another query"):
        answer.of_stream([one], "default", "order-2")
    with pytest.raises(StoreUnavailableError, match="another query"):
        answer.of_tenant([one, two], "acme")
    with pytest.raises(StoreUnavailableError, match="another query"):
        answer.of_range([one, two], "default", 1, 2)
    assert [two] == answer.of_range([two], None, 1, 2)
