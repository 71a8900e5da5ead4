"""Columns that are hidden at capture are hidden everywhere, in the same form from both ways."""

from __future__ import annotations

import secrets
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from cdc import source
from cdc.column_rule import ColumnRules, treated
from cdc.connect.rest import ConnectRest
from cdc.postgres import catalog, session
from cdc.postgres.errors import PreflightError
from cdc.snapshot import reader, reads
from cdc.table import TableName, Treatment
from cdc.values import UNCHANGED_PLACEHOLDER, decoder, encoder
from projections.definition.views import MirrorView, Store
from projections.planning.view_plan import plan_views
from projections.verification import source_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cdc.change_event import ChangeEvent
    from tests.fix_capture import Captured

pytestmark = pytest.mark.integration

PEOPLE, STAFF = TableName("public", "people"), TableName("public", "staff")
CANARY = "canary-4711"
VALUES = {
    "email": f"{CANARY}@søster.example",
    "ssn": CANARY,
    "phone": CANARY,
    "income": "98765432109.87",
    "born": "1969-12-31",
    "seen": "1969-12-31 23:59:59.999999+00",
    "photo": "\\xdeadbeef0badcafe",
    "adult": "t",
    "score": "0.30000000000000004",
    "tags": "{98765,NULL}",
    "about": '{"k": 9876543210987654321}',
    "code": "ab   ",
}
TABLES = (
    """CREATE TABLE people (id int PRIMARY KEY, email text, ssn text, phone text,
        income numeric, born date, seen timestamptz, photo bytea, adult boolean,
        score double precision, tags int[], about jsonb, code char(5), big text, plain text)""",
    "ALTER TABLE people ALTER big SET STORAGE EXTERNAL, REPLICA IDENTITY FULL",
    "CREATE TABLE staff (id int PRIMARY KEY, name text, ssn text, big text)",
    "ALTER TABLE staff ALTER big SET STORAGE EXTERNAL",
)
HASHED = (
    "email",
    "income",
    "born",
    "seen",
    "photo",
    "adult",
    "score",
    "tags",
    "about",
    "code",
    "big",
)
RULES = {
    PEOPLE: ColumnRules(exclude=["ssn"], hash=HASHED, mask={"phone": 4}),
    STAFF: ColumnRules(only=["id", "name"], hash=["big"]),
}


def insert(number: int) -> str:
    columns = ", ".join(VALUES)
    values = ", ".join(f"'{value}'" for value in VALUES.values())
    big = f"repeat('{CANARY}', 1000)"
    return (
        f"INSERT INTO people (id, {columns}, big, plain) VALUES ({number}, {values}, {big}, 'seen')"  # noqa: S608
    )


def execute(dsn: str, *statements: str) -> None:
    with session.connect(dsn) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def rows(events: list[ChangeEvent]) -> dict[int, dict[str, Any]]:
    """The newest row of each key, without it."""
    found = {}
    for event in events:
        if event.after is not None:
            row = dict(event.after)
            found[row.pop("id")] = row
    return found


@pytest.fixture
def salt() -> str:
    return f"salt-{secrets.token_hex(16)}"


@pytest.fixture
def people(
    capture: Callable[..., Captured], database: str, connect_secrets: Path, salt: str
) -> Captured:
    """Two tables with rules; each has a row that is read before anything is streamed."""
    execute(
        database,
        *TABLES,
        insert(1),
        "INSERT INTO people (id, plain) VALUES (2, 'nulls')",
        "INSERT INTO staff VALUES (1, 'read', 'canary-4711', repeat('canary-4711', 1000))",
    )
    return capture(
        "public.people", "public.staff", columns=RULES, salt=salt, secrets_folder=connect_secrets
    )


