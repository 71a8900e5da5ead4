"""An event gets another version: its views are made anew from the log, the others do not notice."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc import source
from cdc.broker.group.key_value_topic import read_all
from cdc.capture import CaptureSpec
from cdc.table import TableName
from eventstore.model.event import AppendRequest, StreamAppend
from eventstore.privacy.keyring import MemoryKeyRing
from eventstore.serialization.codec import Codec
from eventstore.serialization.registry import EventData, EventTypes
from projections.definition.views import EVENT_TABLES
from tests.fix_shell import Shell
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from eventstore.postgres.log import PostgresEventLog

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=7),
    pytest.mark.timeout(2400),
]

SETTINGS = """
[project]
name = "{name}"
views = "views.py"
[source.{name}]
dsn = "{dsn}"
heartbeat_interval_ms = 200
[services.kafka]
address = "{kafka}"
[services.connect]
address = "{connect}"
[services.search]
address = "{search}"
[services.cache]
address = "{cache}"
"""
VIEWS = """
from headwater import Topic, alert, source, view
from parcels import ParcelReturned, ParcelSent

shop = source("{name}", tables=["public.orders"], eventstore=True)
view.events("{name}_sent", shop.events(ParcelSent))
returned = view.events("{name}_returned", shop.events(ParcelReturned), to=["table"])
view.aggregate("{name}_parcels", returned, by=["parcel"], to=["table"], count="returns")
alert("back", returned, where="parcel = 'a1-1'", to=[Topic("{name}-alerts")])
view.mirror("{name}_orders", shop.orders, to=["table", "cache"])
"""
RETURNED = """
from dataclasses import dataclass
from decimal import Decimal

from eventstore.serialization.registry import declared

@declared.event("parcel.returned")
@dataclass(frozen=True)
class ParcelReturned:
    parcel: str
"""
FIRST = """
@declared.event("parcel.sent")
@dataclass(frozen=True)
class ParcelSent:
    parcel: str
    grams: int
"""
# a field is renamed and retyped, another one split
SECOND = """
@declared.event("parcel.sent", version=2)
@dataclass(frozen=True)
class ParcelSent:
    shelf: str
    number: int
    weight_kg: Decimal

@ParcelSent.upcast(from_version=1)
def _shelf_and_weight(data):
    shelf, number = data["parcel"].split("-")
    weight_kg = str(Decimal(data["grams"]) / 1000)
    return {"shelf": shelf, "number": int(number), "weight_kg": weight_kg}
"""
TABLES = (TableName("public", "orders"), *EVENT_TABLES)
TABLE = "CREATE TABLE orders (id int PRIMARY KEY, v int); INSERT INTO orders VALUES (1, 1)"


class Parcels:
    """Writes parcels' events as a program of some version does."""

    def __init__(self, log: PostgresEventLog, version: int) -> None:
        self._log = log
        types = EventTypes()
        types.untyped("parcel.sent", version=version)
        types.untyped("parcel.returned")
        self._codec = Codec(types, MemoryKeyRing())

    def write(self, stream: str, *events: EventData) -> None:
        made = tuple(
            self._codec.encode(event, tenant="default", stream=stream, stream_position=place)
            for place, event in enumerate(events, start=1)
        )
        self._log.append(AppendRequest((StreamAppend(stream, made, 0),), tenant="default"))


@pytest.fixture
def name() -> str:
    return f"s_{secrets.token_hex(4)}"


@pytest.fixture
def places(
    kafka_bootstrap: str, connect_url: str, search_url: str, cache_url: str
) -> dict[str, str]:
    stores = {"search": search_url, "cache": cache_url}
    return {"kafka": kafka_bootstrap, "connect": connect_url, **stores}


@pytest.fixture
def shell(tmp_path: Path, store_dsn: str, name: str, places: dict[str, str]) -> Iterator[Shell]:
    settings = SETTINGS.format(name=name, dsn=store_dsn, **places)
    (tmp_path / "headwater.toml").write_text(settings)
    (tmp_path / "views.py").write_text(VIEWS.format(name=name))
    declare(tmp_path, FIRST)
    with psycopg.connect(store_dsn, autocommit=True) as connection:
        connection.execute(TABLE)
    inside = Shell(tmp_path)
    yield inside
    inside("down")
    spec = CaptureSpec(name, store_dsn, TABLES, places["connect"], places["kafka"])
    source.remove(spec, with_topics=True)


def declare(folder: Path, sent: str) -> None:
    (folder / "parcels.py").write_text(RETURNED + sent)


