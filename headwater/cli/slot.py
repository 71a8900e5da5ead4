"""`headwater source slot`: what the slot holds back at the source, and what becomes of it."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from cdc import source as capture
from cdc.postgres import captures, pressure, session
from cdc.postgres.pressure import Level, Pressure
from foundation.errors import EXIT_UNHEALTHY
from headwater.cli.options import Json, SourceOptions
from headwater.cli.output import duration, print_json, print_rows, stderr, stdout

if TYPE_CHECKING:
    from psycopg import Connection

_MIB = 1024 * 1024
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", ""})
_COLOURS = {Level.OK: "green", Level.WARN: "yellow", Level.DANGER: "bold red"}


def slot(
    *,
    disk_bytes: Annotated[
        int | None,
        typer.Option(
            "--disk-bytes",
            min=1,
            help="Size of the disk with the source's log, if it cannot be read from here.",
        ),
    ] = None,
    options: SourceOptions,
    as_json: Json = False,
) -> None:
    """Show how much log the slot retains, how fast the log grows, and when the disk would be full.

    The forecast assumes that the slot's reader has stopped, and applies only while it has. Exits 3
    if changes are missing, or will be within an hour.
    """
    platform = options.platform()
    spec = platform.capture_spec()
    size = disk_bytes or platform.project.settings.for_source(spec.name).wal_disk_bytes
    loss = capture.loss(spec)
    with session.connect(spec.dsn) as connection:
        found = pressure.look(
            connection,
            spec.slot,
            beat_s=spec.heartbeat_interval_ms / 1000,
            disk_bytes=_free(connection, size),
            before=captures.noted_wal(connection, spec.name),
        )
    if as_json:
        print_json({**_document(found), "loss": None if loss is None else loss.document()})
    else:
        _print(found, loss)
    if found is None or loss is not None or found.level is Level.DANGER:
        raise typer.Exit(EXIT_UNHEALTHY)


def _free(connection: Connection[Any], size: int | None) -> int | None:
    """Free bytes for the log: of a given size, or of a disk of this machine."""
    if size is not None:
        taken = pressure.wal_bytes(connection)
        return None if taken is None else max(0, size - taken)
    if connection.info.host not in _LOOPBACK:
        return None
    folder = pressure.data_directory(connection)
    log = Path(folder) / "pg_wal" if folder else None
    return shutil.disk_usage(log).free if log is not None and log.is_dir() else None


def _document(found: Pressure | None) -> dict[str, object]:
    if found is None:
        return {"slot": None, "level": Level.DANGER.value}
    slot = {
        **asdict(found.slot),
        "restart_lsn": _text(found.slot.restart_lsn),
        "confirmed_flush_lsn": _text(found.slot.confirmed_flush_lsn),
        "inactive_since": _text(found.slot.inactive_since),
    }
    return {
        "slot": slot,
        "level": found.level.value,
        "moves": found.moves,
        "wal_bytes_per_s": round(found.bytes_per_s),
        "keep_bytes": found.keep_bytes,
        "idle_s": found.idle_s,
        "oldest_writer": None if found.writer is None else str(found.writer),
        "disk_free_bytes": found.disk_bytes,
        "disk_full_in_s": _whole(found.disk_full_in_s),
        "given_up_in_s": _whole(found.given_up_in_s),
    }


def _print(found: Pressure | None, loss: capture.Loss | None) -> None:
    if loss is not None:
        stderr.print(f"[bold red]lost[/] [dim]{loss.code}[/] {escape(loss.message)}")
        stderr.print("  [dim]repair[/] headwater source repair --yes")
    if found is None:
        stderr.print("the source has no slot; headwater up makes the first one")
        return
    seen = found.slot
    held = f"{seen.holder or 'somebody'}, process {seen.active_pid}" if seen.active else "nobody"
    since = f" since {seen.inactive_since:%Y-%m-%d %H:%M:%S} UTC" if seen.inactive_since else ""
    rows: list[tuple[str, str]] = [
        ("slot", seen.name),
        ("level", f"{found.level.value}"),
        ("read by", held + ("" if seen.active else since)),
        ("keeps the log from", f"{seen.restart_lsn}"),
        ("oldest open writer", f"{found.writer or 'none'}"),
        ("has everything through", f"{seen.confirmed_flush_lsn}"),
        ("holds back", f"{_mib(seen.retained_bytes)} ({seen.invalidation or seen.wal_status})"),
        ("may hold back", _mib(found.keep_bytes) if found.keep_bytes else "any amount"),
        ("log grows by", f"{_mib(round(found.bytes_per_s))}/s"),
        ("free on its disk", _mib(found.disk_bytes) if found.disk_bytes is not None else "unknown"),
        ("disk full in", _time_left(found.disk_full_in_s)),
        ("given up in", _time_left(found.given_up_in_s)),
    ]
    print_rows([{"": name, " ": value} for name, value in rows], as_json=False, title="", empty="")
    if found.level is not Level.OK:
        colour = _COLOURS[found.level]
        stdout().print(f"[{colour}]{found.level.value}[/] {_advice(found)}", soft_wrap=True)


def _advice(found: Pressure) -> str:
    if found.slot.lost:
        return "the server has given up the log that this slot should have kept"
    if not found.slot.active:
        return "no connector reads from the slot; headwater source status shows why"
    if not found.moves:
        return "its reader stands still; headwater source status says why"
    if found.writer is not None:
        return f"the log is kept since an open transaction began: {found.writer}"
    return "the slot holds back more than max_wal_size"


def _time_left(seconds: float | None) -> str:
    return "never, or unknown" if seconds is None else duration(seconds)


def _mib(count: int) -> str:
    return f"{count / _MIB:,.1f} MiB"


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds)


def _text(value: object) -> str | None:
    return None if value is None else str(value)
