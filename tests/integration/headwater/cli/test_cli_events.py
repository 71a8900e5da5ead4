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
from fix_standby import free_port

from eventstore.postgres import schema
from eventstore.privacy.master_key import master_key_line, new_master_keys
from eventstore.serialization.registry import declared
from headwater.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


@pytest.fixture
def run(
    store_dsn: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[int, str, str]]:
    """Runs one command line on the event store, in a folder of its own.

    What other tests have declared in this process is not what a command's process would know.
    """
    monkeypatch.chdir(tmp_path)
    for known in ("_by_name", "_by_class", "_upcasters"):
        monkeypatch.setattr(declared, known, {})

    def run_words(*words: str, dsn: str = store_dsn) -> tuple[int, str, str]:
        code = main([*words, "--dsn", dsn])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_words


@pytest.fixture
def rows(run: Callable) -> Callable[..., list[dict]]:
    def read(*words: str) -> list[dict]:
        code, out, err = run(*words, "--json")
        assert (0, "") == (code, err)
        return json.loads(out)

    return read


def append(run, *streams: str, type_: str = "order.placed", payload: str = "{}") -> None:
    for stream in streams:
        code, _, err = run("events", "append", stream, type_, payload)
        assert (0, "") == (code, err)


def test_the_schema_is_made_shown_and_dropped(database, run):
    answers = [
        run("db", "current", dsn=database)[:2],
        run("db", "upgrade", dsn=database)[:2],
        run("db", "upgrade", dsn=database)[:2],
        run("db", "current", dsn=database)[:2],
        run("db", "downgrade", "--yes", dsn=database)[:2],
        run("db", "downgrade", "--yes", dsn=database)[:2],
    ]

    assert [
        (3, "no event store\n"),
        (0, "".join(f"ran {one}\n" for one in REVISIONS)),
        (0, f"nothing to do: the database is at {schema.LATEST}\n"),
        (0, f"{schema.LATEST}\n"),
        (0, "".join(f"took back {one}\n" for one in REVISIONS[::-1])),
        (0, "nothing to do: there is no event store\n"),
    ] == answers


def test_the_state_of_the_schema_is_one_document_for_programs(database, run):
    before = run("db", "current", "--json", dsn=database)
    run("db", "upgrade", dsn=database)
    after = run("db", "current", "--json", dsn=database)

    assert [(3, False), (0, True)] == [
        (code, json.loads(out)["ready"]) for code, out, _ in (before, after)
    ]


def test_the_sql_of_an_upgrade_is_printed_and_not_run(database, run):
    code, out, _ = run("db", "upgrade", "--sql", dsn=database)

    assert 0 == code
    assert "CREATE TABLE eventstore.events" in out
    assert schema.current(database) is None


@pytest.mark.parametrize(
    "words", [("events", "tail"), ("events", "verify"), ("events", "subscriptions")], ids=" ".join
)
def test_without_the_schema_the_repair_is_named(database, run, words):
    code, out, err = run(*words, dsn=database)

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


def test_a_role_uses_the_event_store_after_it_was_granted(run, login):
    role, dsn = login
    before = run("events", "append", "order-1", "order.placed", dsn=dsn)
    granted = run("db", "grant", role)
    again = run("db", "grant", role)
    after = run("events", "append", "order-1", "order.placed", dsn=dsn)
    looked = run("events", "subscriptions", dsn=dsn), run("events", "status", dsn=dsn)

    assert 1 == before[0]
    assert "headwater db grant" in before[2]
    assert (0, granted[1]) == again[:2]
    assert {"eventstore.grant_use", "eventstore_keys.grant_use"} <= set(granted[1].split())
    assert [0, 0, 0] == [after[0], *(code for code, *_ in looked)]


