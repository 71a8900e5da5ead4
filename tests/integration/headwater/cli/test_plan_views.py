"""`headwater plan` as a person runs it: which views do not fit the source, now or afterwards."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from cdc import source
from cdc.postgres import session
from eventstore.model.event import AppendRequest, StreamAppend
from eventstore.privacy.keyring import MemoryKeyRing
from eventstore.serialization.codec import Codec
from eventstore.serialization.registry import EventData, EventTypes
from headwater.platform.platform import Platform
from headwater.platform.specs import capture_spec
from headwater.project.project import open_project
from projections.planning.binding import bind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from eventstore.postgres.log import PostgresEventLog
    from headwater.project.project import Project

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

SETTINGS = """
[project]
name = "shop"
views = "views.py"
[source.{name}]
dsn = "{dsn}"
heartbeat_interval_ms = 200
[services.kafka]
address = "{kafka}"
[services.connect]
address = "{connect}"
[services.search]
address = "http://127.0.0.1:1"
[services.cache]
address = "redis://127.0.0.1:1/0"
"""
VIEWS = """
from dataclasses import dataclass

from headwater import source, view
from eventstore.serialization.registry import declared

@declared.event("parcel.sent", version=2)
@dataclass(frozen=True)
class OrderPlaced:
    order: str

shop = source("{name}", tables=["orders"], eventstore=True)
view.events("placed", shop.events(OrderPlaced), to=["table"])
orders = view.mirror("orders", shop.orders, to=["table"])
view.aggregate(
    "by_state", orders, by=["state"], to=["table"], count="orders", sums={{"total": "total"}}
)
view.sql("most", "SELECT state FROM by_state WHERE orders > 5", keys=["state"], to=["table"])
view.sql("states", "SELECT id, state FROM orders", keys=["id"], to=["table"])
"""
TABLE = "CREATE TABLE orders (id int PRIMARY KEY, state text, total int)"


class Told(NamedTuple):
    """What a command ended with: its code, its document, and what it said beside."""

    code: int
    document: Any
    beside: str


class Shell:
    """Runs commands in a project's folder, each in a process of its own."""

    def __init__(self, folder: Path, project: Project) -> None:
        self._folder, self.project = folder, project

    def __call__(self, *words: str, given: str = "") -> Told:
        ended = subprocess.run(  # our own command
            [sys.executable, "-m", "headwater", *words, "--json"],
            cwd=self._folder,
            input=given,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        return Told(ended.returncode, json.loads(ended.stdout), ended.stderr)


@pytest.fixture
def places(store_dsn: str, kafka_bootstrap: str, connect_url: str) -> dict[str, str]:
    return {"dsn": store_dsn, "kafka": kafka_bootstrap, "connect": connect_url}


@pytest.fixture
def shell(
    tmp_path: Path,
    store_dsn: str,
    pg_log: PostgresEventLog,
    places: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Shell]:
    name = f"s_{secrets.token_hex(4)}"
    (tmp_path / "headwater.toml").write_text(SETTINGS.format(name=name, **places))
    (tmp_path / "views.py").write_text(VIEWS.format(name=name))
    monkeypatch.chdir(tmp_path)
    with session.connect(store_dsn) as connection:
        connection.execute(TABLE)
    _old_event(pg_log)
    opened = open_project()  # once: it declares the events in this process
    yield Shell(tmp_path, opened)
    platform = Platform(opened, tmp_path / "headwater.toml")
    source.remove(capture_spec(opened, store_dsn, platform.endpoints), with_topics=True)


def _old_event(log: PostgresEventLog) -> None:
    """One of a version that nothing brings to the one that the project declares."""
    types = EventTypes()
    types.untyped("parcel.sent")
    codec = Codec(types, MemoryKeyRing())
    event = EventData("parcel.sent", {"order": "o1"})
    made = codec.encode(event, tenant="default", stream="order-1", stream_position=1)
    log.append(AppendRequest((StreamAppend("order-1", (made,), 0),), tenant="default"))


def test_what_does_not_fit_is_told_before_it_runs(shell: Shell, store_dsn: str) -> None:
    shell("apply")
    views = list(shell.project.declarations.views.values())
    with session.connect(store_dsn) as connection:  # as the job does when it begins
        bind(connection, shell.project.source.name, views, decides=True)
    migration = "ALTER TABLE orders RENAME total TO amount; ALTER TABLE orders ADD n int DEFAULT 1"
    told = shell("plan", "--migration", "-", given=migration)

    assert (3, "") == (told.code, told.beside)
    effects = {each["view"]: each for each in told.document["effects"]}
    assert {"orders", "by_state", "most"} == effects.keys()
    assert (False, "follows; the table is read again") == (
        effects["orders"]["broken"],
        effects["orders"]["does"],
    )
    assert ["column renamed: total (amount)", "column added: n (integer)"] == (
        effects["orders"]["changes"]
    )
    fault = effects["by_state"]["fault"]
    assert ("HW-P081", True) == (fault["code"], "`total`" in fault["detail"])
    assert (True, "stands still with by_state") == (
        effects["most"]["broken"],
        effects["most"]["does"],
    )
    assert (0, {"effects": []}) == shell("plan", "--migration", "-", given="SELECT 1")[:2]
    wrong = shell("plan", "--migration", "-", given="ALTER TABLE orders DROP x")
    assert (1, "HW-C088") == (wrong.code, wrong.document["error"]["code"])
    lost = shell("plan", "--migration", "nowhere.sql")
    assert (2, "nowhere.sql cannot be read") == (lost.code, lost.document["error"]["message"])

    with session.connect(store_dsn) as connection:
        connection.execute(migration.encode())
    found = shell("plan").document["differences"]
    views_told = {
        each["name"]: each
        for each in found
        if each["part"] == "view" and each["want"] != "is built"
    }
    assert {"orders", "by_state", "most", "placed"} == views_told.keys()
    assert "follows; the table is read again" == views_told["orders"]["want"]
    assert "`total`" in views_told["by_state"]["want"]
    assert "version 1 of parcel.sent is in the store" == views_told["placed"]["have"]
    assert '@types.upcaster("parcel.sent", 1)' == views_told["placed"]["hint"]
