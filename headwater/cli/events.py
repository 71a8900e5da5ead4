"""`headwater events`: appends events to the log, and reads them."""

from __future__ import annotations

import json
import re
import sys
import threading
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eventstore.log import LogPart, StreamPart
from eventstore.model.expected_version import ANY, NO_STREAM, STREAM_EXISTS
from eventstore.model.names import check_stream
from eventstore.model.query import Query, QueryItem
from headwater.cli import keeping, parked, upkeep
from headwater.cli.options import Commands, DatabaseOptions, Json, LogOptions
from headwater.cli.output import print_json, print_rows
from headwater.errors import UsageError
from headwater.operations.events import (
    event_of,
    last_positions,
    log_status,
    open_store,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from eventstore.model.event import StoredEvent
    from eventstore.serialization.codec import Codec
    from eventstore.store import EventStore

app = Commands(
    help="The event store: streams, subscriptions, retention, audit.", no_args_is_help=True
)
upkeep.register(app)
parked.register(app)
keeping.register(app)

_TAIL = 20
_POLL_S = 0.25
_VERSIONS = {"any": ANY, "no-stream": NO_STREAM, "exists": STREAM_EXISTS}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@app.command("append")
def append(
    stream: Annotated[str, typer.Argument(help="The stream, such as order-42.")],
    type_: Annotated[
        str, typer.Argument(metavar="TYPE", help="The event type, such as order.placed.")
    ],
    payload: Annotated[
        str, typer.Argument(metavar="JSON", help="A JSON object; - reads it from stdin.")
    ] = "{}",
    *,
    expected_version: Annotated[
        str,
        typer.Option(
            "--expected-version", help="The expected version: a number, any, no-stream or exists."
        ),
    ] = "any",
    key: Annotated[
        str | None,
        typer.Option(
            "--key", help="Idempotency key: repeating the key and the event changes nothing."
        ),
    ] = None,
    options: LogOptions,
    as_json: Json = False,
) -> None:
    """Append one event to a stream.

    Example: headwater events append order-42 order.placed '{"total": "9.90"}'
    """
    expected = _expected(expected_version)
    database = options.event_store()
    text = sys.stdin.read() if payload == "-" else payload
    with open_store(database, options.tenant) as store:
        event = event_of(store, type_, text)
        done = store.append(stream, event, expected_version=expected, idempotency_key=key)
    if as_json:
        answer = {"version": done.version, "token": str(done.token), "repeated": done.repeated}
        print_json({"stream": stream, **answer})
        return
    again = ", which it was already" if done.repeated else ""
    typer.echo(f"{stream} is at version {done.version}{again}; token {done.token}")


@app.command("stream")
def read_stream(
    stream: Annotated[str, typer.Argument(help="The stream, such as order-42.")],
    *,
    after: Annotated[
        int, typer.Option("--after", help="Only events after this version.", min=0)
    ] = 0,
    backwards: Annotated[bool, typer.Option("--backwards", help="Newest event first.")] = False,
    as_of: Annotated[
        str | None,
        typer.Option(
            "--as-of", help="Only events recorded up to this time, such as 2026-01-31T12:00:00Z."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", help="Maximum number of events.", min=1)
    ] = None,
    archived: Annotated[
        bool, typer.Option("--archived", help="Read the original events of a compacted stream.")
    ] = False,
    options: LogOptions,
    as_json: Json = False,
) -> None:
    """Read a stream.

    If a module of the settings declares an event type, the data is printed as that type reads it.
    Personal fields are decrypted only if the settings name a master key file.
    """
    part = StreamPart(
        after=after,
        as_of=None if as_of is None else _instant(as_of),
        backwards=backwards,
        limit=limit,
        archived=archived,
    )
    check_stream(stream)
    database = options.event_store()
    with open_store(database, options.tenant) as store:
        events = store.log.read_stream(store.tenant, stream, part)
        _print_events(events, store.codec, as_json=as_json)


@app.command("tail")
def tail(
    *,
    after: Annotated[
        int | None, typer.Option("--after", help="Only events after this global position.", min=0)
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Follow the log until Ctrl-C; with --json, one event per line."
        ),
    ] = False,
    types: Annotated[
        list[str] | None, typer.Option("--type", help="Only events of this type; repeatable.")
    ] = None,
    tags: Annotated[
        list[str] | None,
        typer.Option("--tag", help="Only events with this tag; repeatable, all tags must match."),
    ] = None,
    category: Annotated[
        str | None, typer.Option("--category", help="Only streams of this category.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", "-n", help="Maximum number of events; without --after, the last 20.", min=1
        ),
    ] = None,
    options: LogOptions,
    as_json: Json = False,
) -> None:
    """Read the end of the log in global order, up to the position at which it is complete."""
    items = (QueryItem(frozenset(types or ()), frozenset(tags or ())),) if types or tags else ()
    query = Query(items, category)
    database = options.event_store()
    with open_store(database, options.tenant) as store:
        stop = limit
        if after is None:
            stop, after = None, last_positions(store, query, limit or _TAIL)
        if not follow:
            part = LogPart(query=query, after=after, limit=limit)
            _print_events(store.log.read_log(store.tenant, part), store.codec, as_json=as_json)
            return
        for stored in islice(_following(store, query, after), stop):
            row = shown(stored, store.codec)
            typer.echo(_document(row) if as_json else _line(row))
            sys.stdout.flush()


@app.command("status")
def status(
    *,
    options: DatabaseOptions,
    as_json: Json = False,
) -> None:
    """Show the end of the log, up to where it is complete, and the delaying writers."""
    log = log_status(options.event_store())
    writers = list(log.writers)
    if as_json:
        positions = {"head": log.head, "mark": log.mark, "distance": log.distance}
        print_json({**positions, "writers": writers})
        return
    typer.echo(f"head {log.head}, complete up to {log.mark}, {log.distance} between")
    print_rows(writers, as_json=False, title="", empty="no writer is under way")


def _following(store: EventStore, query: Query, after: int) -> Iterator[StoredEvent]:
    """Yields the events of the log, then new ones, until interrupted."""
    quiet = threading.Event()
    while True:
        mark = store.log.high_water_mark()
        if mark > after:
            part = LogPart(query=query, after=after, through=mark)
            yield from store.log.read_log(store.tenant, part)
            after = mark
        else:
            quiet.wait(_POLL_S)


def _print_events(events: Iterable[StoredEvent], codec: Codec, *, as_json: bool) -> None:
    """Prints events one by one, so that a long stream takes no memory."""
    out = sys.stdout
    between = "[\n"
    for stored in events:
        row = shown(stored, codec)
        if as_json:
            out.write(between + _document(row))
            between = ",\n"
        else:
            out.write(_line(row) + "\n")
    if as_json:
        out.write("[]\n" if between == "[\n" else "\n]\n")


def _document(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, default=str)


def _line(row: dict[str, Any]) -> str:
    place = f"{row['stream']}@{row['stream_position']}"
    unreadable = f"  ({row['unreadable']})" if "unreadable" in row else ""
    data = _document(row["data"])
    line = f"{row['global_position']:>8}  {row['recorded_at']}  {place}  {row['type']}  {data}"
    # a payload must not steer the terminal
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", line + unreadable)


def _expected(text: str) -> int:
    if text in _VERSIONS:
        return _VERSIONS[text]
    if text.isascii() and text.isdecimal() and len(text) < len(str(2**53)):
        return int(text)
    raise UsageError(
        "an expected version must be a number, any, no-stream or exists", detail=f"{text!r:.80}"
    )


def _instant(text: str) -> datetime:
    hint = "such as 2026-01-31T12:00:00Z"
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError("the time is invalid", detail=f"{text!r:.80}", hint=hint) from None
    if instant.tzinfo is None:
        raise UsageError("an instant needs an offset", detail=f"{text!r:.80}", hint=hint)
    return instant