def test_a_row_is_hidden_alike_however_it_travels_and_its_values_are_nowhere(
    people: Captured, salt: str, connect_secrets: Path
) -> None:
    people.execute(
        insert(3),
        "INSERT INTO people (id, plain) VALUES (4, 'nulls')",
        "UPDATE people SET plain = 'changed' WHERE id = 3",
        "DELETE FROM people WHERE id = 4",
    )
    with closing(ConnectRest(people.spec.connect_url)) as rest:
        told = f"{rest.config(people.spec.connector)}{source.plan(people.spec)}{people.spec}"

    raw = people.records("people")
    events = people_events(raw)
    found = rows(events)

    expected = {name: treated(Treatment(), VALUES[name], salt) for name in HASHED if name != "big"}
    expected |= {"phone": "****", "big": treated(Treatment(), CANARY * 1000, salt)}
    assert expected | {"plain": "seen"} == found[1]
    assert expected | {"plain": "changed"} == found[3]
    assert dict.fromkeys([*HASHED, "phone"]) | {"plain": "nulls"} == found[2] == found[4]
    carried = b"".join((r.key or b"") + (r.value or b"") for r in raw)
    logs = b"".join(path.read_bytes() for path in connect_secrets.parents[3].glob("log/*.log"))
    assert len(logs) > 0
    for secret in (CANARY, "98765", "0badcafe", "0.30000000000000004", salt):
        assert secret.encode() not in carried, secret
        assert secret not in told, secret
    for secret in (CANARY, salt):
        assert secret.encode() not in logs, secret


def test_what_views_get_is_what_a_comparison_reads_from_the_source(
    people: Captured, salt: str
) -> None:
    people.execute(insert(3), "UPDATE people SET plain = 'changed' WHERE id = 3")
    found = people_events(people.records("people"))
    view = MirrorView("people", people.spec.name, PEOPLE, (), frozenset({Store.CACHE}))
    with session.connect(people.database) as connection:
        schemas = catalog.describe(connection, [PEOPLE], RULES)
    (plan,) = plan_views([view], schemas)
    decode, encode = decoder(schemas[PEOPLE]), encoder(schemas[PEOPLE])

    carried = {}
    for event in found:
        if event.after is not None:
            document = encode(decode(event.after))
            carried[document["id"]] = document
    people.execute("DELETE FROM people WHERE id < 0")
    with source_rows.snapshot(people.database, salt) as connection:
        stands = {row["id"]: row for row in source_rows.documents(connection, plan)}

    assert {1, 2, 3} == stands.keys()
    assert stands == carried


def test_a_large_value_that_an_update_left_out_is_no_value(people: Captured, salt: str) -> None:
    people.execute("UPDATE staff SET name = 'changed' WHERE id = 1")

    found = [event.after for event in people.events("staff") if event.after]

    hashed = treated(Treatment(), CANARY * 1000, salt)
    assert {"id": 1, "name": "read", "big": hashed} == found[0]
    assert {"id": 1, "name": "changed", "big": UNCHANGED_PLACEHOLDER} == found[-1]


def test_a_column_that_is_added_later_stays_out_until_it_is_allowed(people: Captured) -> None:
    people.execute(
        f"ALTER TABLE staff ADD COLUMN secret text DEFAULT '{CANARY}'",
        "INSERT INTO staff (id, name, secret) VALUES (5, 'streamed', 'canary-4711')",
    )
    with session.connect(people.database) as connection:
        reads.forget(connection, people.spec.name, [STAFF])
        reads.ask_initial(connection, people.spec.name, people.spec.epoch, [STAFF])
    reader.run(people.spec)

    records = people.records("staff")
    names = {name for event in people_events(records) for name in event.after or {}}

    assert {"id", "name", "big"} == names
    assert CANARY.encode() not in b"".join(record.value or b"" for record in records)


def test_rules_that_do_not_fit_are_refused_before_anything_is_captured(people: Captured) -> None:
    for rules, words in (
        (ColumnRules(exclude=["snn"]), "there is no column snn"),
        (ColumnRules(mask={"id": 3}), "column id of the key"),
    ):
        with pytest.raises(PreflightError) as refused:
            source.apply(replace(people.spec, columns={PEOPLE: rules}))
        assert words in (refused.value.detail or "")


def people_events(records: list[Any]) -> list[ChangeEvent]:
    from tests.fix_capture import event_of

    return [event_of(record) for record in records if record.value is not None]
