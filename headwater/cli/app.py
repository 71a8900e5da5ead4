"""The command tree and the one place where errors become exit codes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from typer.main import get_command

from headwater import __version__, extra
from headwater.cli import (
    alert,
    cache,
    dashboard,
    data,
    db,
    demo,
    doctor,
    events,
    forget,
    init,
    plan,
    quarantine,
    run,
    search,
    services,
    source,
    token,
    trace,
    view,
)
from headwater.cli.output import (
    EXIT_INTERRUPTED,
    PLATFORM_ERRORS,
    exit_code_of,
    print_error,
    stderr,
)
from headwater.logging import configure

app = typer.Typer(
    name="headwater",
    help="One Postgres is the truth; its log becomes warehouse, search and cache views.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for part in (
    demo,
    services,
    run,
    init,
    doctor,
    plan,
    data,
    search,
    dashboard,
    trace,
    token,
    forget,
):
    part.register(app)
app.add_typer(alert.app, name="alert")
app.add_typer(cache.app, name="cache")
app.add_typer(db.app, name="db")
app.add_typer(events.app, name="events")
app.add_typer(quarantine.app, name="quarantine")
app.add_typer(source.app, name="source")
app.add_typer(view.app, name="view")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headwater {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log what happens, to stderr.")
    ] = False,
) -> None:
    del version  # its callback has answered
    configure(verbose=verbose)


def main(arguments: list[str] | None = None) -> int:
    """Runs one command line.

    Args:
        arguments: Words after the command's name; the process's own if left out.

    Returns:
        The exit code.
    """
    words = sys.argv[1:] if arguments is None else arguments
    try:
        result = get_command(app).main(args=words, prog_name="headwater", standalone_mode=False)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except typer.Exit as exit_:
        return exit_.exit_code
    except (*PLATFORM_ERRORS, ModuleNotFoundError) as error:
        shown = extra.missing(error) if isinstance(error, ModuleNotFoundError) else error
        if shown is None:
            raise
        print_error(shown, as_json="--json" in words)
        return exit_code_of(shown)
    except BrokenPipeError:  # the reader of our answer has enough
        sys.stderr.close()
        return 0
    except Exception as error:
        if type(error).__module__.startswith(("click", "typer")):
            return _usage(error)
        raise
    return result if isinstance(result, int) else 0


def _usage(error: Exception) -> int:
    message = getattr(error, "format_message", lambda: str(error))()
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "Abort":
        return EXIT_INTERRUPTED
    if type(error).__name__ == "NoArgsIsHelpError":
        return int(getattr(error, "exit_code", 2))
    stderr.print(f"[bold red]error[/] {message}")
    if context is not None:
        stderr.print(f"  [dim]repair[/] {context.command_path} --help")
    return int(getattr(error, "exit_code", 2))
