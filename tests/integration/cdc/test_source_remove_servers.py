"""`headwater source remove` with Kafka and Connect: connector, offsets and topics go as well."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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

    from tests.fix_capture import Captured

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
    write_project(tmp_path, notes)
    monkeypatch.chdir(tmp_path)

    def run(*line: str) -> tuple[int, Any, str]:
        code = main([*line])
        said = capsys.readouterr()
        return code, json.loads(said.out) if "--json" in line else said.out, said.err

    with closing(ConnectRest(spec.connect_url)) as rest:
        wait_until(lambda: rest.captured_through(spec.connector), "a stored offset")
        before = topics_of(notes)
        _, shown, _ = run("source", "remove", "--json")
        untouched = (rest.config(spec.connector) is not None, topics_of(notes))
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
    nothing_is_left(notes)


@pytest.mark.fault
@pytest.mark.parametrize(
    "step", ["removed connector", "deleted topic", "dropped slot", "dropped publication"]
)
def test_a_removal_that_is_killed_after_a_step_is_repeated(
    notes: Captured, tmp_path: Path, step: str
) -> None:
    write_project(tmp_path, notes)
    command = [sys.executable, "-m", "headwater", "source", "remove", "--yes"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADWATER_")}
    said = []
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    ) as killed:
        assert killed.stderr is not None
        for line in killed.stderr:
            said.append(line)
            if line.startswith(step):
                killed.kill()
                break

    again = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )

    assert 0 == again.returncode, again.stderr
    assert said[-1].startswith(step)
    assert not set(said) & set(again.stderr.splitlines(keepends=True))
    nothing_is_left(notes)


def write_project(folder: Path, notes: Captured) -> None:
    """Writes a project whose source is what is captured."""
    given = {"name": notes.spec.name, "dsn": notes.spec.dsn}
    servers = {"kafka": notes.spec.kafka_bootstrap, "connect": notes.spec.connect_url}
    (folder / "headwater.toml").write_text(SETTINGS.format(**given, **servers))
    (folder / "views.py").write_text(VIEWS.format(**given))


def topics_of(notes: Captured) -> set[str]:
    """Names of the source's topics that exist."""
    names = topics.names(notes.spec.kafka_bootstrap)
    return {name for name in names if name.startswith(f"{notes.spec.name}.")}


def nothing_is_left(notes: Captured) -> None:
    """Asserts that Connect, Kafka and the database have nothing of the capture."""
    spec = notes.spec
    with closing(ConnectRest(spec.connect_url)) as rest:
        wait_until(lambda: rest.config(spec.connector) is None, "no connector")
    wait_until(lambda: topics_of(notes), "no topic of the source", accept=lambda left: not left)
    with psycopg.connect(spec.dsn) as connection:
        left = connection.execute(
            "SELECT count(*) FILTER (WHERE slot_name = %(slot)s),"
            " (SELECT count(*) FROM pg_publication), (SELECT count(*) FROM pg_event_trigger),"
            " to_regnamespace('headwater') IS NULL FROM pg_replication_slots",
            {"slot": spec.slot},
        ).fetchone()
    assert (0, 0, 0, True) == left
