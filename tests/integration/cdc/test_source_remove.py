"""What a capture has made at its source goes, by choice and after kills; another's stays."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc.capture import HEARTBEAT_TABLE
from cdc.postgres import (
    captures,
    escaped_topics,
    own_schema,
    publication,
    server,
    session,
    slot,
)
from cdc.postgres.captures import Capture
from cdc.schema_change import history, trigger
from cdc.table import TableName
from cdc.topic_names import TopicNames
from cdc.upkeep import remnants
from cdc.upkeep.errors import RemovalError
from cdc.upkeep.remnants import RemnantKind
from headwater.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration

ORDERS = TableName("public", "orders")
PARTS = [str(part) for part in RemnantKind]


@pytest.fixture
def source(database: str) -> Iterator[psycopg.Connection[Any]]:
    with session.connect(database) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        yield connection


def capture(connection: psycopg.Connection[Any], name: str = "shop") -> None:
    """Makes at the source what `apply` makes there."""
    own_schema.ensure(connection)
    publication.ensure(connection, f"headwater_{name}", [ORDERS, HEARTBEAT_TABLE])
    trigger.ensure(connection)
    history.observe(connection, [ORDERS])
    made_at = slot.make(connection, f"headwater_{name}")
    here = server.identify(connection)
    noted = Capture(name, 1, f"headwater_{name}", made_at, here.system_id, here.timeline)
    captures.record(connection, noted)


def there(connection: psycopg.Connection[Any]) -> set[str]:
    """Names of everything that a capture could have made."""
    rows = connection.execute(
        "SELECT 'slot ' || slot_name FROM pg_replication_slots"
        " WHERE database = current_database()"
        " UNION ALL SELECT 'publication ' || pubname FROM pg_publication"
        " UNION ALL SELECT 'trigger ' || evtname FROM pg_event_trigger"
        " UNION ALL SELECT 'schema ' || nspname FROM pg_namespace WHERE nspname = 'headwater'"
    ).fetchall()
    return {name for (name,) in rows}


def everything(connection: psycopg.Connection[Any], name: str = "shop") -> list[str]:
    return [
        line
        for remnant in remnants.find(connection, name)
        if remnant.removable
        for line in remnants.drop(connection, name, remnant)
    ]


def test_all_of_a_capture_goes_and_a_second_time_nothing(source: psycopg.Connection[Any]) -> None:
    before = there(source)
    capture(source)

    found = remnants.find(source, "shop")
    first, second = everything(source), everything(source)

    assert PARTS == [str(remnant.part) for remnant in found]
    assert (4, [], before) == (len(first), second, there(source))
    assert source.execute("SELECT count(*) FROM orders").fetchone() == (0,)


def test_the_names_of_escaped_topics_go_with_their_source(
    source: psycopg.Connection[Any],
) -> None:
    for name in ("shop", "other"):
        capture(source, name)
        escaped_topics.note(source, TopicNames(name, frozenset({ORDERS})), [ORDERS])

    everything(source)
    assert not escaped_topics.names(source, "shop").escaped
    assert escaped_topics.names(source, "other").escaped
    everything(source, "other")
    assert set() == there(source)


@pytest.mark.parametrize("point", ["intended", "made", "noted", "repair begun", "repair made"])
def test_a_capture_that_was_killed_around_its_slot_is_removed_as_a_whole(
    source: psycopg.Connection[Any], point: str
) -> None:
    """A slot cannot be made in the transaction that notes it; a kill may lie between the two."""
    name = "headwater_shop"
    if point in {"intended", "made"}:
        own_schema.ensure(source)
        publication.ensure(source, name, [ORDERS, HEARTBEAT_TABLE])
        captures.intend(source, "shop", name)
        if point == "made":
            slot.make(source, name)
    else:
        capture(source)
        if point != "noted":
            known = captures.find(source, "shop")
            assert known is not None
            captures.begin_repair(source, replace(known, repairing=2))
            slot.drop(source, name)
        if point == "repair made":
            slot.make(source, name)

    everything(source)

    assert set() == there(source)
    assert [] == remnants.left_behind(source, "another")


@pytest.mark.parametrize("killed_after", range(4))
def test_a_removal_that_was_killed_goes_on(
    source: psycopg.Connection[Any], killed_after: int
) -> None:
    capture(source)
    for remnant in remnants.find(source, "shop")[:killed_after]:
        remnants.drop(source, "shop", remnant)

    rest = everything(source)

    assert (4 - killed_after, set()) == (len(rest), there(source))


def test_a_removal_that_is_killed_amid_a_step_has_not_begun_it(
    source: psycopg.Connection[Any], database: str
) -> None:
    capture(source)
    for remnant in remnants.find(source, "shop")[:-1]:
        remnants.drop(source, "shop", remnant)
    (schema,) = remnants.find(source, "shop")
    with psycopg.connect(database) as other:  # keeps a table from being dropped
        other.execute("LOCK TABLE headwater.alert_messages IN ACCESS SHARE MODE")
        source.execute("SET statement_timeout = '300ms'")
        with pytest.raises(RemovalError):
            remnants.drop(source, "shop", schema)
    source.execute("RESET statement_timeout")

    assert own_schema.exists(source)
    assert ["dropped schema headwater"] == everything(source)


def test_objects_of_the_same_names_that_another_made_stay(
    source: psycopg.Connection[Any],
) -> None:
    source.execute("CREATE SCHEMA headwater")
    source.execute("CREATE TABLE headwater.captures (source text, slot text)")
    source.execute("INSERT INTO headwater.captures VALUES ('shop', 'headwater_shop')")
    source.execute("CREATE PUBLICATION headwater_shop FOR TABLE orders")
    source.execute(
        "CREATE FUNCTION public.mine() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'"
    )
    for name, event in (("ddl", "ddl_command_end"), ("drop", "sql_drop")):
        source.execute(
            f"CREATE EVENT TRIGGER headwater_{name} ON {event} EXECUTE FUNCTION mine()".encode()
        )
    source.execute("SELECT pg_create_logical_replication_slot('headwater_shop', 'pgoutput')")
    before = there(source)

    found = remnants.find(source, "shop")
    gone = everything(source)
    for remnant in found:
        with pytest.raises(RemovalError):
            remnants.drop(source, "shop", remnant)

    assert [] == [remnant.part for remnant in found if remnant.removable] == gone
    assert {"slot", "publication", "schema"} == {str(remnant.part) for remnant in found}
    assert before == there(source)
    assert not trigger.drop_all(source)


def test_what_another_put_into_the_schema_or_on_it_stays(source: psycopg.Connection[Any]) -> None:
    capture(source)
    source.execute("CREATE TABLE headwater.mine (id int)")
    said = everything(source)
    tables = source.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'headwater'::regnamespace"
    ).fetchall()
    source.execute("DROP SCHEMA headwater CASCADE")
    capture(source)
    source.execute("CREATE VIEW progress AS SELECT * FROM headwater.view_positions")

    refused = [t for t in remnants.find(source, "shop") if t.part is not RemnantKind.SCHEMA]
    for remnant in refused:
        remnants.drop(source, "shop", remnant)
    with pytest.raises(RemovalError) as kept:
        everything(source)

    assert "the rest of it stays" in said[-1]
    assert [("mine",)] == tables
    assert "depend" in str(kept.value.detail)
    assert source.execute("SELECT count(*) FROM progress").fetchone() == (0,)


def test_a_publication_of_another_role_stays(source: psycopg.Connection[Any]) -> None:
    capture(source)
    source.execute(f"CREATE ROLE r_{source.info.dbname}")
    owner = f"r_{source.info.dbname}"
    source.execute(f"ALTER ROLE {owner} SUPERUSER")
    source.execute(f"ALTER PUBLICATION headwater_shop OWNER TO {owner}")

    found = {str(remnant.part): remnant for remnant in remnants.find(source, "shop")}
    everything(source)

    left = there(source)
    source.execute("DROP PUBLICATION headwater_shop")
    source.execute(f"DROP ROLE {owner}")
    assert (False, "another role made it") == (
        found["publication"].removable,
        found["publication"].why,
    )
    assert {"publication headwater_shop"} == left


def test_of_two_captures_of_a_database_one_goes_and_the_other_stays(
    source: psycopg.Connection[Any],
) -> None:
    capture(source)
    before = there(source)
    capture(source, "other")
    source.execute(
        "INSERT INTO headwater.view_positions VALUES ('v', 'table', 'other', '0/1', now()),"
        " ('w', 'table', 'shop', '0/1', now())"
    )

    gone = everything(source, "other")

    assert before == there(source)
    assert 3 == len(gone)
    positions = source.execute("SELECT view, source FROM headwater.view_positions").fetchall()
    assert [("w", "shop")] == positions
    assert captures.find(source, "shop") is not None
    assert [] == everything(source, "other")


SETTINGS = '[source.shop]\ndsn = "{dsn}"\n'
VIEWS = 'from headwater import source, view\nshop = source("shop", tables=["orders"])\n'


@pytest.fixture
def run(
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[int, str, str]]:
    (tmp_path / "headwater.toml").write_text(SETTINGS.format(dsn=database))
    (tmp_path / "views.py").write_text(VIEWS + 'view.mirror("orders", shop.orders)\n')
    monkeypatch.chdir(tmp_path)

    def words(*line: str) -> tuple[int, str, str]:
        code = main([*line])
        said = capsys.readouterr()
        return code, said.out, said.err

    return words


def test_the_command_shows_first_and_removes_what_is_chosen(
    source: psycopg.Connection[Any], run: Any, tmp_path: Path
) -> None:
    capture(source)
    before = there(source)
    checkpoints = tmp_path / ".headwater" / "checkpoints" / "shop" / "q"
    checkpoints.mkdir(parents=True)

    code, shown, _ = run("source", "remove", "--json")
    same = there(source)
    early = run("source", "remove", "--only", "schema", "--yes")
    partly = run("source", "remove", "--keep", "publication,schema,checkpoints", "--yes")
    then = there(source)
    rest = run("source", "remove", "--yes", "--json")
    again = run("source", "remove", "--yes")
    strange = run("source", "remove", "--only", "tables")

    going = [item["part"] for item in json.loads(shown)["items"] if item["goes"]]
    assert (0, [*PARTS, "checkpoints"], before) == (code, going, same)
    assert (2, True) == (early[0], "the schema is removed last" in early[2])
    assert (0, {"publication headwater_shop", "schema headwater"}) == (partly[0], then)
    assert 3 == len(json.loads(rest[1])["done"])
    assert (set(), False) == (there(source), checkpoints.exists())
    assert (0, True) == (again[0], "nothing is left to remove" in again[2])
    assert (2, True) == (strange[0], "no part tables" in strange[2])


def test_without_a_project_a_database_alone_is_cleaned(
    source: psycopg.Connection[Any], run: Any, database: str, tmp_path: Path
) -> None:
    capture(source, "trial")
    (tmp_path / "headwater.toml").unlink()

    unnamed = run("source", "remove", "--dsn", database)
    done = run("source", "remove", "--dsn", database, "--source", "trial", "--yes")

    assert (2, True) == (unnamed[0], "--source NAME" in unnamed[2])
    assert (0, set()) == (done[0], there(source))


def test_doctor_finds_what_an_earlier_trial_left_behind(
    source: psycopg.Connection[Any], run: Any
) -> None:
    _, clean, _ = run("doctor", "--json")
    capture(source, "trial")
    source.execute("INSERT INTO orders SELECT generate_series(1, 1000)")
    capture(source)
    _, checks, _ = run("doctor", "--json")

    def left(document: str) -> list[Any]:
        wanted = ("left behind", "earlier capture")
        return [check for check in json.loads(document) if check["name"] in wanted]

    earlier, other = left(checks)
    assert [] == left(clean)
    assert "source shop was captured before" in earlier["message"]
    assert "of source trial" in other["message"]
    assert "slot headwater_trial" in other["detail"]
    assert "MiB of log" in other["detail"]
    assert "headwater source remove --source trial" in other["hint"]


def test_down_says_what_the_slot_still_costs(source: psycopg.Connection[Any], run: Any) -> None:
    _, _, nothing = run("down")
    capture(source)

    _, _, said = run("down")

    assert "slot" not in nothing
    assert "headwater_shop at the source retains" in said
    assert "headwater source remove" in said
