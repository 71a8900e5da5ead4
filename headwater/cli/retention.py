"""`headwater source retention`: retention of topics, and readers that may lose records."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cdc.upkeep.retention import ReaderState, lasts_s
from cdc.upkeep.topic_watch import WINDOW_S, look
from foundation.errors import EXIT_UNHEALTHY
from headwater.cli.options import Json, SourceOptions
from headwater.cli.output import print_error, print_json, print_rows, stderr, stdout
from projections.common.spark_checkpoint import positions

if TYPE_CHECKING:
    from cdc.upkeep.topic_watch import TopicWatch

_HOUR_S = 3600
_MIB = 1024 * 1024


def retention(
    *,
    bytes_per_second: Annotated[
        float | None,
        typer.Option("--bytes-per-second", min=1, help="Assume this rate; default: measured."),
    ] = None,
    disk_bytes: Annotated[
        float | None,
        typer.Option("--disk-bytes", min=1, help="Disk space available for the topics."),
    ] = None,
    window_s: Annotated[
        float,
        typer.Option("--window-s", min=0, max=600, help="Duration of the measurement in seconds."),
    ] = WINDOW_S,
    options: SourceOptions,
    as_json: Json = False,
) -> None:
    """Show the retention of each topic, and each reader's distance to its end.

    With both a rate and a disk size, only computes. Exits 3 if a reader has less than a quarter of
    the retention left, or has lost records.
    """
    topics = None
    if bytes_per_second is None or disk_bytes is None:
        topics = _look(options, window_s)
    rate = bytes_per_second or (topics.bytes_per_second if topics else 0.0)
    seconds = lasts_s(disk_bytes, rate) if disk_bytes else None
    if as_json:
        print_json(
            {
                "bytes_per_second": rate,
                "disk_bytes": disk_bytes,
                "lasts_hours": _hours(seconds),
                "topics": [asdict(kept) for kept in topics.kept] if topics else [],
                "readers": [asdict(reader) for reader in topics.readers] if topics else [],
            }
        )
    else:
        _print(topics, rate, disk_bytes, seconds)
    if topics is not None and not topics.healthy:
        raise typer.Exit(EXIT_UNHEALTHY)


def _look(options: SourceOptions, window_s: float) -> TopicWatch:
    platform = options.platform()
    spec = platform.capture_spec()
    return look(spec, positions(platform.project.settings.home, spec.name), window_s)


def _print(
    topics: TopicWatch | None, rate: float, disk_bytes: float | None, seconds: float | None
) -> None:
    if disk_bytes is not None:
        lasts = f"last {_hours(seconds)} hours" if seconds is not None else "last: nothing is added"
        stdout().print(f"{disk_bytes / 1e12:g} TB at {rate / 1e6:g} MB/s {lasts}")
    if topics is None:
        return
    rows = [
        {
            "topic": kept.topic,
            "partition": kept.partition,
            "MiB": round(kept.size_bytes / _MIB, 1),
            "records": kept.records,
            "KiB/s": round(kept.bytes_per_second / 1024, 1),
            "held h": _hours(kept.held_s),
            "keeps h": _hours(kept.keeps_s),
        }
        for kept in topics.kept
    ]
    print_rows(rows, as_json=False, title="", empty="no topic yet")
    readers = [
        {
            "reader": reader.name,
            "topic": reader.topic,
            "partition": reader.partition,
            "state": str(reader.state),
            "wants": reader.wanted,
            "left records": reader.left_records,
            "left h": _hours(reader.left_s),
        }
        for reader in topics.readers
    ]
    print_rows(readers, as_json=False, title="", empty="no reader yet")
    for reader in topics.readers:
        if reader.state is ReaderState.LOST:
            print_error(reader.error(), as_json=False)
        elif reader.state is ReaderState.AT_RISK:
            stderr.print(
                f"[yellow]warning[/] {reader.name} is about to fall off topic {reader.topic}: "
                f"{_hours(reader.left_s)} hours and {reader.left_records} records are left",
                soft_wrap=True,
            )


def _hours(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds / _HOUR_S, 1)
