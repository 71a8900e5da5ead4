"""`headwater db` and `headwater events` on a real database, as a person or a program calls them."""

from __future__ import annotations

import io
import json
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psycopg
import pytest

from eventstore.postgres import schema
from tests.fix_events_command import append
from tests.fix_standby import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
pytestmark = pytest.mark.integration


ROOT = Path(__file__).resolve().parents[4]


REVISIONS = [
    "0001_event_store",
    "0002_failures",
    "0003_locks",
    "0004_tables",
    "0005_mark",
    "0006_reactors",
]


def test_the_schema_is_made_shown_and_dropped(database, cli):
    answers = [
        cli("db", "current", dsn=database)[:2],
        cli("db", "upgrade", dsn=database)[:2],
        cli("db", "upgrade", dsn=database)[:2],
        cli("db", "current", dsn=database)[:2],
        cli("db", "downgrade", "--yes", dsn=database)[:2],
        cli("db", "downgrade", "--yes", dsn=database)[:2],
    ]

    assert [
        (3, "no event store\n"),
        (0, "".join(f"ran {one}\n" for one in REVISIONS)),
        (0, f"nothing to do: the database is at {schema.LATEST}\n"),
        (0, f"{schema.LATEST}\n"),
        (0, "".join(f"took back {one}\n" for one in REVISIONS[::-1])),
        (0, "nothing to do: there is no event store\n"),
    ] == answers


def test_the_state_of_the_schema_is_one_document_for_programs(database, cli):
    before = cli("db", "current", "--json", dsn=database)
    cli("db", "upgrade", dsn=database)
    after = cli("db", "current", "--json", dsn=database)

    assert [(3, False), (0, True)] == [
        (code, json.loads(out)["ready"]) for code, out, _ in (before, after)
    ]


def test_the_sql_of_an_upgrade_is_printed_and_not_run(database, cli):
    code, out, _ = cli("db", "upgrade", "--sql", dsn=database)

    assert 0 == code
    assert "CREATE TABLE eventstore.events" in out
    assert schema.current(database) is None


@pytest.mark.parametrize(
    "words", [("events", "tail"), ("events", "verify"), ("events", "subscriptions")], ids=" ".join
)
def test_without_the_schema_the_repair_is_named(database, cli, words):
    code, out, err = cli(*words, dsn=database)

    assert (3, "") == (code, out)
    assert "HW-E052" in err
    assert "headwater db upgrade" in err


