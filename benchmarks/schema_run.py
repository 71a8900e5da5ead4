"""Runs the whole path over a schema of another application: `python -m benchmarks.schema_run FILE`.

The file is what `pg_dump --schema-only` writes, or any other SQL. It is loaded into a database of
its own, each mirrored table gets generated rows, and then: `init`, `doctor`, `up`, `plan`, traffic
on every table, `view verify`, `source remove`. Prints one JSON document, and ends with 1 if a view
differs or `doctor` fails. Statements that the server refuses are counted: those of extensions that
it lacks, for example.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import psutil
import psycopg
from psycopg import sql

from headwater import runtime
from headwater.platform.specs import JOB
from headwater.runtime import RuntimeSpec, ServiceName, Spawned

_COMMAND_S: Final = 1_800

_COLUMNS: Final = """
SELECT a.attname, format_type(a.atttypid, NULL),
       CASE WHEN t.typtype = 'd' THEN format_type(t.typbasetype, NULL)
            ELSE format_type(a.atttypid, NULL) END,
       (SELECT array_agg(enumlabel::text ORDER BY enumsortorder) FROM pg_enum
         WHERE enumtypid = a.atttypid),
       CASE WHEN a.atttypid IN ('varchar'::regtype, 'bpchar'::regtype) AND a.atttypmod > 4
            THEN a.atttypmod - 4 END,
       a.attnotnull, a.attnum = ANY (coalesce(i.indkey, '')::int2[])
  FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
  LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
 WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped
   AND a.attgenerated = '' AND a.attidentity <> 'a'
 ORDER BY a.attnum