def test_a_role_bound_to_a_tenant_sees_and_writes_no_other(run, login):
    role, dsn = login
    append(run, "order-1")
    bound = run("db", "grant", role, "--tenant", "acme")
    other = run("db", "grant", role, "--tenant", "umbrella")
    own = run("events", "append", "order-1", "order.placed", "--tenant", "acme", dsn=dsn)
    foreign = run("events", "append", "order-1", "order.placed", dsn=dsn)
    seen = run("events", "tail", "--json", dsn=dsn)

    assert [0, 1, 0] == [bound[0], other[0], own[0]]
    assert "bound to another tenant" in other[2]
    assert 1 == foreign[0]
    assert [] == json.loads(seen[1])


@pytest.mark.parametrize("role", ["postgres", "nobody_at_all"])
def test_a_role_that_nothing_would_hold_or_that_is_not_there_is_not_granted(run, role):
    code, out, err = run("db", "grant", role)

    assert (1, "") == (code, out)
    assert "HW-E014" in err


def test_what_is_appended_is_read(run, rows):
    answer = run("events", "append", "order-1", "order.placed", '{"total": "9.90"}', "--json")
    append(run, "order-1", type_="order.shipped", payload='{"ä": [1, null, 1.5]}')
    append(run, "basket-1", type_="basket.opened")
    found = rows("events", "stream", "order-1")

    assert (0, "order-1", 1, False) == (
        answer[0],
        *(json.loads(answer[1])[name] for name in ("stream", "version", "repeated")),
    )
    assert [
        (1, "order.placed", {"total": "9.90"}),
        (2, "order.shipped", {"ä": [1, None, 1.5]}),
    ] == [(row["stream_position"], row["type"], row["data"]) for row in found]


def test_a_payload_comes_from_stdin(run, rows, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO('{"from": "stdin"}'))
    append(run, "order-1", payload="-")

    assert [{"from": "stdin"}] == [row["data"] for row in rows("events", "stream", "order-1")]


def test_an_expected_version_and_a_key_are_kept(run):
    words = ("events", "append", "order-1", "order.placed", "{}")
    first = run(*words, "--expected-version", "no-stream", "--key", "k1", "--json")
    repeated = run(*words, "--expected-version", "no-stream", "--key", "k1", "--json")
    stale = run(*words, "--expected-version", "0", "--json")
    other = run("events", "append", "order-1", "order.shipped", "--key", "k1", "--json")

    told = [json.loads(out) for _, out, _ in (first, repeated, stale, other)]
    assert (False, True) == (told[0]["repeated"], told[1]["repeated"])
    assert told[0]["token"] == told[1]["token"]
    assert [(1, "HW-E010"), (1, "HW-E011")] == [
        (code, answer["error"]["code"])
        for (code, *_), answer in zip((stale, other), told[2:], strict=True)
    ]


def test_a_stream_is_read_in_parts(run, rows):
    append(run, *["order-1"] * 4)
    between = rows("events", "stream", "order-1")[1]["recorded_at"]

    def positions(*words: str) -> list[int]:
        return [row["stream_position"] for row in rows("events", "stream", "order-1", *words)]

    assert [3, 4] == positions("--after", "2")
    assert [4, 3] == positions("--backwards", "--limit", "2")
    assert [1, 2] == positions("--as-of", between)
    assert [] == rows("events", "stream", "order-2")


def test_the_end_of_the_log_is_read_by_type_category_and_number(run, rows):
    append(run, *(f"order-{n}" for n in range(25)))
    append(run, "basket-1", type_="basket.opened")

    def streams(*words: str) -> list[str]:
        return [row["stream"] for row in rows("events", "tail", *words)]

    assert [*(f"order-{n}" for n in range(6, 25)), "basket-1"] == streams()
    assert ["order-24", "basket-1"] == streams("-n", "2")
    assert ["order-24"] == streams("-n", "1", "--category", "order")
    assert ["basket-1"] == streams("--type", "basket.opened")
    assert 26 == len(streams("--after", "0"))
    assert ["order-0", "order-1"] == streams("--after", "0", "-n", "2")


