"""Checks and choices before anything is started, so that their errors reach the caller."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headwater.runtime.errors import DiskNearlyFullError
from headwater.runtime.external import check_external, external_services
from headwater.runtime.java.jars import ensure
from headwater.runtime.java.java import find_java
from headwater.runtime.plan import Plan
from headwater.runtime.ports import PortBook
from headwater.runtime.servers import postgres, spark, valkey
from headwater.runtime.spec import SPARK_MASTER, RuntimeSpec, ServiceName
from projections.job.spark import class_archive

if TYPE_CHECKING:
    from headwater.runtime.home import Home

_JAR_ENV: Final = {
    ServiceName.KAFKA: "kafka",
    ServiceName.CONNECT: "kafka",
    ServiceName.SEARCH: "opensearch",
}
_SECOND_PORT: Final = {
    ServiceName.KAFKA: "kafka-controller",
    ServiceName.SEARCH: "opensearch-transport",
}


def make_plan(home: Home, spec: RuntimeSpec, *, progress: bool) -> Plan:
    """Checks disk, Java, jars, programs, ports and external servers; chooses unset ports.

    Raises:
        HeadwaterError: Each check has an error of its own.
    """
    check_disk(home.root, spec.disk_free_min_bytes)
    envs = sorted({_JAR_ENV[name] for name in spec.spawned if name in _JAR_ENV})
    java = find_java(spec.java_home) if envs or spec.spark else None
    jars = {env: tuple(ensure(env, progress=progress)) for env in envs}
    archive = None
    if java is not None and spec.spark is not None:
        jars["spark"] = spark.class_path()
        archive = class_archive.existing(java.home)
    if ServiceName.POSTGRES in spec.spawned:
        postgres.binaries()
    if ServiceName.CACHE in spec.spawned:
        valkey.binary()
    for service in external_services(spec):
        check_external(service)
    return Plan(
        spec=_settled(home, spec),
        ports=choose_ports(home, spec),
        java=java.path if java else None,
        jars=jars,
        spark_archive=archive,
        settings=spec.fingerprints(),
    )


def check_disk(folder: Path, free_min_bytes: int) -> None:
    """Refuse to start on a nearly full disk.

    Raises:
        DiskNearlyFullError: Less than ``free_min_bytes`` are free.
    """
    free = shutil.disk_usage(folder).free
    if free < free_min_bytes:
        raise DiskNearlyFullError(
            "the disk is nearly full",
            detail=f"{folder}: {free / 1024**3:.1f} of {free_min_bytes / 1024**3:.1f} GiB free",
            hint="free disk space, or move the home folder to another disk",
        )


def choose_ports(home: Home, spec: RuntimeSpec) -> dict[str, int]:
    """Returns a free port for each spawned service; raises if a configured port is in use."""
    book = PortBook(home.ports)
    # Configured ports first, so that no chosen port conflicts with them.
    order = sorted(spec.spawned.items(), key=lambda item: item[1].port is None)
    ports = {str(name): book.choose(name, wanted.port) for name, wanted in order}
    for name, second in _SECOND_PORT.items():
        if name in spec.spawned:
            ports[second] = book.choose(second)
    if spec.spark is not None:
        for program in (*spec.spark.names, f"{SPARK_MASTER}-page"):
            ports[program] = book.choose(program)
    return ports


def _settled(home: Home, spec: RuntimeSpec) -> RuntimeSpec:
    """Returns the spec with absolute paths; the supervisor may run in another folder."""
    here = Path.cwd()
    commands = tuple(
        dataclasses.replace(
            command,
            cwd=(here / command.cwd) if command.cwd else here,
            ready_file=(here / command.ready_file) if command.ready_file else None,
        )
        for command in spec.commands
    )
    return dataclasses.replace(spec, home=home.root, commands=commands)
