"""Runs the statements of a generated database, and reports what the server refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

# One round trip for all statements; each that fails is undone by itself.
ATTEMPT: Final = """
CREATE FUNCTION public.attempt(path text, statements text[]) RETURNS text[]
LANGUAGE plpgsql AS $attempt$
DECLARE
    found text[] := '{}';
    statement text;
BEGIN
    FOREACH statement IN ARRAY statements LOOP
        BEGIN
            PERFORM set_config('search_path', path, true);
            EXECUTE statement;
            SET CONSTRAINTS ALL IMMEDIATE;
            found := found || ''::text;
        EXCEPTION WHEN OTHERS THEN
            found := found || (sqlstate || ' ' || sqlerrm);
        END;
    END LOOP;
    RETURN found;
END
$attempt$
"""

NOT_LOGGED: Final = ("ALTER", "CREATE", "DROP", 'TRUNCATE "part', 'TRUNCATE "rest of')
"""The server logs no change of a row for them: not even for a TRUNCATE of one partition."""


def attempt(connection: psycopg.Connection[Any], path: str, statements: Sequence[str]) -> list[str]:
    """Runs statements; returns an empty text or what is wrong for each.

    Args:
        connection: To a database that has the function `ATTEMPT`.
        path: The search path.
        statements: The statements; each that fails is undone by itself.
    """
    call = "SELECT public.attempt(%s, %s)"
    row = connection.execute(call, (path, list(statements))).fetchone()
    assert row is not None
    return list(row[0])
