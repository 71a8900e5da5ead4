"""Commands that work on declared events and parked streams: upcast, compact, forget, retry."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from eventstore.privacy.master_key import master_key_line, new_master_keys
from tests.fix_events_command import append

if TYPE_CHECKING:
    from collections.abc import Callable
pytestmark = pytest.mark.integration


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
def domain(cli: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A project with event types of its own; returns their category."""
    name = f"counter{secrets.token_hex(4)}"
    (tmp_path / f"{name}.py").write_text(DOMAIN.format(name=name))
    (tmp_path / "headwater.toml").write_text(f'[eventstore]\nmodules = ["{name}"]\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_every_event_is_tried_by_every_upcaster(cli, domain, store_dsn):
    insert = """
        INSERT INTO eventstore.events (global_position, tenant, stream, stream_position, type,
            schema_version, event_id, data, occurred_at)
        VALUES (nextval('eventstore.global_position'), 'default', %s || '-1', %s, %s || '.added', 1,
            gen_random_uuid(), %s, now())
    """
    with psycopg.connect(store_dsn) as connection:
        connection.execute(insert, (domain, 1, domain, '{"count": 1}'))
    good = cli("events", "upcast", "--check", "--json")
    shown = json.loads(cli("events", "stream", f"{domain}-1", "--json")[1])
    with psycopg.connect(store_dsn) as connection:
        connection.execute(insert, (domain, 2, domain, '{"cuont": 1}'))
    bad = cli("events", "upcast", "--check", "--json")

    assert (0, True) == (good[0], json.loads(good[1])["ok"])
    assert {"amount": 1} == shown[0]["data"]
    assert (3, [2]) == (bad[0], json.loads(bad[1])["versions"][0]["first_failed"])


def test_streams_are_compacted_by_the_declared_decider(cli, cli_rows, domain):
    for _ in range(5):
        append(
            cli,
            f"{domain}-1",
            f"{domain}-2",
            type_=f"{domain}.added",
            payload='{"amount": 1}',
        )
    one = cli("events", "compact", f"{domain}-1", "--through", "3", "--json")
    both = cli("events", "compact", domain, "--larger-than", "2", "--keep-events", "1", "--json")
    missing = cli("events", "compact", "basket")

    assert (0, 1, 3) == (one[0], *[json.loads(one[1])[k] for k in ("streams", "events")])
    assert (0, 2, 5) == (both[0], *[json.loads(both[1])[k] for k in ("streams", "events")])
    assert ["$snapshot", f"{domain}.added"] == [
        row["type"] for row in cli_rows("events", "stream", f"{domain}-2")
    ]
    assert [1, 2, 3, 4, 5] == [
        row["stream_position"] for row in cli_rows("events", "stream", f"{domain}-2", "--archived")
    ]
    assert 2 == missing[0]


def test_a_person_is_shown_with_the_master_key_only_and_can_be_forgotten(
    cli, cli_rows, domain, store_dsn, tmp_path
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
        return cli_rows("events", "stream", f"{domain}-1")[0]["data"]

    sealed = data()
    (tmp_path / "master.key").touch(mode=0o600)
    (tmp_path / "master.key").write_text(master_key_line(keys, "k1"))
    with (tmp_path / "headwater.toml").open("a") as file:
        file.write('master_key_file = "master.key"\n')
    opened = data()
    shredded = [cli("events", "shred", "c1", "--yes")[:2] for _ in range(2)]
    (tmp_path / "canaries").write_text("canary@example.com\n\n")
    words = ("events", "shred", "c1", "--yes", "--search", str(tmp_path / "canaries"))
    nowhere = cli(*words, "--home", str(tmp_path / "state"))
    (tmp_path / "state" / "notes.txt").write_text("canary@example.com")
    somewhere = cli(*words, "--home", str(tmp_path / "state"), "--json")

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


def test_a_person_is_forgotten_without_any_master_key(cli, store_dsn):
    code, out, _ = cli("events", "shred", "c9", "--yes", "--tenant", "acme", "--json")
    with psycopg.connect(store_dsn) as connection:
        found = connection.execute(
            "SELECT tenant, subject, wrapped_key FROM eventstore_keys.subject_keys"
        ).fetchall()

    assert (0, False) == (code, json.loads(out)["had_key"])
    assert [("acme", "c9", None)] == found


def test_parked_streams_are_listed_tried_again_and_dropped(cli, cli_rows, store_dsn):
    append(cli, "order-1", "order-2")
    with psycopg.connect(store_dsn) as connection:
        connection.execute("SELECT eventstore.declare_subscription('default', 'mail', 1, 0, false)")
        connection.execute("""
            INSERT INTO eventstore.parked_events (tenant, subscription, stream, global_position,
                state, live, attempts, error_type)
            VALUES ('default', 'mail', 'order-1', 1, 'parked', true, 3, 'ValueError'),
                   ('default', 'mail', 'order-2', 2, 'parked', true, 3, 'ValueError')
        """)
    status = cli_rows("events", "subscriptions")
    before = cli_rows("events", "parked", "list")
    retried = cli("events", "parked", "retry", "mail", "order-1")
    dropped = cli("events", "parked", "drop", "mail", "order-2", "--yes")
    absent = cli("events", "parked", "retry", "mail", "order-3")
    after = cli_rows("events", "parked", "list", "mail")

    assert [("mail", 0, 2)] == [
        (row["name"], row["global_position"], row["parked_streams"]) for row in status
    ]
    assert [("order-1", "parked"), ("order-2", "parked")] == [
        (row["stream"], row["state"]) for row in before
    ]
    assert [0, 0, 3] == [retried[0], dropped[0], absent[0]]
    assert [("order-1", "retrying")] == [(row["stream"], row["state"]) for row in after]


def test_all_that_is_parked_is_tried_again_and_timers_are_listed_and_dropped(
    cli, cli_rows, store_dsn
):
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
    status = cli_rows("events", "subscriptions")
    before = cli_rows("events", "parked", "list")
    table = cli("events", "parked", "list")[1]
    timer = ("--process", "7", "--timer", "late")
    answers = [
        cli("events", "parked", "retry", "mail", "--error-type", "ValueError"),
        cli("events", "parked", "retry", "mail", *timer),
        cli("events", "parked", "drop", "mail", "--process", "7", "--timer", "later", "--yes"),
        cli("events", "parked", "retry", "mail", "--all"),
        cli("events", "parked", "retry", "mail", "--error-type", "OSError"),
        cli("events", "parked", "drop", "mail", "--process", "7", "--timer", "no", "--yes"),
    ]
    refused = [
        cli("events", "parked", "retry", "mail"),
        cli("events", "parked", "retry", "mail", "order-1", "--all"),
        cli("events", "parked", "retry", "mail", "--timer", "late"),
        cli("events", "parked", "drop", "mail", "order-1", *timer, "--yes"),
    ]
    after = cli_rows("events", "parked", "list")

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
