"""`headwater demo`: the whole path on real input."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from foundation.errors import EXIT_UNHEALTHY
from headwater.cli.options import Json
from headwater.cli.output import print_json, stderr, stdout
from headwater.demo.options import DEFAULT_HOME, DemoOptions
from headwater.errors import UsageError

_TRAFFIC_S = 30.0
_REBUILD_S = 120.0


class WorkloadName(StrEnum):
    """The included workloads."""

    GLOBALSHOP = "globalshop"
    GLOBALSHOP_LIVE = "globalshop-live"
    PGBENCH = "pgbench"


class ChaosTarget(StrEnum):
    """The processes that `--chaos` can kill."""

    KAFKA = "kafka"
    CONNECT = "connect"
    SPARK = "spark"
    SPARK_WORKER = "spark-worker-1"


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("demo")(demo)


def demo(
    *,
    workload: Annotated[
        WorkloadName, typer.Option("--workload", "-w", help="Tables and traffic to use.")
    ] = WorkloadName.GLOBALSHOP,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            help="Duration of the traffic; default: 30, with --rebuild 120.",
            min=1,
            max=86_400,
        ),
    ] = None,
    rate: Annotated[
        float, typer.Option("--rate", help="Row changes per second.", min=1, max=100_000)
    ] = 200.0,
    scale: Annotated[
        float,
        typer.Option(
            "--scale", help="Initial rows: 1 is 20,000 rows, for pgbench 100,000.", min=0.01
        ),
    ] = 1.0,
    chaos: Annotated[
        list[ChaosTarget] | None,
        typer.Option("--chaos", help="Kill this service with SIGKILL during traffic; repeatable."),
    ] = None,
    rebuild: Annotated[
        bool,
        typer.Option(
            "--rebuild",
            help="During traffic, rebuild a view, cut over to it and roll back.",
        ),
    ] = False,
    home: Annotated[
        Path, typer.Option("--home", help="Home folder; emptied at each start.")
    ] = DEFAULT_HOME,
    keep: Annotated[bool, typer.Option("--keep", help="Leave all services running.")] = False,
    save_screen: Annotated[
        Path | None, typer.Option("--save-screen", help="Save the last screen as an SVG file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Start all servers, load a shop, write to it, build its views and verify each view.

    Exits 0 only if every view in every store equals the source, and 3 if a row differs.
    """
    from headwater.demo.demo import run_demo  # noqa: PLC0415  # loads every driver
    from headwater.demo.report import report  # noqa: PLC0415

    if rebuild and workload is not WorkloadName.GLOBALSHOP:
        raise UsageError("--rebuild needs the workload globalshop", hint="omit --workload")
    options = DemoOptions(
        workload=workload,
        seconds=seconds or (_REBUILD_S if rebuild else _TRAFFIC_S),
        rate=rate,
        scale=scale,
        home=home.resolve(),
        keep=keep,
        chaos=tuple(dict.fromkeys(chaos or ())),
        rebuild=rebuild,
        save_screen=save_screen,
    )
    result = run_demo(options, stderr)
    if as_json:
        print_json(result.to_json())
    else:
        stdout().print(report(result))
    if not result.verified:
        raise typer.Exit(EXIT_UNHEALTHY)
