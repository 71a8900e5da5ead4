"""`headwater init` on databases of strangers: what it chooses, says and writes."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc.postgres import own_schema, session
from cdc.table import TableName
from headwater.cli import main
from headwater.errors import UsageError
from headwater.platform.doctor import half_added_source
from headwater.project import scaffold
from headwater.project.added_text import NOTE, adding, joined, undo, unfinished
from headwater.project.project import open_project
from headwater.project.survey import TableSelection, survey
from projections.definition.views import Store
from tests.fix_services import fresh_database

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.integration

STRANGE = """
CREATE SCHEMA "acme.com"; CREATE SCHEMA sales; CREATE SCHEMA "склад";
CREATE TABLE events (id bigserial PRIMARY KEY, payload jsonb);
CREATE TABLE columns (id int PRIMARY KEY); CREATE TABLE tables (id int PRIMARY KEY);
CREATE TABLE name (id int PRIMARY KEY); CREATE TABLE source (id int PRIMARY KEY);
CREATE TABLE view (id int PRIMARY KEY); CREATE TABLE "class" (id int PRIMARY KEY);
CREATE TABLE "None" (id int PRIMARY KEY); CREATE TABLE changes (id int PRIMARY KEY);
CREATE TABLE "__EFMigrationsHistory" ("MigrationId" text PRIMARY KEY);
CREATE TABLE "Order Lines" (a int, b int, PRIMARY KEY (a, b));
CREATE TABLE "OrderLines" (a int PRIMARY KEY); CREATE TABLE order_lines (a int PRIMARY KEY);
CREATE TABLE sales.orders (id int PRIMARY KEY); CREATE TABLE "acme.com".orders (id int PRIMARY KEY);
CREATE TABLE orders (id int PRIMARY KEY, net numeric,
                     gross numeric GENERATED ALWAYS AS (net * 2) VIRTUAL);
