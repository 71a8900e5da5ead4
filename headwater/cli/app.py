"""The command tree and the one place where errors become exit codes.

A command's module is loaded only when the command runs: all modules with their imports take four
times as long to load as one.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typer.main import get_command

from foundation.errors import EXIT_INTERRUPTED, PlatformError
from headwater import __version__
from headwater.cli.hints import read_commands
from headwater.cli.options import Commands
from headwater.cli.output import print_error, stderr
from headwater.cli.words import in_order
from headwater.logging import configure
from headwater.project import optional

if TYPE_CHECKING:
    from collections.abc import Sequence

_MODULES: Final = {
    "demo": "demo",
    "up": "services",
    "down": "services",
    "status": "services",
    "logs": "services",
    "run": "run",
    "init": "init",
    "doctor": "doctor",
    "plan": "plan",
    "apply": "plan",
    "query": "data",
    "search": "search",
    "dashboard": "dashboard",
    "lag": "lag",
    "trace": "trace",
    "token": "token",
    "forget": "forget",
}
"""The module that adds each command, in the order of the help."""

_GROUPS: Final = ("alert", "cache", "db", "events", "quarantine", "reactor", "source", "view")
"""Command groups; each is the module of the same name."""


def command_line(words: Sequence[str] = ()) -> typer.Typer:
    """Returns the tree of commands, or the part of it that a command line needs.

    Args:
        words: The command line; the whole tree if they name no command.
    """
    app = Commands(
        name="headwater",
        help="Change data capture and event sourcing for Postgres: warehouse, search and "
        "cache views.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    asked = next((word for word in words if not word.startswith("-")), "")
    known = asked in _MODULES or asked in _GROUPS or (not asked and "--version" in words)
    for module in dict.fromkeys(_MODULES.values()):
        if not known or module == _MODULES.get(asked):
            import_module(f"headwater.cli.{module}").register(app)
    for group in _GROUPS:
        if not known or group == asked:
            app.add_typer(import_module(f"headwater.cli.{group}").app, name=group)
    return app


read_commands(lambda: get_command(command_line()))


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headwater {__version__}")
        raise typer.Exit


def _root(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Write logs to stderr.")] = False,
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
        command = get_command(command_line(words))
        words = in_order(command, words)
        result = command.main(args=words, prog_name="headwater", standalone_mode=False)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except typer.Exit as exit_:
        return exit_.exit_code
    except BrokenPipeError:  # the reader of our answer has enough
        sys.stderr.close()
        return 0
    except Exception as error:
        code = _printed_error(error, as_json="--json" in words)
        if code is None:
            raise
        return code
    return result if isinstance(result, int) else 0


def _printed_error(error: Exception, *, as_json: bool) -> int | None:
    """Prints an error and returns its exit code; None if only Headwater uses it."""
    if type(error).__module__.startswith(("click", "typer")):
        return _usage(error)
    reported = optional.missing(error) if isinstance(error, ModuleNotFoundError) else error
    if not isinstance(reported, PlatformError):
        return None
    print_error(reported, as_json=as_json)
    return reported.exit_code


def _usage(error: Exception) -> int:
    message = getattr(error, "format_message", lambda: str(error))()
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "Abort":
        return EXIT_INTERRUPTED
    if type(error).__name__ == "NoArgsIsHelpError":
        return int(getattr(error, "exit_code", 2))
    stderr.print(f"[bold red]error[/] {message}")
    if context is not None:
        values = "" if type(error).__name__ != "NoSuchOption" else "; a value follows after --"
        stderr.print(f"  [dim]repair[/] {context.command_path} --help{values}")
    return int(getattr(error, "exit_code", 2))
