"""What a machine and a source must have, and the one command that repairs what they lack."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

from cdc import source
from cdc.connect import converter
from cdc.connect.connector import CONNECTOR_CLASS
from cdc.connect.rest import ConnectRest
from cdc.errors import CdcError
from cdc.postgres import captures, session
from cdc.postgres.check import Check, CheckState
from cdc.upkeep import remnants
from foundation.disk import free_bytes
from headwater.errors import HeadwaterError
from headwater.project import added_text
from headwater.runtime import ports
from headwater.runtime.java import jars
from headwater.runtime.java.java import find_java
from headwater.runtime.servers import postgres, valkey
from projections.errors import ProjectionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Any

    from psycopg import Connection

    from cdc.capture import CaptureSpec
    from headwater.project.project import Project
    from headwater.project.settings import Settings

_GIB = 1024**3
_MIB = 1024**2
_MEMORY_WANTED_GIB = 4.0
"""What the five servers and Spark were measured to need together, with room to breathe."""
_PYTHON_MIN = (3, 11)
_JAR_ENVIRONMENTS = ("kafka", "opensearch", "spark")


def machine_checks(settings: Settings, *, running: bool) -> Iterator[Check]:
    """Checks this machine.

    Args:
        settings: The project's settings.
        running: Whether its servers already run, so that their ports are rightly taken.
    """
    version = ".".join(map(str, sys.version_info[:3]))
    enough = sys.version_info[:2] >= _PYTHON_MIN
    yield Check("python", CheckState.OK if enough else CheckState.FAIL, version, None, None)
    java_home = str(settings.java_home) if settings.java_home else None
    yield _tried("java", lambda: f"Java {find_java(java_home).major}")
    yield _tried("postgres program", lambda: _program(postgres.binaries() / "postgres"))
    yield _tried("cache program", lambda: _program(valkey.binary()))
    yield _memory()
    yield _disk(settings)
    for environment in _JAR_ENVIRONMENTS:
        yield _jars(environment)
    if not running:
        yield from _ports(settings)


def source_checks(spec: CaptureSpec, *, captured_here: bool = True) -> Iterator[Check]:
    """Checks the source: whether it can be reached, and all that capture asks of it.

    Args:
        spec: How it is captured.
        captured_here: Whether this home folder has captured it before.
    """
    try:
        with session.connect(spec.dsn) as connection:
            yield Check("source connection", CheckState.OK, spec.name, None, None)
            yield from source.checks(connection, spec)
            yield from _left_behind(connection, spec.name, captured_here=captured_here)
    except CdcError as error:
        yield _failed("source connection", error)


def _left_behind(connection: Connection[Any], name: str, *, captured_here: bool) -> Iterator[Check]:
    """What earlier trials have left in the database: slots above all, which fill its disk."""
    if not captured_here and captures.find(connection, name) is not None:
        message = f"source {name} was captured before, from another folder"
        detail = "headwater up goes on with its slot, and refuses if changes are missing"
        hint = "headwater source remove  shows what there is, and removes it with --yes"
        yield Check("earlier capture", CheckState.WARN, message, detail, hint)
    for other in remnants.left_behind(connection, name):
        found = remnants.find(connection, other)
        parts = ", ".join(
            f"{remnant.part} {remnant.name}" for remnant in found if remnant.removable
        )
        held = sum(remnant.held_bytes for remnant in found)
        detail = parts or "; ".join(f"{remnant.name}: {remnant.why}" for remnant in found[:1])
        if held:
            detail += f"; the slot holds {held / _MIB:,.1f} MiB of log, and more with every write"
        message = f"of source {other}, which is no longer captured"
        hint = f"headwater source remove --source {other}  unless another project needs it"
        yield Check("left behind", CheckState.WARN, message, detail, hint)


def former_sources(project: Project) -> Iterator[Check]:
    """Warns of sources that this folder has captured and that are declared no more."""
    folder = project.home.root / "checkpoints"
    names = {path.name for path in folder.glob("[!.]*/")} if folder.is_dir() else set()
    for name in sorted(names - set(project.sources)):
        yield Check(
            "former source",
            CheckState.WARN,
            f"source {name} was captured from this folder, and is no longer declared",
            "as long as its slot exists, its database retains log",
            f"headwater source remove --source {name} --dsn postgresql://…, "
            f"then remove the folder {folder / name}",
        )


def half_added_source(folder: Path) -> Iterator[Check]:
    """Warns of a source that a command was adding when it was killed.

    Args:
        folder: That of the settings file.
    """
    if (name := added_text.unfinished(folder)) is not None:
        yield Check(
            "added source",
            CheckState.WARN,
            f"headwater init --add-source {name} was interrupted",
            f"{folder / added_text.NOTE} names the files; .env may hold its address",
            "give the command again: it removes what it had written, and begins again",
        )


def secret_checks(spec: CaptureSpec) -> Iterator[Check]:
    """Checks whether secrets would lie in a topic of a Kafka Connect that is not ours."""
    clear = [
        name
        for name, value, reference in (
            ("connector_password", spec.dsn, spec.connector_password),
            ("connector_salt", spec.salt, spec.connector_salt),
        )
        if value and not reference and spec.secrets_folder is None
    ]
    if not clear:
        yield Check("secrets", CheckState.OK, "are no part of the connector's configuration")
        return
    message = "a secret would lie in Kafka Connect's configuration topic, in clear"
    hint = f'{clear[0]} = "${{file:/etc/connect/secrets.properties:…}}" and a provider there'
    yield Check("secrets", CheckState.WARN, message, f"{' and '.join(clear)} not set", hint)


def converter_check(connect_url: str, *, escaped_topics: bool = False) -> Check:
    """Checks whether a Kafka Connect that is not ours has our classes.

    Args:
        connect_url: Where it is.
        escaped_topics: Whether a source has tables whose names are escaped in their topics: the
            class that names them is in later jars only.
    """
    wanted = [converter.CLASS, *([converter.TOPIC_NAMES] if escaped_topics else [])]

    def look() -> str:
        with closing(ConnectRest(connect_url, retry_s=3.0)) as rest:
            for name in wanted:
                converter.require(rest.complaints(CONNECTOR_CLASS, converter.probe(name)))
        return f"{connect_url} has it"

    return _tried("converter", look)


def cache_check(url: str) -> Check:
    """Checks whether a cache that is not ours keeps what is written to it."""
    from projections.stores.valkey.client import eviction_policy  # noqa: PLC0415  # needs the extra

    name = "cache policy"
    try:
        policy = eviction_policy(url)
    except ProjectionError as error:
        return Check(name, CheckState.FAIL, error.message, error.detail, error.hint)
    if not policy.startswith("allkeys"):
        return Check(name, CheckState.OK, policy or "unknown", None, None)
    message = "the cache evicts rows when it is full: its views are then read again"
    return Check(name, CheckState.WARN, message, policy, "maxmemory-policy noeviction")


def _program(path: Path) -> str:
    output = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    return output.partition(" sha=")[0].strip() or str(path)


def _memory() -> Check:
    import psutil  # noqa: PLC0415  # part of the extra: the other commands work without

    free = psutil.virtual_memory().available / _GIB
    if free >= _MEMORY_WANTED_GIB:
        return Check("memory", CheckState.OK, f"{free:.1f} GiB available", None, None)
    hint = "lower memory_mib in headwater.toml, or use servers that run elsewhere"
    wanted = f"{_MEMORY_WANTED_GIB:.0f} GiB carry everything locally"
    return Check("memory", CheckState.WARN, f"{free:.1f} GiB available", wanted, hint)


def _disk(settings: Settings) -> Check:
    free = free_bytes(settings.home) / _GIB
    wanted = settings.disk_free_min_mib / 1024
    state = CheckState.OK if free >= wanted else CheckState.FAIL
    hint = None if free >= wanted else "make room, or put --home on another disk"
    return Check("disk", state, f"{free:.1f} GiB free", f"at least {wanted:.1f} GiB", hint)


def _jars(environment: str) -> Check:
    name = f"jars for {environment}"
    damaged = jars.damaged(environment)
    if damaged:
        names = ", ".join(path.name for path in damaged)
        remove = "rm " + " ".join(str(path) for path in damaged)
        return Check(name, CheckState.FAIL, "damaged", names, remove)
    missing = jars.missing(environment)
    if missing:
        hint = "python -m headwater.runtime.java ensure"
        return Check(name, CheckState.WARN, f"{len(missing)} not downloaded yet", None, hint)
    return Check(name, CheckState.OK, "complete, checksums as locked", None, None)


def _ports(settings: Settings) -> Iterator[Check]:
    services = settings.services
    for name in type(services).model_fields:
        port = getattr(services, name).port
        if port is None:
            continue
        if ports.is_free(port):
            yield Check(f"port {port}", CheckState.OK, f"free for {name}", None, None)
        else:
            hint = f"stop that process, or change services.{name}.port in headwater.toml"
            yield Check(f"port {port}", CheckState.FAIL, "taken", ports.holder(port), hint)


def _tried(name: str, attempt: Callable[[], str]) -> Check:
    try:
        return Check(name, CheckState.OK, attempt(), None, None)
    except (HeadwaterError, CdcError) as error:
        return _failed(name, error)


def _failed(name: str, error: HeadwaterError | CdcError) -> Check:
    return Check(name, CheckState.FAIL, error.message, error.detail, error.hint)