CREATE TABLE "заказ" (id int PRIMARY KEY, "имя" text); CREATE TABLE "订单" (id int PRIMARY KEY);
CREATE TABLE "товар" (id int PRIMARY KEY);
CREATE TABLE "склад"."остаток" (id int PRIMARY KEY);
CREATE TABLE koan (); CREATE TABLE visits (at timestamptz, page text);
CREATE TABLE echo (g int GENERATED ALWAYS AS (1) STORED);
CREATE TABLE audit (id int, t text); ALTER TABLE audit REPLICA IDENTITY FULL;
CREATE UNLOGGED TABLE scratch (id int PRIMARY KEY);
CREATE TABLE nothing (id int PRIMARY KEY); ALTER TABLE nothing REPLICA IDENTITY NOTHING;
CREATE TABLE parts (id int, at date, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
CREATE TABLE parts_2026 PARTITION OF parts FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
CREATE TABLE dotted (id int PRIMARY KEY, b text, "b.c" text, "x." text, ".y" text);
CREATE TABLE own (_id int PRIMARY KEY, _source text);
CREATE TABLE feed (id int PRIMARY KEY, _change_type text, "c.d" text);
CREATE TABLE versioned (id int PRIMARY KEY, _version int);
CREATE TABLE "we""ird
name\\x" (id int PRIMARY KEY);
INSERT INTO sales.orders SELECT generate_series(1, 5000); ANALYZE sales.orders;
"""


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.chdir(tmp_path)

    def words(*line: str) -> tuple[int, str, str]:
        code = main([*line])
        said = capsys.readouterr()
        return code, said.out, said.err

    return words


@pytest.fixture
def strange(database: str) -> str:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(STRANGE.encode())
    return database


def test_what_init_writes_for_a_strange_database_passes_doctor(
    strange: str, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = run("init", "view", "--dsn", strange)
    monkeypatch.chdir(tmp_path / "view")
    healthy, checks, _ = run("doctor", "--json")
    declared = open_project().declarations

    failing = [check for check in json.loads(checks) if check["state"] == "fail"]
    assert (0, 0, []) == (code, healthy, failing)
    tables = {str(view.table) for view in declared.views.values()}
    assert 22 <= len(tables) == len(declared.views)
    (declared_source,) = declared.sources.values()
    assert {TableName("public", "товар")} == declared_source.escaped_topics
    assert {"public.events", "public.__EFMigrationsHistory", '"acme.com".orders'} < tables
    left_out = {
        f"public.{name}" for name in ("koan", "visits", "audit", "scratch", "nothing", "versioned")
    }
    assert not tables & {*left_out, "public.echo"}
    said = err + (tmp_path / "view" / "views.py").read_text()
    assert all(2 == said.count(table) for table in [*left_out, "public.echo"])
    assert "public.orders generated columns are left out: gross" in err
    assert "public.dotted not in search: the engine cannot index a column named 'b.c'" in err
    stores = {view.table.name: view.to for view in declared.views.values()}
    without_search = {table for table, to in stores.items() if Store.SEARCH not in to}
    assert {"dotted", "own", "feed"} == without_search
    assert (Store.CACHE,) == tuple(stores["feed"])
    assert "public.feed not in the warehouse: column _change_type is reserved" in err
    password = psycopg.conninfo.conninfo_to_dict(strange)["password"]
    assert password not in said


def test_what_of_a_table_is_not_in_the_log_is_named_to_people_too(
    strange: str, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session.connect(strange) as connection:
        own_schema.ensure(connection)
    _, _, told = run("init", "view", "--dsn", strange)
    monkeypatch.chdir(tmp_path / "view")
    _, said, _ = run("doctor")
    views = open_project().declarations.views.values()
    name = next(each.name for each in views if each.table == TableName("public", "orders"))
    code, explained, err = run("view", "explain", name, "--json")
    _, parts, _ = run("view", "explain", "parts", "--json")

    lines = [line for line in said.splitlines() if "TRUNCATE of one partition alone" in line]
    assert ["table public.parts"] == [line[2:].partition("  has")[0].strip() for line in lines]
    assert "public.parts has a key; TRUNCATE of one partition alone is not in the log" in told
    assert (0, "") == (code, err)
    assert (["gross"], []) == (json.loads(explained)["without"], json.loads(parts)["without"])


def test_a_table_without_a_key_is_published_only_if_it_is_named(
    strange: str, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, usual, _ = run("init", "a", "--dsn", strange, "--dry-run", "--json")
    _, like, _ = run("init", "b", "--dsn", strange, "--tables", "vis*,orders", "--json")
    _, named, _ = run("init", "c", "--dsn", strange, "--tables", "visits", "--json")
    monkeypatch.chdir(tmp_path / "c")
    healthy, _, _ = run("doctor")
    accepted = open_project().source.insert_only

    def visits(document: str) -> Any:
        return next(t for t in json.loads(document)["tables"] if t["table"] == "public.visits")

    assert [[], [], ["table", "search", "cache"]] == [visits(d)["to"] for d in (usual, like, named)]
    assert "Postgres refuses UPDATE and DELETE" in visits(usual)["reason"]
    assert "Postgres refuses UPDATE and DELETE" in visits(named)["notes"][0]
    assert (0, {TableName("public", "visits")}) == (healthy, accepted)


def test_a_dry_run_shows_choices_and_views_and_writes_nothing(
    strange: str, run: Any, tmp_path: Path
) -> None:
    code, out, err = run("init", "shop", "--dsn", strange, "--dry-run", "--exclude", "sales.*")

    assert (0, []) == (code, list(tmp_path.iterdir()))
    assert 'view.mirror("events", shop["public.events"])' in out
    assert "public.visits: has no primary key" in err
    assert "first load: 24 tables, about" in err
    assert "not mirrored sales.orders: left out by --exclude" in err


def test_only_what_is_asked_for_is_chosen(strange: str, run: Any) -> None:
    _, of_schema, _ = run("init", "a", "--dsn", strange, "--schemas", "sales,скл*", "--json")
    _, by_name, _ = run(
        "init", "b", "--dsn", strange, "--tables", "Order*", "--exclude", "OrderLines", "--json"
    )
    missing = run("init", "c", "--dsn", strange, "--tables", "evnts")
    no_schema = run("init", "c", "--dsn", strange, "--schemas", "slaes")

    def mirrored(document: str) -> list[str]:
        return [table["table"] for table in json.loads(document)["tables"] if table["to"]]

    assert ["sales.orders", "склад.остаток"] == mirrored(of_schema)
    assert 5000 == json.loads(of_schema)["first_load"]["rows"]
    assert ["public.Order Lines"] == mirrored(by_name)
    assert (2, True) == (missing[0], "did you mean public.events?" in missing[2])
    assert (2, True) == (no_schema[0], "did you mean sales?" in no_schema[2])


def test_a_database_in_which_nothing_can_be_mirrored_is_refused_by_name(
    database: str, run: Any, tmp_path: Path
) -> None:
    empty = run("init", "a", "--dsn", database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE koan (); CREATE TABLE visits (page text)")
    refused = run("init", "a", "--dsn", database)

    assert (2, True) == (empty[0], "has no tables" in empty[2])
    assert (2, True) == (refused[0], "has no columns: 1; has no primary key" in refused[2])
    assert [] == list(tmp_path.iterdir())


def test_large_tables_go_to_the_warehouse_and_not_to_a_disk_that_they_would_fill(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.project.survey.LARGE_BYTES", 100_000)
    with session.connect(database) as connection:
        connection.execute("CREATE TABLE small (id int PRIMARY KEY)")
        connection.execute("CREATE TABLE large (id int PRIMARY KEY, t text)")
        connection.execute(
            "INSERT INTO large SELECT i, repeat('x', 100) FROM generate_series(1, 5000) i"
        )
        stores = [
            {choice.table.name: len(choice.to) for choice in found.choices}
            for found in (
                survey(connection, database, "s", TableSelection(), 2**40),
                survey(connection, database, "s", TableSelection(), 500_000),
                survey(connection, database, "s", TableSelection(tables=("large",)), 500_000),
            )
        ]

    assert [{"small": 3, "large": 1}, {"small": 3, "large": 0}, {"small": 0, "large": 1}] == stores


def test_files_that_came_meanwhile_are_not_overwritten(strange: str, tmp_path: Path) -> None:
    draft = scaffold.draft(tmp_path / "shop", strange, "shop")
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "views.py").write_text("mine\n")

    with pytest.raises(UsageError):
        scaffold.write(draft)

    assert "mine\n" == (tmp_path / "shop" / "views.py").read_text()
    assert strange not in repr(draft)


WRITTEN = """# what a person has written: source, view and the names below keep their meaning
from headwater import source, view

shop = source("shop", tables=["orders"])
billing = view.mirror("orders", shop.orders)  # a name that the second source would like

"""


def test_a_second_source_is_added_at_the_end_of_what_a_person_has_written(
    postgres_dsn: str, run: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    with fresh_database(postgres_dsn) as first, fresh_database(postgres_dsn) as second:
        for dsn in (first, second):
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY)")
        assert 0 == run("init", ".", "--dsn", first, "--name", "shop")[0]
        (tmp_path / "views.py").write_text(WRITTEN)
        files = [tmp_path / name for name in ("headwater.toml", "views.py", ".env")]
        before = [file.read_text() for file in files]
        asked = ("init", "--add-source", "billing", "--dsn", second)
        _, shown, _ = run(*asked, "--dry-run")

        assert before == [file.read_text() for file in files]
        assert 'source("billing",tables=' in shown.replace("\n", "").replace("    ", "")
        assert "[source.billing]" in shown
        assert second not in shown
        code, _, said = run(*asked)
        assert (0, True) == (code, "headwater down" in said)
        assert before == [
            file.read_text()[: len(old)] for file, old in zip(files, before, strict=True)
        ]
        found = open_project(tmp_path / "headwater.toml")
        assert ("shop", "billing") == found.sources
        assert {"shop": ["orders"], "billing": ["billing_orders"]} == {
            part.source.name: sorted(part.views) for part in found.parts
        }
        assert 0o600 == files[2].stat().st_mode & 0o777
        again = run(*asked)
        assert (2, True) == (again[0], "has a source billing" in again[2])
        other = run("init", "--add-source", "mail", "--dsn", second)
        assert (2, True) == (other[0], "billing and mail are the same database" in other[2])
        wrong = run("init", "--add-source", "E-Mail", "--dsn", second)
        assert (2, True) == (wrong[0], "--add-source e_mail" in wrong[2])
        assert ("shop", "billing") == open_project(tmp_path / "headwater.toml").sources


def killed_at(number: int, folder: Path, words: tuple[str, ...]) -> bool:
    """Runs a command in a process that ends before its nth change of a file in a folder."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] != 0
    left = number

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT
        if not (writes or event in {"os.rename", "os.remove"}):
            return
        if str(arguments[0]).startswith(str(folder)):
            left -= 1
            if left == 0:
                os._exit(9)

    sys.addaudithook(audit)
    code = 1
    try:
        code = main(list(words))
    finally:
        os._exit(9 if code else 0)
    return False


def test_a_source_whose_adding_was_killed_anywhere_is_added_by_the_same_command(
    postgres_dsn: str, run: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    with fresh_database(postgres_dsn) as first, fresh_database(postgres_dsn) as second:
        for dsn in (first, second):
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY)")
        assert 0 == run("init", ".", "--dsn", first, "--name", "shop")[0]
        (tmp_path / "views.py").write_bytes(WRITTEN.replace("\n", "\r\n").encode().strip())
        asked = ("init", str(tmp_path), "--add-source", "billing", "--dsn", second)
        before = contents(tmp_path)
        assert 0 == run(*asked)[0]
        wanted = contents(tmp_path)
        number, said = 1, set()
        restore(tmp_path, before)
        while killed_at(number, tmp_path, asked):
            if (tmp_path / NOTE).exists():
                (check,) = half_added_source(tmp_path)
                said.add(check.name)
                said.add(run("view", "list")[2].partition("interrupted")[1])
                other = run(*asked[:3], "mail", *asked[4:], "--dry-run")
                assert (2, True) == (other[0], "added source billing" in other[2])
            else:
                there = contents(tmp_path)
                left = {name for name in there if name.startswith(f".{NOTE}")}  # no text in it
                assert {n: c for n, c in there.items() if n not in left} in (before, wanted), number
            if contents(tmp_path) != wanted:
                code, _, error = run(*asked)
                assert 0 == code, (number, error)
            assert wanted == contents(tmp_path), number
            restore(tmp_path, before)
            number += 1

        assert {"added source", "", "interrupted"} == said
        assert number > 10


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def restore(folder: Path, before: dict[str, bytes]) -> None:
    for name in contents(folder).keys() - before.keys():
        (folder / name).unlink()
    for name, content in before.items():
        (folder / name).write_bytes(content)


def test_what_a_person_has_written_since_a_kill_is_left_to_them(tmp_path: Path) -> None:
    file = tmp_path / "views.py"
    file.write_bytes(b"# mine\n")
    changed = [(file, joined(file, "\n# added\n"))]

    def interrupted() -> None:
        with adding(tmp_path, "billing", changed):
            file.write_bytes(changed[0][1])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (b"# mine\n", None) == (file.read_bytes(), unfinished(tmp_path))
    with adding(tmp_path, "billing", changed):
        note = (tmp_path / NOTE).read_bytes()
    (tmp_path / NOTE).write_bytes(note)
    file.write_bytes(b"# other\n")

    with pytest.raises(UsageError, match="has changed") as refused:
        undo(tmp_path)

    assert NOTE in str(refused.value.hint)
    assert b"# other\n" == file.read_bytes()
    file.write_bytes(changed[0][1])
    assert "billing" == undo(tmp_path)
    assert {"views.py": b"# mine\n"} == contents(tmp_path)
