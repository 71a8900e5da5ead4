"""`headwater db`: the schema of the event store, and the roles that may use it."""

from __future__ import annotations

from typing import Annotated

import typer

from eventstore.postgres import grant, schema
from foundation.errors import EXIT_UNHEALTHY
from headwater.cli.options import Commands, DatabaseOptions, Json, Yes
from headwater.cli.output import print_json, stderr
from headwater.errors import UsageError

app = Commands(help="The event store's schema in Postgres.", no_args_is_help=True)


@app.command("upgrade")
def upgrade(
    *,
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL without running it.")] = False,
    options: DatabaseOptions,
    as_json: Json = False,
) -> None:
    """Create the event store, or upgrade it to this version, in one transaction.

    The role needs CREATE on the database and becomes the owner of the event store. Other schemas
    are not changed.
    """
    database = options.database()
    if sql:
        typer.echo(schema.upgrade_script(database.dsn), nl=False)
        return
    ran = schema.upgrade(database.dsn)
    if as_json:
        print_json({"ran": ran, "current": schema.LATEST})
        return
    for revision in ran:
        typer.echo(f"ran {revision}")
    if not ran:
        typer.echo(f"nothing to do: the database is at {schema.LATEST}")


@app.command("current")
def current(
    *,
    options: DatabaseOptions,
    as_json: Json = False,
) -> None:
    """Show the event store's schema version. Exits 3 if this program requires another."""
    database = options.database()
    version = schema.current(database.dsn)
    if as_json:
        document = {"current": version, "latest": schema.LATEST, "ready": version == schema.LATEST}
        print_json(document)
    else:
        typer.echo(version or "no event store")
    if version != schema.LATEST:
        if not as_json:
            stderr.print(f"this code works with {schema.LATEST}: headwater db upgrade")
        raise typer.Exit(EXIT_UNHEALTHY)


@app.command("downgrade")
def downgrade(
    *,
    yes: Yes = False,
    options: DatabaseOptions,
) -> None:
    """Drop the event store with every event and every key."""
    if not yes:
        raise UsageError("the command drops every event and every key", hint="add --yes to confirm")
    database = options.database()
    undone = schema.downgrade(database.dsn)
    for revision in undone:
        typer.echo(f"took back {revision}")
    if not undone:
        typer.echo("nothing to do: there is no event store")


@app.command("grant")
def grant_use(
    role: Annotated[str, typer.Argument(help="The application's role; it must exist.")],
    *,
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="Bind the role permanently to this tenant.")
    ] = None,
    options: DatabaseOptions,
) -> None:
    """Allow a role to append and read; with --tenant, bind it permanently to that tenant.

    The role can never change or delete an event.
    """
    database = options.database()
    for line in grant.grant(database.dsn, role, tenant=tenant):
        typer.echo(line)