def test_a_person_reads_one_line_for_each_event(run):
    append(run, "order-1", payload='{"a": "[bold]x"}')
    _, out, _ = run("events", "tail")

    (line,) = out.splitlines()
    assert "order-1@1  order.placed" in line
    assert line.endswith('{"a": "[bold]x"}')


def test_a_follower_sees_what_comes_and_ctrl_c_is_130(run, store_dsn, tmp_path):
    append(run, "order-1")
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
        append(run, "order-2")
        seen.append(json.loads(follower.stdout.readline())["stream"])
        follower.send_signal(signal.SIGINT)
        _, said = follower.communicate(timeout=60)

    assert (["order-1", "order-2"], 130) == (seen, follower.returncode)
    assert "Traceback" not in said


def test_a_follower_ends_after_as_many_as_were_asked_for(run, rows):
    append(run, "order-1", "order-2", "order-3")
    code, out, _ = run("events", "tail", "--follow", "--json", "--after", "1", "--limit", "2")

    assert 0 == code
    assert ["order-2", "order-3"] == [json.loads(line)["stream"] for line in out.splitlines()]


def test_the_status_names_the_writer_that_holds_the_mark(run, store_dsn):
    append(run, "order-1")
    with psycopg.connect(store_dsn, application_name="slow") as writer:
        writer.execute("SELECT eventstore.hold_mark(), nextval('eventstore.global_position')")
        _, out, _ = run("events", "status", "--json")
        code, shown, _ = run("events", "status")

    found = json.loads(out)
    assert (2, 1, 1) == (found["head"], found["mark"], found["distance"])
    assert ["slow"] == [row["application_name"] for row in found["writers"]]
    assert (0, True) == (code, "slow" in shown)


def test_the_status_names_a_prepared_transaction_and_how_to_end_it(run, store_dsn):
    end = "PREPARED 'left ''open'''"
    with psycopg.connect(store_dsn) as writer:
        writer.execute(
            "SELECT eventstore.append_event('default', 'order-1', -1, 'order.placed', 1::smallint,"
            " gen_random_uuid(), '{}', NULL, now(), NULL, NULL, NULL)"
        )
        writer.execute("PREPARE TRANSACTION 'left ''open'''")
    with psycopg.connect(store_dsn, autocommit=True) as admin:
        try:
            _, out, _ = run("events", "status", "--json")
            (found,) = json.loads(out)["writers"]
            printed = run("events", "status")[1]
        finally:
            admin.execute("ROLLBACK PREPARED 'left ''open'''")
    _, after, _ = run("events", "status", "--json")

    assert ("left 'open'", "prepared", None) == (found["gid"], found["state"], found["pid"])
    assert found["role"] == urlsplit(store_dsn).username
    assert 0 <= found["age_s"] < 300
    assert f"COMMIT {end} or ROLLBACK {end}" == found["command"]
    assert "left 'open'" in printed
    assert [] == json.loads(after)["writers"]


def test_a_standby_is_named_as_such_by_every_command_that_cannot_work_there(run, clusters):
    primary = clusters.start()
    schema.upgrade(primary.dsn())
    run("events", "append", "order-1", "order.placed", dsn=primary.dsn())
    standby = clusters.join(primary.standby(clusters.folder("standby"), free_port()))
    answers = [run("events", *words, dsn=standby.dsn()) for words in (("status",), ("tail",))]
    append_there = run("events", "append", "order-1", "order.placed", dsn=standby.dsn())

    for code, out, err in answers:
        assert (1, "") == (code, out)
        assert "HW-E054" in err
        assert "read the log at the primary" in err
    assert "HW-E054" in append_there[2]
    assert "target_session_attrs" in append_there[2]


def test_a_transaction_that_was_prepared_before_a_restart_is_named(run, clusters):
    primary = clusters.start()
    schema.upgrade(primary.dsn())
    with psycopg.connect(primary.dsn()) as writer:
        writer.execute("SELECT eventstore.hold_mark(), nextval('eventstore.global_position')")
        writer.execute("CREATE TABLE written (id int)")
        writer.execute("PREPARE TRANSACTION 'old'")
    primary.stop()
    primary.start()
    _, out, _ = run("events", "status", "--json", dsn=primary.dsn())

    assert [("old", "prepared")] == [(w["gid"], w["state"]) for w in json.loads(out)["writers"]]