"""

_VALUES: Final = {
    "boolean": "true",
    "uuid": "00000000-0000-4000-8000-{:012d}",
    "date": "2026-01-{day:02d}",
    "time without time zone": "10:{day:02d}:00",
    "timestamp without time zone": "2026-01-{day:02d} 10:00:00",
    "timestamp with time zone": "2026-01-{day:02d} 10:00:00+00",
    "json": '{{"n": {}}}',
    "jsonb": '{{"n": {}}}',
    "bytea": "\\x{:04d}",
    "inet": "10.0.0.{day}",
    "interval": "{} hours",
    "tsvector": "word{}",
    "point": "({},1)",
    "xml": "<n>{}</n>",
}
_NUMBERS: Final = frozenset({
    *("smallint", "integer", "bigint", "numeric", "real", "double precision", "money", "oid"),
})  # fmt: skip


class Project:
    """A project's folder, and the command line in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seconds: dict[str, float] = {}

    def run(self, *words: str, code: int | None = 0) -> str:
        """Runs a command and notes how long it took.

        Raises:
            RuntimeError: It ended otherwise.
        """
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "headwater", *words],
            cwd=self.folder, capture_output=True, text=True, timeout=_COMMAND_S, check=False,
        )  # fmt: skip
        self.seconds[words[0] if words[0] != "view" else words[1]] = time.monotonic() - began
        if code is not None and done.returncode != code:
            raise RuntimeError(f"{words} ended with {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout


class Application:
    """Writes rows into every table, past foreign keys and triggers."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        connection.execute("SET session_replication_role = replica")

    def insert(self, table: str, first: int, count: int) -> int:
        """Inserts generated rows; returns how many the server took."""
        columns = self._columns(table)
        taken = 0
        for number in range(first, first + count):
            values = {name: _value(number, *kind) for name, kind in columns.items()}
            names = sql.SQL(", ").join(map(sql.Identifier, values))
            places = sql.SQL(", ").join(sql.Placeholder() * len(values))
            query = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(sql.SQL(table), names, places)
            taken += self._try(query, list(values.values()))
        return taken

    def change(self, table: str) -> int:
        """Updates and deletes rows; returns how many statements the server took."""
        columns = self._columns(table)
        free = [name for name, (*_, key) in columns.items() if not key]
        taken = 0
        for name in free[:3]:
            value = _value(7, *columns[name])
            query = sql.SQL("UPDATE {} SET {} = {}").format(
                sql.SQL(table), sql.Identifier(name), sql.Placeholder()
            )
            taken += self._try(query, [value])
        gone = sql.SQL(
            "DELETE FROM {} WHERE (tableoid, ctid) IN (SELECT tableoid, ctid FROM {} LIMIT 2)"
        ).format(sql.SQL(table), sql.SQL(table))
        return taken + self._try(gone, [])

    def _columns(self, table: str) -> dict[str, tuple[Any, ...]]:
        rows = self._connection.execute(_COLUMNS, (table,)).fetchall()
        return {name: tuple(kind) for name, *kind in rows}

    def _try(self, query: sql.Composed, values: list[Any]) -> bool:
        try:
            with self._connection.transaction():
                self._connection.execute(query, values)
        except psycopg.Error:
            return False
        return True


def _value(  # what is known of a column
    number: int,
    _type: str,
    base: str,
    labels: list[str] | None,
    length: int | None,
    _not_null: bool,  # as the catalog has it
    _key: bool,
) -> str:
    day = number % 28 + 1
    if labels:
        return labels[number % len(labels)]
    if base.endswith("[]"):
        return "{}"
    if base in _NUMBERS:
        return str(number)
    if base in _VALUES:
        return _VALUES[base].format(number, day=day)
    return f"v{number}"[:length]


def load(dsn: str, file: Path) -> int:
    """Loads a schema; returns how many statements the server refused."""
    psql = Path(next(Path(sys.prefix).rglob("pginstall18/bin/psql")))
    done = subprocess.run(
        [psql, "-q", "-X", "-d", dsn, "-f", file], capture_output=True, text=True, check=False
    )
    return done.stderr.count("ERROR:")


def tables_of(draft: dict[str, Any]) -> dict[str, str]:
    """Mirrored tables as `init` names them, and as SQL does."""
    found = {}
    for each in draft["tables"]:
        if each["to"]:
            schema, _, name = each["table"].partition(".")
            found[each["table"]] = ".".join(f'"{part}"' for part in (schema, name))
    return found


def job_memory_mib(project: Project) -> int:
    """Returns the resident memory of the job: its Python, its JVM and its workers."""
    services = json.loads(project.run("status", "--json", code=None))["services"]
    job = next(psutil.Process(s["pid"]) for s in services if s["name"] == JOB and s["pid"])
    family = [job, *job.children(recursive=True)]
    return sum(process.memory_info().rss for process in family) // (1024 * 1024)


def measure(dsn: str, folder: Path, rows: int) -> dict[str, Any]:
    """Takes a database through the whole path; returns what was seen."""
    outside = Project(folder)
    draft = json.loads(outside.run("init", "shop", "--dsn", dsn, "--json"))
    tables = tables_of(draft)
    project = Project(folder / "shop")
    with psycopg.connect(dsn, autocommit=True) as connection:
        application = Application(connection)
        filled = sum(application.insert(table, 1, rows) > 0 for table in tables.values())
        checks = json.loads(project.run("doctor", "--json", code=None))
        try:
            project.run("up")
            planned = len(json.loads(project.run("plan", "--json", code=None))["differences"])
            for table in tables.values():
                application.insert(table, 1 + rows, 5)
            changed = sum(application.change(table) > 0 for table in tables.values())
            reports = json.loads(project.run("view", "verify", "--json", code=None))
            memory_mib = job_memory_mib(project)
            project.run("source", "remove", "--yes", code=None)
        finally:
            project.run("down", code=None)
    wrong = [r for r in reports if r["missing"] or r["extra"] or r["different"]]
    return {
        "tables": len(draft["tables"]),
        "mirrored": len(tables),
        "filled": filled,
        "changed": changed,
        "left_out": {e["table"]: e["reason"] for e in draft["tables"] if not e["to"]},
        "planned": planned,
        "failing": [check["name"] for check in checks if check["state"] == "fail"],
        "job_memory_mib": memory_mib,
        "rows": sum(report["rows"] for report in reports),
        "different": [f"{r['view']} in {r['store']}" for r in wrong],
        "seconds": {k: round(v, 1) for k, v in {**outside.seconds, **project.seconds}.items()},
    }


def main() -> int:
    """Runs each file on a server of its own; the exit code is 1 if one of them is not whole."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.schema_run")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--rows", type=int, default=20, help="Rows that each table begins with.")
    arguments = parser.parse_args()
    whole = True
    with tempfile.TemporaryDirectory(prefix="headwater-schema-") as folder:
        home = Path(folder) / ".headwater"
        spec = RuntimeSpec(home=home, services={ServiceName.POSTGRES: Spawned()}, lifeline=True)
        server = runtime.up(spec).postgres_dsn or ""
        try:
            for number, file in enumerate(arguments.files):
                name = f"schema_{number}"
                with psycopg.connect(server, autocommit=True) as connection:
                    connection.execute(f"CREATE DATABASE {name}".encode())
                dsn = server.rpartition("/")[0] + f"/{name}"
                refused = load(dsn, file)
                place = Path(folder) / name
                place.mkdir()
                found = {
                    "schema": file.name,
                    "refused": refused,
                    **measure(dsn, place, arguments.rows),
                }
                sys.stdout.write(json.dumps(found, ensure_ascii=False, indent=2) + "\n")
                sys.stdout.flush()
                whole = whole and not found["different"] and not found["failing"]
        finally:
            runtime.down(home)
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
