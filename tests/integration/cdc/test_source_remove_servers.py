"""`headwater source remove` with Kafka and Connect: connector, offsets and topics go as well."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc.broker.topics import topics
from cdc.connect.rest import ConnectRest
from headwater.cli import main
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_capture import Captured

pytestmark = pytest.mark.integration

SETTINGS = """
[source.{name}]
dsn = "{dsn}"
[services.kafka]
address = "{kafka}"
[services.connect]
address = "{connect}"
"""
VIEWS = """
from headwater import source, view
shop = source("{name}", tables=["notes"])
view.mirror("notes", shop.notes)
"""


@pytest.fixture
def notes(database: str, capture: Callable[..., Captured]) -> Captured:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE notes (id int PRIMARY KEY)")
        connection.execute("INSERT INTO notes VALUES (1)")
    return capture("public.notes")


def test_connector_offsets_topics_and_all_at_the_source_go_and_a_second_time_nothing(
    notes: Captured,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spec = notes.spec
    given = {"name": spec.name, "dsn": spec.dsn}
    servers = {"kafka": spec.kafka_bootstrap, "connect": spec.connect_url}
    (tmp_path / "headwater.toml").write_text(SETTINGS.format(**given, **servers))
    (tmp_path / "views.py").write_text(VIEWS.format(**given))
    monkeypatch.chdir(tmp_path)

    def run(*line: str) -> tuple[int, Any, str]:
        code = main([*line])
        said = capsys.readouterr()
        return code, json.loads(said.out) if "--json" in line else said.out, said.err

    def of_source() -> set[str]:
        return {n for n in topics.names(spec.kafka_bootstrap) if n.startswith(f"{spec.name}.")}

    with closing(ConnectRest(spec.connect_url)) as rest:
        wait_until(lambda: rest.captured_through(spec.connector), "a stored offset")
        before = of_source()
        _, shown, _ = run("source", "remove", "--json")
        untouched = (rest.config(spec.connector) is not None, of_source())
        code, done, err = run("source", "remove", "--yes", "--json")
        assert 0 == code, err
        again = run("source", "remove", "--yes")

        going = [item["part"] for item in shown["items"] if item["goes"]]
        assert ["connector", "topics", "slot", "publication", "triggers", "schema"] == going
        assert (True, before) == untouched
        assert f"removed connector {spec.connector} and its offsets" in done["done"]
        assert {f"deleted topic {name}" for name in before} <= {*done["done"]}
        assert (0, True) == (again[0], "nothing is left to remove" in again[2])
        assert rest.config(spec.connector) is None
        assert rest.captured_through(spec.connector) is None
    wait_until(of_source, "no topic of the source", accept=lambda left: not left)
    with psycopg.connect(spec.dsn) as connection:
        left = connection.execute(
            "SELECT count(*) FILTER (WHERE slot_name = %(slot)s),"
            " (SELECT count(*) FROM pg_publication), (SELECT count(*) FROM pg_event_trigger),"
            " to_regnamespace('headwater') IS NULL FROM pg_replication_slots",
            {"slot": spec.slot},
        ).fetchone()
    assert (0, 0, 0, True) == left
