"""`headwater init`: from a user's database to a project that runs."""

from __future__ import annotations

import keyword
import re
from typing import TYPE_CHECKING

from cdc.postgres import catalog, session
from headwater.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cdc.table import TableName, TableSchema

_SETTINGS = """\
# Settings of this project; `headwater doctor` checks what they point to.
# What is not named here runs locally, on loopback, started by `headwater up`.

[project]
name = "{name}"
views = "views.py"

[source.{source}]
dsn = "${{{variable}}}"        # kept in .env beside this file, or in the environment

# Servers that already run are used by their address:
# [services.kafka]
# address = "broker.example:9092"
# [services.connect]
# address = "http://connect.example:8083"
# [services.search]
# address = "http://search.example:9200"
# [services.cache]
# address = "redis://cache.example:6379/0"

# [spark]
# master = "local[4]"
"""

_VIEWS = '''\
"""What is derived from {source}: each line is a view, kept in the stores that it names."""

from headwater import source, view

{source} = source(
    "{source}",
    tables=[
{tables}
    ],
)

{views}
'''


def create(folder: Path, dsn: str, name: str) -> list[str]:
    """Looks into a database and writes a project for it.

    Args:
        folder: Where; made if missing, never overwritten.
        dsn: The database.
        name: Name of the source and the project.

    Returns:
        What was written and what was noticed, one line each.

    Raises:
        UsageError: The folder holds a project already, or the database has no table.
        PostgresError: The database cannot be reached; each cause has its own code.
    """
    settings_file, views_file, secrets = (
        folder / "headwater.toml",
        folder / "views.py",
        folder / ".env",
    )
    for file in (settings_file, views_file, secrets):
        if file.exists():
            raise UsageError(f"{file} exists already", hint="choose another folder")
    with session.connect(dsn) as connection:
        tables = catalog.list_tables(connection)
        schemas = catalog.describe(connection, tables)
    if not tables:
        raise UsageError(
            "the database has no table of yours", hint="create one, or check the database's name"
        )
    source = _identifier(name)
    variable = f"{source.upper()}_DSN"
    folder.mkdir(parents=True, exist_ok=True)
    settings_file.write_text(
        _SETTINGS.format(name=source.replace("_", "-"), source=source, variable=variable)
    )
    views_file.write_text(_views(source, [schemas[table] for table in tables]))
    secrets.touch(mode=0o600)
    secrets.write_text(f"{variable}={dsn}\n")
    with (folder / ".gitignore").open("a") as ignored:  # a folder may have one already
        ignored.write("\n.env\n.headwater/\n")
    said = [f"wrote {file}" for file in (settings_file, views_file, secrets)]
    without_key = [str(table) for table in tables if not schemas[table].key]
    return said + [
        f"{table} has no primary key: inserts are mirrored row by row; while it is captured, "
        "Postgres refuses UPDATE and DELETE on it until it has one"
        for table in without_key
    ]


def _views(source: str, schemas: Sequence[TableSchema]) -> str:
    tables = "\n".join(f'        "{_quoted(schema.table)}",' for schema in schemas)
    names = _view_names([schema.table for schema in schemas])
    views = "\n".join(
        f'view.mirror("{names[schema.table]}", {_reference(source, schema.table, schemas)})'
        for schema in schemas
    )
    return _VIEWS.format(source=source, tables=tables, views=views)


def _reference(source: str, table: TableName, schemas: Sequence[TableSchema]) -> str:
    alone = sum(schema.table.name == table.name for schema in schemas) == 1
    simple = table.name.isidentifier() and not keyword.iskeyword(table.name)
    plain = simple and alone and table.name not in {"name", "tables"}
    return f"{source}.{table.name}" if plain else f'{source}["{_quoted(table)}"]'


def _quoted(table: TableName) -> str:
    return str(table).replace("\\", "\\\\").replace('"', '\\"')


def _view_names(tables: Sequence[TableName]) -> dict[TableName, str]:
    """A name for each view: the table's, with its schema or a number where that is taken."""
    names: dict[TableName, str] = {}
    taken: set[str] = set()
    for table in tables:
        base = _identifier(table.name)
        candidates = [base, _identifier(f"{table.schema}_{table.name}")]
        numbered = (f"{base}_{number}" for number in range(2, len(tables) + 2))
        name = next(name for name in [*candidates, *numbered] if name not in taken)
        taken.add(name)
        names[table] = name
    return names


def _identifier(text: str) -> str:
    lowered = re.sub(r"[^a-z0-9_]+", "_", text.lower()).strip("_") or "view"
    return (lowered if lowered[0].isalpha() else f"v_{lowered}")[:60]
