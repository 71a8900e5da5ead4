"""A project that runs, with its command line and its source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from tests.fix_shell import Shell


@dataclass(frozen=True, slots=True)
class RunningProject:
    """A project that runs.

    Attributes:
        shell: Its command line.
        database: DSN of its source.
    """

    shell: Shell
    database: str

    def execute(self, *statements: str) -> None:
        """Runs statements at the source, each in its own transaction."""
        with psycopg.connect(self.database, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def answer(self, query: str) -> Any:
        """Returns the only value of a query at the source."""
        with psycopg.connect(self.database, autocommit=True) as connection:
            row = connection.execute(query.encode()).fetchone()
        assert row is not None
        (value,) = row
        return value