def test_an_edited_event_is_found_and_a_cut_log_too(run, store_dsn, tmp_path):
    head = tmp_path / "head"
    append(run, "order-1", "order-2", "order-3")
    sealed = run("events", "seal", "--head", str(head))
    genuine = run("events", "verify", "--head", str(head), "--json")
    with psycopg.connect(store_dsn) as connection:
        connection.execute("ALTER TABLE eventstore.events DISABLE TRIGGER USER")
        connection.execute("UPDATE eventstore.events SET actor = 'x' WHERE global_position = 2")
    edited = run("events", "verify", "--json")
    told = run("events", "verify")
    with psycopg.connect(store_dsn) as connection:
        connection.execute("ALTER TABLE eventstore.seals DISABLE TRIGGER USER")
        connection.execute("DELETE FROM eventstore.seals")
    cut = run("events", "verify", "--head", str(head), "--json")
    kept = run("events", "seal", "--head", str(head))

    assert (0, head.read_text()) == sealed[:2]
    assert (0, True) == (genuine[0], json.loads(genuine[1])["genuine"])
    assert (3, 2) == (edited[0], json.loads(edited[1])["findings"][0]["position"])
    assert 3 == told[0]
    assert "changed at global position 2" in told[2]
    assert 3 == cut[0]
    # new seals over the edited log do not take the place of the proof
    assert (3, sealed[1]) == (kept[0], head.read_text())


DOMAIN = """
from dataclasses import dataclass
from eventstore.deciding.decider import Decider
from eventstore.privacy.personal import Personal
from eventstore.serialization.registry import declared, event

@event("{name}.counted", subject="customer")
class Counted:
    customer: str
    email: Personal[str]

@event("{name}.added", version=2)
class Added:
    amount: int

@declared.upcaster("{name}.added", 1)
def _(data):
    return {{"amount": data["count"]}}

@dataclass(frozen=True)
class Add:
    id: str

def decide(command, state): return Added(1)
def evolve(state, event): return state + getattr(event, "amount", 0)
def initial_state() -> int: return 0

counter = Decider(category="{name}", decide=decide, evolve=evolve, initial_state=initial_state,
                  commands=(Add,), stream_id=lambda command: command.id)
"""


