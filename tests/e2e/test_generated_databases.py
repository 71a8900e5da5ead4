"""Generated databases go the whole way by the command line, from `init` to `source remove`.

Several generated databases are schemas of one. A twin without Headwater runs the same statements:
what it takes, the captured one must take, too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fix_services import fresh_database
from tests.fix_shell import Shell
from tests.support.database_attempts import ATTEMPT, NOT_LOGGED, attempt
from tests.support.database_grammar import COPIED, Database, databases, q

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=4),
    pytest.mark.timeout(1200),
]

SCHEMAS: Final = 8
TABLES: Final = """
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = ANY (%s) AND c.relkind IN ('r', 'p', 'f') AND NOT c.relispartition
"""
LEFT_AT_SOURCE: Final = """
SELECT (SELECT count(*) FROM pg_replication_slots WHERE database = current_database()),
       (SELECT count(*) FROM pg_publication), (SELECT count(*) FROM pg_event_trigger),
       to_regnamespace('headwater')
"""


def drawn(run_seed: int) -> list[Database]:
    """Some generated databases, each in a schema of its own name."""
    found: list[Database] = []

    @seed(run_seed)
    @settings(
        max_examples=SCHEMAS,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(databases())
    def draw(database: Database) -> None:
        found.append(replace(database, schema=f"{database.schema} {len(found)}"))

    draw()
    return found


@pytest.fixture
def twin(postgres_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A database that nothing captures."""
    with (
        fresh_database(postgres_dsn) as dsn,
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        yield connection
        connection.execute(f"COPY (SELECT) TO PROGRAM 'rm -f {COPIED}'".encode())


def test_generated_databases_are_captured_verified_and_released(
    database: str, twin: psycopg.Connection[Any], tmp_path: Path, run_seed: int
) -> None:
    every = drawn(run_seed)
    with psycopg.connect(database, autocommit=True) as source:
        for connection in (source, twin):
            connection.execute(ATTEMPT.encode())
            for each in every:
                connection.execute(f"CREATE SCHEMA {q(each.schema)}".encode())
                attempt(connection, q(each.schema), each.made)
        draft = Shell(tmp_path).json("init", "shop", "--dsn", database)
        shell = Shell(tmp_path / "shop")
        there = source.execute(TABLES, ([each.schema for each in every],)).fetchall()
        named = {choice["table"] for choice in draft["tables"]}
        assert len(named) == len(there) > 0
        assert all(choice["to"] or choice["reason"] for choice in draft["tables"])
        checks = shell.json("doctor")
        assert "fail" not in {check["state"] for check in checks}
        try:
            shell("up")
            refused = [text for each in every for text in _refused(source, twin, each)]
            assert not refused, every
            reports = shell.json("view", "verify")
            assert {report["view"] for report in reports}
            differing = [r for r in reports if r["missing"] or r["extra"] or r["different"]]
            assert not differing, every
            shell("source", "remove", "--yes")
            assert (0, 0, 0, None) == source.execute(LEFT_AT_SOURCE).fetchone()
        finally:
            shell("down", code=None)


def _refused(
    source: psycopg.Connection[Any], twin: psycopg.Connection[Any], database: Database
) -> list[str]:
    """Statements that the captured database refuses and the other one takes."""
    rows = [
        statement
        for statement in database.done
        if not statement.startswith(NOT_LOGGED) or statement.startswith("ALTER TYPE")
    ]
    could, can = (attempt(each, q(database.schema), rows) for each in (twin, source))
    return [
        f"{statement}: {now}"
        for statement, before, now in zip(rows, could, can, strict=True)
        if now and not before
    ]