def rows(shell: Shell, view: str, query: str) -> Any:
    return shell.json("query", query.replace("VIEW", view))


def _standing(shell: Shell) -> tuple[int, int]:
    """Rows that an alert has told, and messages that wait."""
    (told,) = shell.json("alert", "list")
    return told["open"], told["waiting"]


def _told(bootstrap: str, topic: str) -> list[str]:
    return [json.loads(record.value)["id"] for record in read_all(bootstrap, topic)]


def _replayed(shell: Shell, view: str) -> Any:
    """What a replay comes to, once the archive has all of it and nothing differs."""
    found: list[Any] = []

    def same() -> bool:
        done = shell("view", "replay", view, "--compare", "--json", code=None)
        found.append(json.loads(done.stdout))
        return done.returncode == 0

    wait_until(same, timeout_s=LONG_S)
    return found[-1]


def test_views_of_an_event_are_rebuilt_from_what_the_log_holds_in_its_older_version(
    shell: Shell, name: str, pg_log: PostgresEventLog, store_dsn: str, kafka_bootstrap: str
) -> None:
    sent, returned, orders, parcels = (
        f"{name}_{each}" for each in ("sent", "returned", "orders", "parcels")
    )
    shell("up")
    first = Parcels(pg_log, 1)
    for number in range(40):
        parcel = {"parcel": f"a{number % 3}-{number}"}
        first.write(
            f"parcel-{number}",
            EventData("parcel.sent", parcel | {"grams": 1500}),
            EventData("parcel.returned", parcel),
        )
    shell("view", "verify")
    assert [{"n": 40, "grams": 60_000}] == rows(
        shell, sent, "SELECT count(*) AS n, sum(grams) AS grams FROM VIEW"
    )

    wait_until(lambda: _standing(shell) == (1, 0), timeout_s=LONG_S)

    # another program is deployed: what breaks is told before, and what stands is kept as it was
    shell("down")
    declare(shell.folder, SECOND)
    told = {each["name"]: each for each in shell.json("plan", code=3)["differences"]}
    assert {sent} == {found for found in told if found in {sent, returned, orders}}
    assert "event parcel.sent: version 1 -> 2" in told[sent]["want"] + told[sent]["have"]
    shell("up")
    second = Parcels(pg_log, 2)
    for number in range(40, 60):
        data = {"shelf": "b", "number": number, "weight_kg": "0.25"}
        second.write(f"parcel-{number}", EventData("parcel.sent", data, version=2))
    with psycopg.connect(store_dsn, autocommit=True) as connection:
        connection.execute("INSERT INTO orders VALUES (2, 2)")
    shell("view", "verify")
    seen = "SELECT count(*) AS n, count(grams) AS known FROM VIEW"
    assert [{"n": 60, "known": 40}] == rows(shell, sent, seen)

    planned = shell.json("view", "rebuild", sent, "--plan")
    assert ["event parcel.sent: version 1 -> 2"] == planned["differs"][:1]
    built = shell.json("view", "rebuild", sent)
    assert (2, "held") == (built["version"], built["state"])
    assert [{"n": 60, "known": 40}] == rows(shell, sent, seen)  # nobody sees it yet
    found = shell.json("view", "compare", sent)
    assert found["same"]
    shell("view", "cutover", sent)

    weighed = "SELECT shelf, count(*) AS n, min(weight_kg) AS kg FROM VIEW GROUP BY shelf"
    assert {("a0", 14, "1.5"), ("a1", 13, "1.5"), ("a2", 13, "1.5"), ("b", 20, "0.25")} == {
        (each["shelf"], each["n"], each["kg"]) for each in rows(shell, sent, weighed)
    }
    assert shell.json("search", sent, "b")
    reports = shell.json("view", "verify")
    assert all(r["missing"] == r["extra"] == r["different"] == 0 for r in reports)
    others = {
        (row["view"], row["version"])
        for row in shell.json("view", "list", "--versions")
        if row["view"] != sent
    }
    assert {(returned, 1), (orders, 1), (parcels, 1)} == others
    assert (1, 0) == _standing(shell)
    assert [f"{name}.back.1.opened"] == _told(kafka_bootstrap, f"{name}-alerts")
    counted = "SELECT count(*) AS n FROM VIEW"
    wait_until(lambda: [{"n": 40}] == rows(shell, returned, counted), timeout_s=LONG_S)

    # what is made from events is what the archive comes to
    assert 40 == _replayed(shell, parcels)["rows"]
