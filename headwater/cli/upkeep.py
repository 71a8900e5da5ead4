"""`headwater events seal`, `verify`, `compact`, `shred`, `upcast`: the log over the years."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from eventstore.model.names import category_of, check_label, check_stream
from eventstore.postgres.audit import PostgresAudit
from eventstore.postgres.compaction import PostgresCompactor
from eventstore.upkeep.compaction import CompactionPolicy, CompactionReport, StreamFold
from eventstore.upkeep.upcast_check import check_log
from foundation.errors import EXIT_UNHEALTHY
from headwater.cli.options import DatabaseOptions, Json, LogOptions, ProjectOptions, Yes
from headwater.cli.output import counted, escape, print_error, print_json, print_rows, stderr
from headwater.errors import UsageError
from headwater.operations.events import (
    decider_of,
    keep_head,
    open_store,
    read_head,
    read_texts,
    tenant_of,
)
from headwater.platform.database import find_home
from headwater.project.settings import HOME_FOLDER

if TYPE_CHECKING:
    from headwater.operations.erase_person import ShreddedKey

HeadFile = Annotated[
    Path | None,
    typer.Option("--head", help="File with the sealed head, kept outside the database."),
]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("seal")(seal)
    app.command("verify")(verify)
    app.command("compact")(compact)
    app.command("shred")(shred)
    app.command("upcast")(upcast)


def seal(
    *,
    head: HeadFile = None,
    options: DatabaseOptions,
) -> None:
    """Seal the events that are not sealed yet, and print the head to keep outside the database.

    With --head, write the head to that file, unless it contradicts the head already there.
    """
    database = options.event_store()
    sealed = PostgresAudit(database.dsn).seal()
    if head is not None:
        keep_head(head, sealed)
    typer.echo(str(sealed))


def verify(
    *,
    head: HeadFile = None,
    options: DatabaseOptions,
    as_json: Json = False,
) -> None:
    """Compare the whole log with its seals, and with a head kept outside the database.

    Exits 3 if an event was edited, removed, inserted or swapped, and names the first position.
    """
    database = options.event_store()
    report = PostgresAudit(database.dsn).verify(None if head is None else read_head(head))
    findings = [finding._asdict() for finding in report.findings]
    if as_json:
        counts = {"events": report.events, "dropped": report.dropped, "unsealed": report.unsealed}
        document = {"genuine": report.clean, **counts, "head": str(report.head)}
        print_json({**document, "findings": findings})
    else:
        typer.echo(
            f"{counted(report.events, 'event')} compared, {report.unsealed:,} not sealed yet"
        )
        if findings:
            print_rows(findings, as_json=False, title="", empty="")
    if not report.clean:
        if as_json:
            raise typer.Exit(EXIT_UNHEALTHY)
        report.check()


def compact(
    target: Annotated[
        str,
        typer.Argument(
            metavar="CATEGORY|STREAM",
            help="A category such as order, or a stream such as order-42.",
        ),
    ],
    *,
    through: Annotated[
        int | None,
        typer.Option(
            "--through", help="For a stream: compact up to this version; default: all.", min=1
        ),
    ] = None,
    larger_than: Annotated[
        int,
        typer.Option(
            "--larger-than", help="For a category: only streams with more events than this.", min=0
        ),
    ] = 1_000,
    keep_events: Annotated[
        int,
        typer.Option(
            "--keep-events", help="For a category: keep this many of the last events.", min=0
        ),
    ] = 100,
    options: LogOptions,
    as_json: Json = False,
) -> None:
    """Replace the beginning of each stream with one event, and move the originals to the archive.

    Needs the decider of the category, in a module that the settings name. Exits 1 if a stream
    cannot be folded; all other streams are compacted.
    """
    database = options.event_store()
    one_stream = "-" in target
    if one_stream:
        check_stream(target)
    policy = CompactionPolicy(category_of(target), larger_than, keep_events)
    decider = decider_of(database, policy.category)
    compactor = PostgresCompactor(database.dsn)
    with open_store(database, options.tenant) as store:
        fold = StreamFold(decider, store.codec, store.tenant)
        if one_stream:
            done = compactor.compact(fold, target, through)
            report = CompactionReport(int(done.events > 0), done.events)
        else:
            report = compactor.compact_category(fold, policy)
    if as_json:
        refused = [{"stream": one.stream, "code": one.error.code} for one in report.refused]
        print_json({"streams": report.streams, "events": report.events, "refused": refused})
    else:
        typer.echo(
            f"{counted(report.streams, 'stream')} compacted, "
            f"{counted(report.events, 'event')} archived"
        )
        for one in report.refused:
            print_error(one.error, as_json=False)
    if report.refused:
        raise typer.Exit(1)


def shred(
    subject: Annotated[
        str, typer.Argument(help="The subject, by the name that the events record.")
    ],
    *,
    search: Annotated[
        Path | None,
        typer.Option("--search", help="File of texts, one per line, to search for."),
    ] = None,
    yes: Yes = False,
    options: LogOptions,
    as_json: Json = False,
) -> None:
    """Destroy a subject's key, and with it every personal value in events and saved states.

    The events stay; their personal fields read as redacted in every copy of the log. The command
    ends with a certificate in the project's home folder: the erased items, and the result of a
    search through the log and all files of the home folder. If the settings name a master key, it
    searches for values that only this subject's fields had; with --search, also for the texts of a
    file. Exits 3 if it finds one, or if the role may not remove dead rows. Delete backups of the
    keys yourself.
    """
    if not yes:
        raise UsageError(
            "the subject's personal values become permanently unreadable",
            hint="add --yes to confirm",
        )
    check_label("subject", subject)
    # invalid texts must be reported before anything is destroyed
    texts = [] if search is None else read_texts(search)
    place = _home(options)
    database = options.event_store()
    # only this command needs it
    from headwater.operations import erase_person  # noqa: PLC0415

    done = erase_person.shred(database, tenant_of(database, options.tenant), subject, place, texts)
    certificate = done.certificate
    if as_json:
        made = {**msgspec.to_builtins(certificate), "complete": certificate.complete}
        print_json({"had_key": done.had_key, "certificate": str(done.path), **made})
    else:
        _print_shredded(done)
    if not certificate.complete:
        raise typer.Exit(EXIT_UNHEALTHY)


def _home(options: ProjectOptions) -> Path:
    """The folder of all state; the usual one where only a database is named."""
    try:
        return find_home(options.config, home=options.home, profile=options.profile)
    except UsageError:
        return Path(HOME_FOLDER)


def _print_shredded(done: ShreddedKey) -> None:
    certificate, matching_files = done.certificate, done.certificate.found_in
    typer.echo("the key is destroyed" if done.had_key else "there was no key; none will be made")
    for each in certificate.erased:
        count = f"{each.count:,} {each.what}" if each.count else each.what
        stderr.print(f"{each.place}: {count}" + ("" if each.complete else " (not done)"))
    stderr.print(
        f"{certificate.values_searched} texts: found in {len(matching_files):,} places,"
        f" {certificate.files_searched:,} files searched",
        soft_wrap=True,
    )
    for name in matching_files[:10]:
        stderr.print(f"  {escape(name)}", soft_wrap=True)
    for copies in certificate.beyond_reach:
        stderr.print(f"[dim]not reached[/] {escape(copies)}", soft_wrap=True)
    stderr.print(f"certificate: {escape(str(done.path))}", soft_wrap=True)


def upcast(
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Read every event. Events are never rewritten.")
    ] = False,
    all_tenants: Annotated[
        bool, typer.Option("--all-tenants", help="Read all tenants; needs a role that may.")
    ] = False,
    options: LogOptions,
    as_json: Json = False,
) -> None:
    """Read the whole log with the project's declared types. Exits 3 if an event cannot be read.

    Runs every upcaster and decodes every event, and counts all failures.
    """
    if not check:
        raise UsageError("events are never rewritten", hint="headwater events upcast --check")
    database = options.event_store()
    with open_store(database, options.tenant) as store:
        report = check_log(store.log, store.codec, None if all_tenants else store.tenant)
    rows = [
        {
            "type": type_version.type,
            "version": type_version.version,
            "events": type_version.events,
            "failures": type_version.failures,
            "verdict": str(type_version.verdict),
            "first_failed": type_version.first_failed,
            "example": type_version.example or None,
        }
        for type_version in report.versions
    ]
    if as_json:
        wrong = {"ok": report.ok, "declarations": list(report.undeclared)}
        print_json({**wrong, "events": report.events, "through": report.through, "versions": rows})
    else:
        print_rows(rows, as_json=False, title="", empty="the log is empty")
        for line in report.undeclared:
            stderr.print(line, markup=False)
    if not report.ok or report.undeclared:
        raise typer.Exit(EXIT_UNHEALTHY)