@pytest.fixture
def domain(run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A project with event types of its own; returns their category."""
    name = f"counter{secrets.token_hex(4)}"
    (tmp_path / f"{name}.py").write_text(DOMAIN.format(name=name))
    (tmp_path / "headwater.toml").write_text(f'[eventstore]\nmodules = ["{name}"]\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_every_event_is_tried_by_every_upcaster(run, domain, store_dsn):
    insert = """
        INSERT INTO eventstore.events (global_position, tenant, stream, stream_position, type,
            schema_version, event_id, data, occurred_at)
        VALUES (nextval('eventstore.global_position'), 'default', %s || '-1', %s, %s || '.added', 1,
            gen_random_uuid(), %s, now())
    """
    with psycopg.connect(store_dsn) as connection:
        connection.execute(insert, (domain, 1, domain, '{"count": 1}'))
    good = run("events", "upcast", "--check", "--json")
    shown = json.loads(run("events", "stream", f"{domain}-1", "--json")[1])
    with psycopg.connect(store_dsn) as connection:
        connection.execute(insert, (domain, 2, domain, '{"cuont": 1}'))
    bad = run("events", "upcast", "--check", "--json")

    assert (0, True) == (good[0], json.loads(good[1])["ok"])
    assert {"amount": 1} == shown[0]["data"]
    assert (3, [2]) == (bad[0], json.loads(bad[1])["versions"][0]["first_failed"])


def test_streams_are_compacted_by_the_declared_decider(run, rows, domain):
    for _ in range(5):
        append(run, f"{domain}-1", f"{domain}-2", type_=f"{domain}.added", payload='{"amount": 1}')
    one = run("events", "compact", f"{domain}-1", "--through", "3", "--json")
    both = run("events", "compact", domain, "--larger-than", "2", "--keep-events", "1", "--json")
    missing = run("events", "compact", "basket")

    assert (0, 1, 3) == (one[0], *[json.loads(one[1])[k] for k in ("streams", "events")])
    assert (0, 2, 5) == (both[0], *[json.loads(both[1])[k] for k in ("streams", "events")])
    assert ["$snapshot", f"{domain}.added"] == [
        row["type"] for row in rows("events", "stream", f"{domain}-2")
    ]
    assert [1, 2, 3, 4, 5] == [
        row["stream_position"] for row in rows("events", "stream", f"{domain}-2", "--archived")
    ]
    assert 2 == missing[0]


def test_a_person_is_shown_with_the_master_key_only_and_can_be_forgotten(
    run, rows, domain, store_dsn, tmp_path
):
    import importlib

    from eventstore.postgres.keyring import PostgresKeyRing
    from eventstore.postgres.log import PostgresEventLog
    from eventstore.store import EventStore

    keys = new_master_keys("k1")
    ring = PostgresKeyRing(store_dsn, keys)
    with EventStore(PostgresEventLog(store_dsn), keyring=ring) as store:
        made = importlib.import_module(domain).Counted("c1", "canary@example.com")
        store.append(f"{domain}-1", made)
    ring.close()

    def data() -> dict:
        return rows("events", "stream", f"{domain}-1")[0]["data"]

    sealed = data()
    (tmp_path / "master.key").touch(mode=0o600)
    (tmp_path / "master.key").write_text(master_key_line(keys, "k1"))
    with (tmp_path / "headwater.toml").open("a") as file:
        file.write('master_key_file = "master.key"\n')
    opened = data()
    shredded = [run("events", "shred", "c1", "--yes")[:2] for _ in range(2)]
    (tmp_path / "canaries").write_text("canary@example.com\n\n")
    words = ("events", "shred", "c1", "--yes", "--search", str(tmp_path / "canaries"))
    nowhere = run(*words, "--home", str(tmp_path / "state"))
    (tmp_path / "state" / "notes.txt").write_text("canary@example.com")
    somewhere = run(*words, "--home", str(tmp_path / "state"), "--json")

    assert (0, 3) == (nowhere[0], somewhere[0])
    assert "found in 0 places" in nowhere[2]
    assert ["notes.txt"] == json.loads(somewhere[1])["found_in"]
    assert 2 == len(list((tmp_path / "state" / "certificates").iterdir()))
    assert {"customer": "c1", "email": "[sealed]"} == sealed
    assert {"customer": "c1", "email": "canary@example.com"} == opened
    assert [
        (0, "the key is destroyed\n"),
        (0, "there was no key; none will be made\n"),
    ] == shredded
    assert {"customer": "c1", "email": "[redacted]"} == data()


def test_a_person_is_forgotten_without_any_master_key(run, store_dsn):
    code, out, _ = run("events", "shred", "c9", "--yes", "--tenant", "acme", "--json")
    with psycopg.connect(store_dsn) as connection:
        found = connection.execute(
            "SELECT tenant, subject, wrapped_key FROM eventstore_keys.subject_keys"
        ).fetchall()

    assert (0, False) == (code, json.loads(out)["had_key"])
    assert [("acme", "c9", None)] == found


def test_parked_streams_are_listed_tried_again_and_dropped(run, rows, store_dsn):
    append(run, "order-1", "order-2")
    with psycopg.connect(store_dsn) as connection:
        connection.execute("SELECT eventstore.declare_subscription('default', 'mail', 1, 0, false)")
        connection.execute("""
            INSERT INTO eventstore.parked_events (tenant, subscription, stream, global_position,
                state, live, attempts, error_type)
            VALUES ('default', 'mail', 'order-1', 1, 'parked', true, 3, 'ValueError'),
                   ('default', 'mail', 'order-2', 2, 'parked', true, 3, 'ValueError')
        """)
    status = rows("events", "subscriptions")
    before = rows("events", "parked", "list")
    retried = run("events", "parked", "retry", "mail", "order-1")
    dropped = run("events", "parked", "drop", "mail", "order-2", "--yes")
    absent = run("events", "parked", "retry", "mail", "order-3")
    after = rows("events", "parked", "list", "mail")

    assert [("mail", 0, 2)] == [
        (row["name"], row["global_position"], row["parked_streams"]) for row in status
    ]
    assert [("order-1", "parked"), ("order-2", "parked")] == [
        (row["stream"], row["state"]) for row in before
    ]
    assert [0, 0, 3] == [retried[0], dropped[0], absent[0]]
    assert [("order-1", "retrying")] == [(row["stream"], row["state"]) for row in after]


def test_all_that_is_parked_is_tried_again_and_timers_are_listed_and_dropped(run, rows, store_dsn):
    with psycopg.connect(store_dsn) as connection:
        connection.execute("SELECT eventstore.declare_subscription('default', 'mail', 1, 0, false)")
        connection.execute("""
            INSERT INTO eventstore.parked_events (tenant, subscription, stream, global_position,
                state, live, attempts, error_type)
            VALUES ('default', 'mail', 'order-1', 1, 'parked', true, 3, 'builtins.ValueError'),
                   ('default', 'mail', 'order-2', 2, 'parked', true, 3, 'builtins.KeyError');
            INSERT INTO eventstore.processes (tenant, manager, process_id)
            VALUES ('default', 'mail', '7');
            INSERT INTO eventstore.timers (tenant, manager, process_id, name, due_at, fires_at,
                attempts, error_type)
            VALUES ('default', 'mail', '7', 'late', now(), 'infinity', 3, 'builtins.KeyError'),
                   ('default', 'mail', '7', 'later', now(), 'infinity', 3, 'builtins.KeyError')
        """)
    status = rows("events", "subscriptions")
    before = rows("events", "parked", "list")
    table = run("events", "parked", "list")[1]
    timer = ("--process", "7", "--timer", "late")
    answers = [
        run("events", "parked", "retry", "mail", "--error-type", "ValueError"),
        run("events", "parked", "retry", "mail", *timer),
        run("events", "parked", "drop", "mail", "--process", "7", "--timer", "later", "--yes"),
        run("events", "parked", "retry", "mail", "--all"),
        run("events", "parked", "retry", "mail", "--error-type", "OSError"),
        run("events", "parked", "drop", "mail", "--process", "7", "--timer", "no", "--yes"),
    ]
    refused = [
        run("events", "parked", "retry", "mail"),
        run("events", "parked", "retry", "mail", "order-1", "--all"),
        run("events", "parked", "retry", "mail", "--timer", "late"),
        run("events", "parked", "drop", "mail", "order-1", *timer, "--yes"),
    ]
    after = rows("events", "parked", "list")

    assert [(2, 2)] == [(row["parked_streams"], row["parked_timers"]) for row in status]
    assert [("order-1", None), ("order-2", None), (None, "late"), (None, "later")] == [
        (row["stream"], row["timer"]) for row in before
    ]
    assert "late" in table
    assert [
        (0, "its runner tries 1 again\n"),
        (0, "its runner retries it\n"),
        (0, "the timer is given up\n"),
        (0, "its runner tries 3 again\n"),
        (0, "nothing of it waits\n"),
        (3, ""),
    ] == [answer[:2] for answer in answers]
    assert [2] * 4 == [code for code, *_ in refused]
    assert [("order-1", "retrying"), ("order-2", "retrying"), (None, "retrying")] == [
        (row["stream"], row["state"]) for row in after
    ]


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