@pytest.fixture
def login(store_dsn: str) -> Iterator[tuple[str, str]]:
    """A role that may do nothing yet, and how it comes in."""
    role, place = f"r_{secrets.token_hex(6)}", urlsplit(store_dsn)
    with psycopg.connect(store_dsn, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    yield role, place._replace(netloc=f"{role}:x@{place.hostname}:{place.port}").geturl()
    with psycopg.connect(store_dsn, autocommit=True) as admin:
        admin.execute(f"DROP OWNED BY {role}")
        admin.execute(f"DROP ROLE {role}")


def test_a_role_uses_the_event_store_after_it_was_granted(cli, login):
    role, dsn = login
    before = cli("events", "append", "order-1", "order.placed", dsn=dsn)
    granted = cli("db", "grant", role)
    again = cli("db", "grant", role)
    after = cli("events", "append", "order-1", "order.placed", dsn=dsn)
    looked = (
        cli("events", "subscriptions", dsn=dsn),
        cli("events", "status", dsn=dsn),
    )

    assert 1 == before[0]
    assert "headwater db grant" in before[2]
    assert (0, granted[1]) == again[:2]
    assert {"eventstore.grant_use", "eventstore_keys.grant_use"} <= set(granted[1].split())
    assert [0, 0, 0] == [after[0], *(code for code, *_ in looked)]


def test_a_role_bound_to_a_tenant_sees_and_writes_no_other(cli, login):
    role, dsn = login
    append(cli, "order-1")
    bound = cli("db", "grant", role, "--tenant", "acme")
    other = cli("db", "grant", role, "--tenant", "umbrella")
    own = cli("events", "append", "order-1", "order.placed", "--tenant", "acme", dsn=dsn)
    foreign = cli("events", "append", "order-1", "order.placed", dsn=dsn)
    seen = cli("events", "tail", "--json", dsn=dsn)

    assert [0, 1, 0] == [bound[0], other[0], own[0]]
    assert "bound to another tenant" in other[2]
    assert 1 == foreign[0]
    assert [] == json.loads(seen[1])


@pytest.mark.parametrize("role", ["postgres", "nobody_at_all"])
def test_a_role_that_nothing_would_hold_or_that_is_not_there_is_not_granted(cli, role):
    code, out, err = cli("db", "grant", role)

    assert (1, "") == (code, out)
    assert "HW-E014" in err


def test_what_is_appended_is_read(cli, cli_rows):
    answer = cli("events", "append", "order-1", "order.placed", '{"total": "9.90"}', "--json")
    append(cli, "order-1", type_="order.shipped", payload='{"ä": [1, null, 1.5]}')
    append(cli, "basket-1", type_="basket.opened")
    found = cli_rows("events", "stream", "order-1")

    assert (0, "order-1", 1, False) == (
        answer[0],
        *(json.loads(answer[1])[name] for name in ("stream", "version", "repeated")),
    )
    assert [
        (1, "order.placed", {"total": "9.90"}),
        (2, "order.shipped", {"ä": [1, None, 1.5]}),
    ] == [(row["stream_position"], row["type"], row["data"]) for row in found]


def test_a_payload_comes_from_stdin(cli, cli_rows, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO('{"from": "stdin"}'))
    append(cli, "order-1", payload="-")

    assert [{"from": "stdin"}] == [row["data"] for row in cli_rows("events", "stream", "order-1")]


def test_an_expected_version_and_a_key_are_kept(cli):
    words = ("events", "append", "order-1", "order.placed", "{}")
    first = cli(*words, "--expected-version", "no-stream", "--key", "k1", "--json")
    repeated = cli(*words, "--expected-version", "no-stream", "--key", "k1", "--json")
    stale = cli(*words, "--expected-version", "0", "--json")
    other = cli("events", "append", "order-1", "order.shipped", "--key", "k1", "--json")

    told = [json.loads(out) for _, out, _ in (first, repeated, stale, other)]
    assert (False, True) == (told[0]["repeated"], told[1]["repeated"])
    assert told[0]["token"] == told[1]["token"]
    assert [(1, "HW-E010"), (1, "HW-E011")] == [
        (code, answer["error"]["code"])
        for (code, *_), answer in zip((stale, other), told[2:], strict=True)
    ]


def test_a_stream_is_read_in_parts(cli, cli_rows):
    append(cli, *["order-1"] * 4)
    between = cli_rows("events", "stream", "order-1")[1]["recorded_at"]

    def positions(*words: str) -> list[int]:
        return [row["stream_position"] for row in cli_rows("events", "stream", "order-1", *words)]

    assert [3, 4] == positions("--after", "2")
    assert [4, 3] == positions("--backwards", "--limit", "2")
    assert [1, 2] == positions("--as-of", between)
    assert [] == cli_rows("events", "stream", "order-2")


def test_the_end_of_the_log_is_read_by_type_category_and_number(cli, cli_rows):
    append(cli, *(f"order-{n}" for n in range(25)))
    append(cli, "basket-1", type_="basket.opened")

    def streams(*words: str) -> list[str]:
        return [row["stream"] for row in cli_rows("events", "tail", *words)]

    assert [*(f"order-{n}" for n in range(6, 25)), "basket-1"] == streams()
    assert ["order-24", "basket-1"] == streams("-n", "2")
    assert ["order-24"] == streams("-n", "1", "--category", "order")
    assert ["basket-1"] == streams("--type", "basket.opened")
    assert 26 == len(streams("--after", "0"))
    assert ["order-0", "order-1"] == streams("--after", "0", "-n", "2")


def test_a_person_reads_one_line_for_each_event(cli):
    append(cli, "order-1", payload='{"a": "[bold]x"}')
    _, out, _ = cli("events", "tail")

    (line,) = out.splitlines()
    assert "order-1@1  order.placed" in line
    assert line.endswith('{"a": "[bold]x"}')


def test_a_follower_sees_what_comes_and_ctrl_c_is_130(cli, store_dsn, tmp_path):
    append(cli, "order-1")
    command = [sys.executable, "-m", "headwater", "events", "tail", "--follow", "--json"]
    with subprocess.Popen(
        [*command, "--dsn", store_dsn],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as follower:
        assert follower.stdout is not None
        seen = [json.loads(follower.stdout.readline())["stream"]]
        append(cli, "order-2")
        seen.append(json.loads(follower.stdout.readline())["stream"])
        follower.send_signal(signal.SIGINT)
        _, said = follower.communicate(timeout=60)

    assert (["order-1", "order-2"], 130) == (seen, follower.returncode)
    assert "Traceback" not in said


def test_a_follower_ends_after_as_many_as_were_asked_for(cli, cli_rows):
    append(cli, "order-1", "order-2", "order-3")
    code, out, _ = cli("events", "tail", "--follow", "--json", "--after", "1", "--limit", "2")

    assert 0 == code
    assert ["order-2", "order-3"] == [json.loads(line)["stream"] for line in out.splitlines()]


def test_the_status_names_the_writer_that_holds_the_mark(cli, store_dsn):
    append(cli, "order-1")
    with psycopg.connect(store_dsn, application_name="slow") as writer:
        writer.execute("SELECT eventstore.hold_mark(), nextval('eventstore.global_position')")
        _, out, _ = cli("events", "status", "--json")
        code, shown, _ = cli("events", "status")

    found = json.loads(out)
    assert (2, 1, 1) == (found["head"], found["mark"], found["distance"])
    assert ["slow"] == [row["application_name"] for row in found["writers"]]
    assert (0, True) == (code, "slow" in shown)


def test_the_status_names_a_prepared_transaction_and_how_to_end_it(cli, store_dsn):
    end = "PREPARED 'left ''open'''"
    with psycopg.connect(store_dsn) as writer:
        writer.execute(
            "SELECT eventstore.append_event('default', 'order-1', -1, 'order.placed', 1::smallint,"
            " gen_random_uuid(), '{}', NULL, now(), NULL, NULL, NULL)"
        )
        writer.execute("PREPARE TRANSACTION 'left ''open'''")
    with psycopg.connect(store_dsn, autocommit=True) as admin:
        try:
            _, out, _ = cli("events", "status", "--json")
            (found,) = json.loads(out)["writers"]
            printed = cli("events", "status")[1]
        finally:
            admin.execute("ROLLBACK PREPARED 'left ''open'''")
    _, after, _ = cli("events", "status", "--json")

    assert ("left 'open'", "prepared", None) == (found["gid"], found["state"], found["pid"])
    assert found["role"] == urlsplit(store_dsn).username
    assert 0 <= found["age_s"] < 300
    assert f"COMMIT {end} or ROLLBACK {end}" == found["command"]
    assert "left 'open'" in printed
    assert [] == json.loads(after)["writers"]


def test_a_standby_is_named_as_such_by_every_command_that_cannot_work_there(cli, clusters):
    primary = clusters.start()
    schema.upgrade(primary.dsn())
    cli("events", "append", "order-1", "order.placed", dsn=primary.dsn())
    standby = clusters.join(primary.standby(clusters.folder("standby"), free_port()))
    answers = [cli("events", *words, dsn=standby.dsn()) for words in (("status",), ("tail",))]
    append_there = cli("events", "append", "order-1", "order.placed", dsn=standby.dsn())

    for code, out, err in answers:
        assert (1, "") == (code, out)
        assert "HW-E054" in err
        assert "read the log at the primary" in err
    assert "HW-E054" in append_there[2]
    assert "target_session_attrs" in append_there[2]


def test_a_transaction_that_was_prepared_before_a_restart_is_named(cli, clusters):
    primary = clusters.start()
    schema.upgrade(primary.dsn())
    with psycopg.connect(primary.dsn()) as writer:
        writer.execute("SELECT eventstore.hold_mark(), nextval('eventstore.global_position')")
        writer.execute("CREATE TABLE written (id int)")
        writer.execute("PREPARE TRANSACTION 'old'")
    primary.stop()
    primary.start()
    _, out, _ = cli("events", "status", "--json", dsn=primary.dsn())

    assert [("old", "prepared")] == [(w["gid"], w["state"]) for w in json.loads(out)["writers"]]


def test_an_edited_event_is_found_and_a_cut_log_too(cli, store_dsn, tmp_path):
    head = tmp_path / "head"
    append(cli, "order-1", "order-2", "order-3")
    sealed = cli("events", "seal", "--head", str(head))
    genuine = cli("events", "verify", "--head", str(head), "--json")
    with psycopg.connect(store_dsn) as connection:
        connection.execute("ALTER TABLE eventstore.events DISABLE TRIGGER USER")
        connection.execute("UPDATE eventstore.events SET actor = 'x' WHERE global_position = 2")
    edited = cli("events", "verify", "--json")
    told = cli("events", "verify")
    with psycopg.connect(store_dsn) as connection:
        connection.execute("ALTER TABLE eventstore.seals DISABLE TRIGGER USER")
        connection.execute("DELETE FROM eventstore.seals")
    cut = cli("events", "verify", "--head", str(head), "--json")
    kept = cli("events", "seal", "--head", str(head))

    assert (0, head.read_text()) == sealed[:2]
    assert (0, True) == (genuine[0], json.loads(genuine[1])["genuine"])
    assert (3, 2) == (edited[0], json.loads(edited[1])["findings"][0]["position"])
    assert 3 == told[0]
    assert "changed at global position 2" in told[2]
    assert 3 == cut[0]
    # new seals over the edited log do not take the place of the proof
    assert (3, sealed[1]) == (kept[0], head.read_text())


def test_the_event_store_alone_works_from_its_wheel(installed, database, tmp_path):
    """Base dependencies only: schema, grants, appends, reads, seals."""
    answers = [
        installed.headwater(*words, "--dsn", database, cwd=tmp_path)
        for words in (
            ("db", "upgrade"),
            ("db", "current"),
            ("events", "append", "order-1", "order.placed", '{"a": 1}'),
            ("events", "tail", "--json"),
            ("events", "seal"),
            ("events", "verify"),
            ("events", "status"),
            ("db", "downgrade", "--yes"),
        )
    ]

    assert [(0, "")] * len(answers) == [
        (a.returncode, a.stderr.replace("no writer is under way\n", "")) for a in answers
    ]
    assert [{"a": 1}] == [row["data"] for row in json.loads(answers[3].stdout)]
