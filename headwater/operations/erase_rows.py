"""Forgetting: what the project's places knew of keys of a table goes; a certificate stays."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from cdc.broker.topics import topics, truncation
from cdc.consumer.parked_topic import parked_keys
from cdc.consumer.spec import parked_topic
from cdc.postgres import session
from cdc.snapshot import reads, request
from cdc.upkeep import topic_watch
from foundation.waiting import looks
from headwater.errors import UnhealthyError
from projections.alerting import tables as alerting_tables
from projections.archive.table import Archive
from projections.common.scratch_dir import remove_abandoned
from projections.common.spark_checkpoint import positions
from projections.erasure.archive import Through
from projections.erasure.canaries import LENGTH_MIN, canaries
from projections.erasure.certificate import BEYOND_REACH, Certificate, Erased, keep, now
from projections.erasure.erasure import Erasure
from projections.erasure.file_search import Searched, search_files
from projections.erasure.unreached import unreached
from projections.errors import ForgettingRefusedError, SinkUnavailableError, StableTableError
from projections.versions import registry
from projections.versions.version import VersionState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import psycopg

    from cdc.broker.topics.extent import PartitionId
    from cdc.snapshot.reads import Read
    from cdc.table import TableName
    from headwater.platform.platform import Platform
    from projections.erasure.archive import ReadKey
    from projections.planning.job_config import JobConfig
    from projections.planning.job_spec import JobSpec

    Connection = psycopg.Connection[Any]

CATCH_UP_S: Final = 120.0
_READ_S: Final = 120.0
_FILES_S: Final = 180.0
_READERS_S: Final = 30.0
_POLL_S: Final = 0.3
_ATTEMPTS: Final = 3
_EVENTS: Final = "eventstore"
_ASKED: Final = ("stores of the table's views, by the keys",)
_SEARCHED: Final = (
    *_ASKED,
    "files of the home, but those of a local source: byte by byte, Parquet files decoded",
)


class RowErasure:
    """Forgets what rows of one table were.

    After a kill, run it again: each step can be repeated.

    Args:
        platform: The project, and where its servers are.
        table: The table.
        say: Receives each step.
    """

    def __init__(
        self, platform: Platform, table: TableName, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._platform = platform
        self._capture = platform.capture_spec()
        self._table = table
        self._say = say
        if table.schema == _EVENTS:
            raise ForgettingRefusedError(
                "events cannot be removed from the log",
                hint="forget a person with headwater events shred, which makes the values in "
                "all copies unreadable",
            )

    def forget(
        self, keys: Sequence[object], *, row_stays: bool = False
    ) -> tuple[Certificate, Path]:
        """Forgets keys; returns the certificate, and where it is kept.

        Args:
            keys: As `request.ask` takes them.
            row_stays: Also keys that have a row: it stays as it is now.

        Raises:
            ForgettingRefusedError: It cannot be done as asked; nothing was erased.
            ReadRefusedError: The table is not captured, or has no such key.
            UnhealthyError: The source was never captured, or views do not come as far as they
                have to.
            SinkError: A place cannot be written; asked again, it goes on.
        """
        begun_at = now()
        self._platform.require_captured()
        with session.connect(self._platform.source_dsn) as connection, ExitStack() as held:
            epoch = reads.epoch_of(connection, self._source, self._capture.epoch)
            through = Through(epoch, self._platform.current_lsn())
            erasure = self._erasure(connection, through, held)
            self._caught_up(erasure, "all views have what was committed by now")
            found = self._read(erasure, keys)
            former: set[str] = set()
            texts = {key.text for key in found}
            for topic in erasure.archived():
                former |= topic.find(texts, through).former
            if former:
                found += self._read(erasure, [orjson.loads(text) for text in sorted(former)])
            every = frozenset(texts | former)
            self._refuse_alive(found, row_stays=row_stays)
            self._refuse_parked(every)
            before = self._cuts(found)
            self._await_readers(before)
            archived = erasure.archived()
            values = canaries(connection, self._table, archived, every, through)
            erased = self._erase(erasure, through, every, before)
            searched = self._search(values)
            certificate = Certificate(
                source=self._source,
                subject=str(self._table),
                keys=sorted(texts),
                former_keys=len(former),
                through=str(through.lsn),
                begun_at=begun_at,
                ended_at=now(),
                erased=erased,
                values_searched=searched.texts,
                files_searched=searched.files,
                bytes_searched=searched.size_bytes,
                found_in=searched.matching_files,
                beyond_reach=(*BEYOND_REACH, *not_searched(searched)),
                searched_in=_SEARCHED if searched.texts else _ASKED,
            )
            folder = self._platform.project.home.root / "certificates"
            return certificate, keep(certificate, folder)

    @property
    def _source(self) -> str:
        return self._platform.project.source.name

    def _erase(
        self,
        erasure: Erasure,
        through: Through,
        texts: frozenset[str],
        before: dict[PartitionId, int],
    ) -> list[Erased]:
        found = erasure.known(texts)
        self._say("what the archive, histories and the quarantine knew is erased")
        self._await_published(erasure, replace(through, lsn=self._platform.current_lsn()))
        found += erasure.cut(before, _FILES_S)
        self._say("topics are cut off")
        found += self._past(erasure)
        found += erasure.left(texts)
        with session.connect(self._platform.source_dsn) as connection:
            withheld = alerting_tables.withhold(connection, self._source)
        found.append(Erased("alerts", "messages", withheld))
        self._say("files, logs and segments of former times are removed")
        return found

    def _past(self, erasure: Erasure) -> list[Erased]:
        """Removes the past; retry where the job has changed a table at the same moment."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return erasure.past()
            except (SinkUnavailableError, StableTableError) as error:
                detail = f" ({error.detail})" if error.detail else ""
                self._say(f"{error}{detail}: retrying")
        return erasure.past()

    def _await_published(self, erasure: Erasure, through: Through) -> None:
        """Waits until no reader uses earlier versions of a table."""
        self._platform.await_applied(through.lsn, CATCH_UP_S, erasure.places)
        for _ in looks(CATCH_UP_S, _POLL_S):
            behind = erasure.behind(through)
            if not behind:
                break
        else:
            raise UnhealthyError(
                f"tables are not published as of {through.lsn}",
                detail=", ".join(behind),
                hint="headwater view status shows the reason; then repeat the command",
            )
        self._say("all tables are published as they are now")

    def _caught_up(self, erasure: Erasure, said: str) -> None:
        self._platform.await_applied(self._platform.current_lsn(), CATCH_UP_S, erasure.places)
        self._say(said)

    def _read(self, erasure: Erasure, keys: Sequence[object]) -> list[ReadKey]:
        """Has keys read: what they are now lies behind all that is to be forgotten."""
        topic = self._capture.topics.of(self._table)
        with truncation.short_pieces(self._capture.kafka_bootstrap, topic):
            asked = request.ask(self._capture, self._table, keys=keys)
            read = request.wait(self._capture, asked.read.id, _READ_S)
        self._await_archived(topic, read)
        self._caught_up(erasure, f"{len(keys)} keys of {self._table} are read as they are now")
        own = next(each for each in erasure.archived() if each.topic == topic)
        if read.read_lsn is None:  # of a read that is done it is there
            return []
        return own.keys_read(read.epoch, read.read_lsn)

    def _await_archived(self, topic: str, read: Read) -> None:
        spec = self._capture
        identity = topics.identities(spec.kafka_bootstrap, [topic])[topic]
        ends = {(topic, partition): end for partition, end in (read.end_offsets or {}).items()}
        archive = Archive(self._platform.project.home.root / "archive" / self._source)
        for _ in looks(CATCH_UP_S, _POLL_S):
            there = archive.ends(dict.fromkeys(ends, identity))
            if all(there.get(place, 0) >= end for place, end in ends.items()):
                return
        raise UnhealthyError(
            "the archive does not receive the snapshot rows",
            detail=f"after {CATCH_UP_S:.0f} s",
            hint="headwater status shows whether the job runs",
        )

    def _erasure(self, connection: Connection, through: Through, held: ExitStack) -> Erasure:
        """Looks at what there is, and keeps its versions as they are until all is done."""
        locked: set[str] = set()
        while True:
            spec = self._platform.views.job_spec()
            erasure = Erasure(spec, self._table, self._capture.topics.of(self._table), through)
            lacking = {*erasure.views, *erasure.followers} - locked
            if not lacking:
                break
            for view in sorted(lacking):
                held.enter_context(registry.version_lock(connection, self._source, view))
                locked.add(view)
        self._refuse_unreached(connection, spec)
        self._refuse_building(connection, erasure)
        _remove_copied_topics(spec.config)
        return erasure

    def _refuse_unreached(self, connection: Connection, spec: JobSpec) -> None:
        halted = self._platform.job_report.halted()
        found = unreached(connection, spec, self._table, halted)
        if found:
            raise ForgettingRefusedError(
                f"data of {self._table} would remain in some stores",
                detail="; ".join(f"{each.physical_name}: {each.why}" for each in found),
                hint="; ".join(dict.fromkeys(each.hint for each in found))
                + "; then repeat the command",
            )

    def _refuse_building(self, connection: Connection, erasure: Erasure) -> None:
        """Refuses what a rebuild is at: it has what is to be forgotten before it."""
        for view in erasure.views:
            for version in registry.of_view(connection, self._source, view):
                if version.state in {VersionState.BUILDING, VersionState.JOINING}:
                    raise ForgettingRefusedError(
                        f"version {version.number} of view {view} is being built",
                        hint=f"complete it with headwater view rebuild {view}, or remove it "
                        f"with headwater view drop {view} {version.number} --yes",
                    )

    @staticmethod
    def _refuse_alive(found: Sequence[ReadKey], *, row_stays: bool) -> None:
        alive = sum(key.alive for key in found)
        if alive and not row_stays:
            raise ForgettingRefusedError(
                f"{alive} of {len(found)} keys still have a row in the source",
                hint=("delete the row in the source, or overwrite its values and give --row-stays"),
            )

    def _refuse_parked(self, texts: frozenset[str]) -> None:
        bootstrap, begin = self._capture.kafka_bootstrap, parked_topic(self._source, "")
        own = self._capture.topics.of(self._table)
        for name in sorted(each for each in topics.names(bootstrap) if each.startswith(begin)):
            parked = [key for key in parked_keys(bootstrap, name) if key.topic == own]
            if any((key.raw_key or b"").decode(errors="replace") in texts for key in parked):
                raise ForgettingRefusedError(
                    "a consumer has parked changes of a key",
                    detail=f"group {name.removeprefix(begin)}",
                    hint="retry or drop the parked changes, then repeat the command",
                )

    def _await_readers(self, before: dict[PartitionId, int]) -> None:
        """Waits until no reader needs what is to be cut off; refuses where one stays behind.

        A query of the job has applied changes before it has noted that it read them.
        """
        for _ in looks(_READERS_S, _POLL_S):
            behind = self._behind(before)
            if not behind:
                return
        raise ForgettingRefusedError(
            "readers of the topic have not reached the point of truncation",
            detail=", ".join(behind),
            hint="let them catch up, or delete unused groups; then repeat the command",
        )

    def _behind(self, before: dict[PartitionId, int]) -> list[str]:
        queries = positions(self._platform.project.settings.home, self._source)
        readers = topic_watch.look(self._capture, queries, 0.0).readers
        return sorted(
            {
                each.name
                for each in readers
                if each.wanted < before.get((each.topic, each.partition), 0)
            }
        )

    def _cuts(self, found: Sequence[ReadKey]) -> dict[PartitionId, int]:
        topic = self._capture.topics.of(self._table)
        before: dict[PartitionId, int] = {}
        for key in found:
            place = topic, key.partition
            before[place] = min(key.offset, before.get(place, key.offset))
        return before

    def _search(self, values: frozenset[str]) -> Searched:
        home = self._platform.project.home
        remove_abandoned()
        if not values:
            self._say("no value is theirs alone: files are not searched")
            return Searched()
        # the local Postgres is the source itself
        searched = search_files(home.root, values, but=[home.data("postgres")])
        self._say(f"{searched.files:,} files searched for {searched.texts} values")
        return searched


def _remove_copied_topics(config: JobConfig) -> None:
    """Removes copies of topics; rebuilds of earlier releases left them when they were killed."""
    folder = config.home / "copies" / config.source
    if folder.is_dir():
        shutil.rmtree(folder)


def not_searched(searched: Searched) -> Iterator[str]:
    """Says what of the rows' values the search of files could not see.

    Args:
        searched: What was searched.
    """
    if searched.texts:
        yield "values that search or cache have compressed in files of theirs: no search sees them"
    else:
        yield (
            "values of the rows: the archive has none, or none any more, that is theirs alone and"
            f" has {LENGTH_MIN} letters; so none was looked for"
        )
