"""`headwater source slot`: the log that the slot retains, and when it fills the disk."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdc import source as capture
from cdc.postgres import captures, pressure, session
from cdc.postgres.pressure import Level, Pressure
from foundation.errors import EXIT_UNHEALTHY
from headwater.cli.options import Json, SourceOptions
from headwater.cli.output import duration, escape, print_json, print_rows, stderr, stdout

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
        slot_pressure = pressure.look(
            connection,
            spec.slot,
            beat_s=spec.heartbeat_interval_ms / 1000,
            disk_bytes=_free(connection, size),
            before=captures.noted_wal(connection, spec.name),
        )
    if as_json:
        print_json({**_document(slot_pressure), "loss": None if loss is None else loss.document()})
    else:
        _print(slot_pressure, loss)
    if slot_pressure is None or loss is not None or slot_pressure.level is Level.DANGER:
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


def _document(slot_pressure: Pressure | None) -> dict[str, object]:
    if slot_pressure is None:
        return {"slot": None, "level": Level.DANGER.value}
    slot = {
        **asdict(slot_pressure.slot),
        "restart_lsn": _text(slot_pressure.slot.restart_lsn),
        "confirmed_flush_lsn": _text(slot_pressure.slot.confirmed_flush_lsn),
        "inactive_since": _text(slot_pressure.slot.inactive_since),
    }
    return {
        "slot": slot,
        "level": slot_pressure.level.value,
        "moves": slot_pressure.moves,
        "wal_bytes_per_s": round(slot_pressure.bytes_per_s),
        "keep_bytes": slot_pressure.keep_bytes,
        "idle_s": slot_pressure.idle_s,
        "oldest_writer": None if slot_pressure.writer is None else str(slot_pressure.writer),
        "disk_free_bytes": slot_pressure.disk_bytes,
        "disk_full_in_s": _whole(slot_pressure.disk_full_in_s),
        "given_up_in_s": _whole(slot_pressure.given_up_in_s),
    }


def _print(slot_pressure: Pressure | None, loss: capture.Loss | None) -> None:
    if loss is not None:
        stderr.print(f"[bold red]lost[/] [dim]{loss.code}[/] {escape(loss.message)}")
        stderr.print("  [dim]repair[/] headwater source repair --yes")
    if slot_pressure is None:
        stderr.print("the source has no slot; headwater up makes the first one")
        return
    seen = slot_pressure.slot
    held = (
        f"{seen.holder or 'unknown'}, process {seen.active_pid}" if seen.active else "no connector"
    )
    since = f" since {seen.inactive_since:%Y-%m-%d %H:%M:%S} UTC" if seen.inactive_since else ""
    rows: list[tuple[str, str]] = [
        ("slot", seen.name),
        ("level", f"{slot_pressure.level.value}"),
        ("read by", held + ("" if seen.active else since)),
        ("keeps the log from", f"{seen.restart_lsn}"),
        ("oldest open writer", f"{slot_pressure.writer or 'none'}"),
        ("has everything through", f"{seen.confirmed_flush_lsn}"),
        ("holds back", f"{_mib(seen.retained_bytes)} ({seen.invalidation or seen.wal_status})"),
        (
            "may hold back",
            _mib(slot_pressure.keep_bytes) if slot_pressure.keep_bytes else "any amount",
        ),
        ("log grows by", f"{_mib(round(slot_pressure.bytes_per_s))}/s"),
        (
            "free on its disk",
            _mib(slot_pressure.disk_bytes) if slot_pressure.disk_bytes is not None else "unknown",
        ),
        ("disk full in", _time_left(slot_pressure.disk_full_in_s)),
        ("given up in", _time_left(slot_pressure.given_up_in_s)),
    ]
    print_rows([{"": name, " ": value} for name, value in rows], as_json=False, title="", empty="")
    if slot_pressure.level is not Level.OK:
        colour = _COLOURS[slot_pressure.level]
        stdout().print(
            f"[{colour}]{slot_pressure.level.value}[/] {_advice(slot_pressure)}", soft_wrap=True
        )


def _advice(slot_pressure: Pressure) -> str:
    if slot_pressure.slot.lost:
        return "the server has given up the log that this slot should have kept"
    if not slot_pressure.slot.active:
        return "no connector reads from the slot; headwater source status shows why"
    if not slot_pressure.moves:
        return "its reader makes no progress; headwater source status shows why"
    if slot_pressure.writer is not None:
        return f"the log is kept since an open transaction began: {slot_pressure.writer}"
    return "the slot holds back more than max_wal_size"


def _time_left(seconds: float | None) -> str:
    return "never, or unknown" if seconds is None else duration(seconds)


def _mib(count: int) -> str:
    return f"{count / _MIB:,.1f} MiB"


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds)


def _text(value: object) -> str | None:
    return None if value is None else str(value)
