"""`headwater source remove`: all that a capture has made, part by part; what others made stays."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from cdc.broker.topics import topics
from cdc.connect import secrets
from cdc.connect.rest import ConnectRest
from cdc.postgres import captures, session
from cdc.source import reads_slot, remove_connector, topic_specs
from cdc.upkeep import remnants
from cdc.upkeep.remnants import RemnantKind
from headwater.errors import UsageError
from headwater.platform.specs import capture_spec
from headwater.runtime import Endpoints

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from psycopg import Connection

    from cdc.capture import CaptureSpec
    from headwater.platform.platform import Platform

CONNECTOR: Final = "connector"
TOPICS: Final = "topics"
CHECKPOINTS: Final = "checkpoints"
PARTS: Final = (CONNECTOR, TOPICS, *map(str, RemnantKind), CHECKPOINTS)
"""All parts, in the order in which they go: what reads stops before what it reads from goes."""


@dataclass(frozen=True, slots=True)
class CapturePart:
    """A part of a capture that there is.

    Attributes:
        part: Which one, of `PARTS`.
        name: Its name.
        goes: Whether it is removed.
        why: What it is; why it stays if it does.
        statement: What removes it by hand; None if that is more than a statement.
    """

    part: str
    name: str
    goes: bool
    why: str
    statement: str | None = None


class Removal:
    """The removal of one source.

    Args:
        dsn: The database, with a role that may drop what it made.
        source: Name of the source.
        platform: The project, with its Kafka and Connect; None for a database alone.
        wanted: Which parts shall go.

    Raises:
        UsageError: The database is the one of the home folder.
    """

    def __init__(
        self,
        dsn: str,
        source: str,
        platform: Platform | None = None,
        wanted: Collection[str] = PARTS,
    ) -> None:
        self._dsn = dsn
        self._source = source
        self._platform = platform
        self._wanted = set(wanted)
        self._spec = None if platform is None else _spec(platform, dsn, source)

    def items(self) -> list[CapturePart]:
        """Returns what there is, in the order in which it goes; changes nothing.

        Raises:
            UsageError: The schema shall go before what it has the proof of.
            CdcError: Postgres, or a Kafka or Connect that runs, does not answer.
        """
        with session.connect(self._dsn) as connection:
            found = [
                *self._connector(connection),
                *self._topics(connection),
                *(
                    CapturePart(
                        str(remnant.part),
                        remnant.name,
                        remnant.removable,
                        remnant.why,
                        remnant.statement,
                    )
                    for remnant in remnants.find(connection, self._source)
                ),
                *self._checkpoints(),
            ]
        self._refuse_schema_first(found)
        return [
            item if item.part in self._wanted else replace(item, goes=False, why="is not asked for")
            for item in found
        ]

    @property
    def stops(self) -> bool:
        """Whether the job of the source is stopped for it, since the folder's servers run."""
        return self._platform is not None and self._platform.running()

    @property
    def stops_servers(self) -> bool:
        """Whether the servers are stopped, too: no other source of the project needs them."""
        return self.stops and self._platform is not None and not self._others_declared()

    def run(self, say: Callable[[str], None]) -> list[str]:
        """Removes what `items` shows; says each step once it is done, and returns all of them.

        First the source's own job and watch are stopped, so they never see a part missing. They
        stay stopped until the next `up`. After a kill, call it again.

        Raises:
            StopTimeoutError: The job does not stop; nothing is removed.
            CdcError: A server refuses; the earlier parts are done.
        """
        done: list[str] = []

        def did(lines: list[str]) -> None:
            for line in lines:
                say(line)
            done.extend(lines)

        going = {item.part for item in self.items() if item.goes}
        spec = self._spec
        if going and self._platform is not None and self._platform.suspend(self._source):
            did([f"stopped the job and the watch of source {self._source}"])
        if spec is not None and CONNECTOR in going:
            did(self._remove_connector(spec))
        if spec is not None and TOPICS in going:
            with session.connect(self._dsn) as connection:
                ours = sorted(self._own_topics(connection, spec))
            did([f"deleted topic {name}" for name in topics.delete(spec.kafka_bootstrap, ours)])
        with session.connect(self._dsn) as connection:
            for remnant in remnants.find(connection, self._source):
                if remnant.part in going:
                    did(remnants.drop(connection, self._source, remnant))
        if CHECKPOINTS in going:
            did([f"removed {path}" for path in self._remove_checkpoints()])
        if self.stops_servers and self._platform is not None:
            self._platform.stop()
            did(["stopped the servers of this folder"])
        return done

    def _others_declared(self) -> bool:
        project = None if self._platform is None else self._platform.project
        return project is not None and any(name != self._source for name in project.sources)

    def _remove_connector(self, spec: CaptureSpec) -> list[str]:
        with session.connect(self._dsn) as connection, closing(ConnectRest(spec.connect_url)) as to:
            gone = remove_connector(connection, to, spec)
        return [f"removed connector {spec.connector} and its offsets"] if gone else []

    def _refuse_schema_first(self, found: list[CapturePart]) -> None:
        source_parts = [item for item in found if item.part in list(RemnantKind) and item.goes]
        before = [i.part for i in source_parts[:-1] if i.part not in self._wanted]
        if RemnantKind.SCHEMA in self._wanted and before and source_parts[-1].part == "schema":
            raise UsageError(
                (
                    f"the schema is removed last: it proves that the {before[0]} belongs to "
                    "Headwater"
                ),
                hint=f"also remove the {before[0]}, or keep the schema",
            )

    def _connector(self, connection: Connection[Any]) -> Iterator[CapturePart]:
        spec = self._spec
        if spec is None or not (spec.connect_url or self._started):
            return
        if not spec.connect_url:
            why = "Kafka Connect is not running; headwater up starts it, or remove the home folder"
            yield CapturePart(CONNECTOR, spec.connector, False, why)
            return
        with closing(ConnectRest(spec.connect_url, retry_s=3.0)) as rest:
            config = rest.config(spec.connector)
        if config is None:
            return
        ours = reads_slot(connection, config, spec)
        other = f"reads slot {config.get('slot.name')} of database {config.get('database.dbname')}"
        why = "reads the slot" if ours else other
        yield CapturePart(CONNECTOR, spec.connector, ours, why)

    def _topics(self, connection: Connection[Any]) -> Iterator[CapturePart]:
        spec = self._spec
        if spec is None or not (spec.kafka_bootstrap or self._started):
            return
        if not spec.kafka_bootstrap:
            why = "Kafka is not running; its topics are in the home folder"
            yield CapturePart(TOPICS, f"{spec.name}.*", False, why)
            return
        ours = self._own_topics(connection, spec)
        others = self._named_topics(connection, spec) - ours
        if ours:
            yield CapturePart(
                TOPICS, ", ".join(sorted(ours)), True, "changes, as long as they are kept"
            )
        if others:
            why = "recreated by another program since the capture noted them"
            yield CapturePart(TOPICS, ", ".join(sorted(others)), False, why)

    def _named_topics(self, connection: Connection[Any], spec: CaptureSpec) -> set[str]:
        """Topics that exist and have names of the source's."""
        there = topics.names(spec.kafka_bootstrap)
        noted = captures.find(connection, spec.name)
        names = set(noted.topics or ()) if noted else set()
        if self._platform is not None and spec.name == self._platform.project.source.name:
            names |= {topic.name for topic in topic_specs(spec)}
            names |= {name for name in there if spec.outbox and name.startswith(spec.outbox_prefix)}
        return names & there

    def _own_topics(self, connection: Connection[Any], spec: CaptureSpec) -> set[str]:
        """Those of them that are what was captured into, as far as that was noted."""
        names = self._named_topics(connection, spec)
        if not names:
            return set()
        noted = captures.find(connection, spec.name)
        known = {name: each.id for name, each in (noted.topics or {}).items()} if noted else {}
        there = topics.identities(spec.kafka_bootstrap, names)
        return {name for name in names if known.get(name, there.get(name)) == there.get(name)}

    def _checkpoints(self) -> Iterator[CapturePart]:
        folder = self._folder
        if folder is not None and folder.is_dir():
            yield CapturePart(
                CHECKPOINTS, str(folder), True, "where the job's queries stand in the topics"
            )

    def _remove_checkpoints(self) -> list[str]:
        gone = []
        if self._folder is not None and self._folder.is_dir():
            shutil.rmtree(self._folder)
            gone = [str(self._folder)]
        if self._platform is not None and self._spec is not None:
            secrets.remove(self._spec)
        return gone

    @property
    def _started(self) -> bool:
        """Whether a Kafka of this folder was ever started."""
        return self._platform is not None and self._platform.project.home.data("kafka").is_dir()

    @property
    def _folder(self) -> Path | None:
        if self._platform is None:
            return None
        return self._platform.project.home.root / "checkpoints" / self._source


def _spec(platform: Platform, dsn: str, source: str) -> CaptureSpec:
    project = platform.project
    name = project.source.name
    if project.settings.for_source(name).dsn is None:
        alone = f"headwater down && rm -r {project.home.root}"
        drop = f"SELECT pg_drop_replication_slot('headwater_{name}')"  # a hint
        beside = f"take source {name} out of the views module, headwater up, then in psql: {drop}"
        raise UsageError(
            "the source is in the local Postgres of this folder",
            hint=beside if project.shares_home else alone,
        )
    services = project.settings.services
    if platform.running():
        endpoints = platform.endpoints
    else:  # what is started here is down; what runs elsewhere is there
        kafka, connect = services.kafka.address, services.connect.address
        endpoints = Endpoints(
            kafka_bootstrap=kafka.get_secret_value() if kafka else "",
            connect_url=connect.get_secret_value().rstrip("/") if connect else "",
        )
    spec = capture_spec(project, dsn, endpoints)
    if source == spec.name:
        return spec
    return replace(spec, name=source, outbox=None)
