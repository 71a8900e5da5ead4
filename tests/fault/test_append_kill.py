"""32 writers, clients and backends killed while they append; then everything is accounted for.

Run as a program, this file is one client with four writers that notes each intent before it asks
and each answer after it got one.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from eventstore.errors import (
    EventStoreError,
    ResultUnknownError,
    StoreUnavailableError,
    WrongExpectedVersionError,
)
from eventstore.log import StreamPart
from eventstore.model.event import AppendRequest, Idempotency, NewEvent, StreamAppend, digest_of
from eventstore.model.expected_version import ANY
from eventstore.postgres.log import PostgresEventLog
from tests.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.fault]

CLIENTS, WRITERS, STREAMS = 8, 4, 25
ANSWERS_MIN, KILLS = 3_000, 5
# where a client kills itself, amid an append of its own
INTENDED, APPENDED = "intended", "appended"
ENDS_AFTER = 10
DEADLINE_S = 90.0


def request_of(intent: dict[str, object]) -> AppendRequest:
    """The append that an intent stands for: the same payload each time, other event ids."""
    events = tuple(
        NewEvent("note.made", json.dumps(intent["key"]).encode(), uuid4(), datetime.now(UTC))
        for _ in range(int(str(intent["count"])))
    )
    append = StreamAppend(str(intent["stream"]), events, int(str(intent["expected"])))
    key = Idempotency(str(intent["key"]), digest_of(AppendRequest((append,))))
    return AppendRequest((append,), idempotency=key)


def write(dsn: str, notes: Path, seed: int, end: str = "") -> None:
    """One writer: appends until it is killed, or kills its process at a point of its own."""
    rng = random.Random(seed)  # noqa: S311  # repeatable, not secret
    log = PostgresEventLog(dsn, connections_max=1)
    with notes.open("w", buffering=1) as note:
        for number in range(1_000_000):
            stream = f"note-{rng.randrange(STREAMS)}"
            expected = ANY if rng.random() < 0.3 else log.stream_version("default", stream)
            intent = {
                "key": f"{seed}-{number}",
                "stream": stream,
                "expected": expected,
                "count": rng.randint(1, 3),
            }
            note.write(json.dumps({"intent": intent}) + "\n")
            if end == INTENDED and number >= ENDS_AFTER:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                done = log.append(request_of(intent))
            except WrongExpectedVersionError:
                note.write(json.dumps({"refused": intent["key"]}) + "\n")
            except (ResultUnknownError, StoreUnavailableError):
                note.write(json.dumps({"unknown": intent["key"]}) + "\n")
            else:
                if end == APPENDED and number >= ENDS_AFTER:
                    os.kill(os.getpid(), signal.SIGKILL)
                answer = [done.version, done.token.global_position]
                note.write(json.dumps({"ok": intent["key"], "answer": answer}) + "\n")


def client(dsn: str, folder: Path, number: int, end: str) -> None:
    """One process of several writers; a writer whose connection was cut goes on."""
    threads = [
        threading.Thread(target=keep_writing, args=(dsn, folder, number * WRITERS + place, end))
        for place in range(WRITERS)
    ]
    for thread in threads:
        thread.start()


def keep_writing(dsn: str, folder: Path, seed: int, end: str) -> None:
    for life in range(1_000):
        try:
            write(dsn, folder / f"{seed}.{life}.jsonl", seed * 1_000 + life, end)
        except EventStoreError:
            continue


@pytest.fixture
def clients(store_dsn, tmp_path):
    ends = {0: INTENDED, 1: APPENDED}
    started = [start(store_dsn, tmp_path, n, ends.get(n, "")) for n in range(CLIENTS)]
    yield started
    for process in started:
        process.kill()
        process.wait(10)


def start(dsn: str, folder: Path, number: int, end: str = "") -> subprocess.Popen[bytes]:
    command = [sys.executable, str(Path(__file__)), dsn, str(folder), str(number), end]
    return subprocess.Popen(command, cwd=Path(__file__).resolve().parents[2])


def notes_in(folder: Path) -> list[dict[str, object]]:
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:  # cut off by the kill: an intent that was never sent
                continue
    return found


def until_answers(folder: Path, at_least: int) -> None:
    wait_until(
        lambda: sum("ok" in note for note in notes_in(folder)),
        f"{at_least} answers",
        accept=lambda count: count >= at_least,
        timeout_s=DEADLINE_S,
        pause_s=0.2,
    )


def test_32_writers_whose_clients_and_backends_are_killed(
    store_dsn, tmp_path, clients, pg_log, rotation
):
    rng = random.Random(rotation.seed)  # noqa: S311  # repeatable, not secret
    for number in (0, 1):
        assert -signal.SIGKILL == clients[number].wait(DEADLINE_S)
        clients[number] = start(store_dsn, tmp_path, 100 + number)
    kills = len(rotation.of(range(KILLS)))
    answers_min = ANSWERS_MIN * kills // KILLS
    for kill in range(kills):
        until_answers(tmp_path, answers_min * (kill + 1) // (kills + 1))
        victim = rng.randrange(CLIENTS)
        clients[victim].kill()
        clients[victim].wait(10)
        cut_backends(store_dsn, count=6)
        clients[victim] = start(store_dsn, tmp_path, CLIENTS * (kill + 1) + victim)
    until_answers(tmp_path, answers_min)
    for process in clients:
        process.kill()
        process.wait(10)
    wait_for_silence(store_dsn)
    notes = notes_in(tmp_path)
    intents = {str(n["intent"]["key"]): n["intent"] for n in notes if "intent" in n}
    answers = {str(n["ok"]): n["answer"] for n in notes if "ok" in n}
    refused = {str(n["refused"]) for n in notes if "refused" in n}
    written = written_by_key(pg_log)

    assert {} == {k: v for k, v in written.items() if v != [intents[k]["count"]] * len(v)}
    assert answers_min <= len(answers)
    assert set() == answers.keys() - written.keys()
    assert set() == refused & written.keys()
    assert [] == broken_streams(pg_log)
    assert_answers_hold(pg_log, intents, answers)
    assert_unknown_ones_get_one_answer(pg_log, intents, written, answers.keys() | refused)


def cut_backends(dsn: str, count: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity"
            " WHERE datname = current_database() AND query LIKE '%%eventstore.append%%'"
            " AND pid <> pg_backend_pid() ORDER BY random() LIMIT %s) AS found",
            [count],
        )


def wait_for_silence(dsn: str) -> None:
    """Until the server has noticed that all the clients are gone."""
    with psycopg.connect(dsn, autocommit=True) as admin:

        def silent() -> bool:
            appending = admin.execute(
                "SELECT FROM pg_stat_activity WHERE datname = current_database()"
                " AND query LIKE '%%append(%%' AND state <> 'idle' AND pid <> pg_backend_pid()"
            ).fetchone()
            under_way = admin.execute("SELECT FROM eventstore.writers_under_way").fetchone()
            return appending is None and under_way is None

        wait_until(silent, "no backend of a dead client", timeout_s=DEADLINE_S)


def written_by_key(log: PostgresEventLog) -> dict[str, list[int]]:
    """How many events each key has written, as a list so that two batches would be seen."""
    counts = Counter(json.loads(event.data) for event in log.read_log("default"))
    return {key: [count] for key, count in counts.items()}


def broken_streams(log: PostgresEventLog) -> list[str]:
    broken = []
    for number in range(STREAMS):
        events = list(log.read_stream("default", f"note-{number}"))
        places = [event.stream_position for event in events]
        order = [event.global_position for event in events]
        if places != list(range(1, len(events) + 1)) or order != sorted(order):
            broken.append(f"note-{number}")
    return broken


def assert_answers_hold(log: PostgresEventLog, intents: dict, answers: dict) -> None:
    for key, (version, position) in answers.items():
        part = StreamPart(after=version - 1, through=version)
        (event,) = log.read_stream("default", intents[key]["stream"], part)

        assert (key, position) == (json.loads(event.data), event.global_position)


def assert_unknown_ones_get_one_answer(
    log: PostgresEventLog, intents: dict, written: dict, known: set[str]
) -> None:
    """Whoever asks again with the same key gets the first answer, or the append now."""
    unknown = intents.keys() - known

    assert {True, False} == {key in written for key in unknown}

    for key in sorted(unknown):
        try:
            done = log.append(request_of(intents[key]))
        except WrongExpectedVersionError:
            assert key not in written
        else:
            assert done.repeated == (key in written)
            assert done.versions == log.append(request_of(intents[key])).versions


if __name__ == "__main__":
    client(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
