"""The lock files: the jars of an environment, each with its sha256.

Each start reads the lock; only ``python -m headwater.runtime.java lock`` writes it. It contains
coordinates and checksums, but no repository: that is part of the user's configuration.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headwater.runtime.java.errors import LockUnreadableError

if TYPE_CHECKING:
    from jgo.maven import Dependency

ENVIRONMENTS: Final = ("kafka", "opensearch", "spark")

# pyspark brings Spark and its dependencies; resolving them again would put two versions of each
# on the class path.
_TRANSITIVE: Final = {"kafka": True, "opensearch": True, "spark": False}

_FOLDER: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class LockedJar:
    """One jar by Maven coordinates and content.

    Attributes:
        group: Maven group id.
        artifact: Maven artifact id.
        version: Exact version.
        classifier: Maven classifier, empty for the main jar.
        sha256: Hex digest of the file's bytes.
    """

    group: str
    artifact: str
    version: str
    classifier: str
    sha256: str

    @property
    def coordinate(self) -> str:
        """``group:artifact:version`` with the classifier where there is one."""
        parts = [self.group, self.artifact, self.version, self.classifier]
        return ":".join(part for part in parts if part)

    @property
    def path(self) -> Path:
        """Path of the file inside a Maven repository."""
        suffix = f"-{self.classifier}" if self.classifier else ""
        name = f"{self.artifact}-{self.version}{suffix}.jar"
        return Path(*self.group.split("."), self.artifact, self.version, name)


def lock_path(env: str) -> Path:
    """Returns the path of an environment's lock file.

    Raises:
        LockUnreadableError: No environment has that name.
    """
    if env not in ENVIRONMENTS:
        raise LockUnreadableError(
            "unknown jar environment", detail=env, hint=f"one of: {', '.join(ENVIRONMENTS)}"
        )
    return _FOLDER / env / "jgo.lock.toml"


def read_lock(env: str) -> tuple[LockedJar, ...]:
    """Returns the jars of an environment in class-path order.

    Raises:
        LockUnreadableError: The lock is missing, malformed or lacks a checksum.
    """
    path = lock_path(env)
    try:
        entries = tomllib.loads(path.read_text("utf-8"))["dependencies"]
        return tuple(_jar(entry) for entry in entries)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LockUnreadableError(
            "the lock of a jar environment cannot be read",
            detail=f"{env}: {type(error).__name__}: {error}",
            hint="install headwater again, or run: python -m headwater.runtime.java lock",
        ) from error


def _jar(entry: dict[str, str]) -> LockedJar:
    return LockedJar(
        group=entry["groupId"],
        artifact=entry["artifactId"],
        version=entry["version"],
        classifier=entry.get("classifier", ""),
        sha256=entry["sha256"],
    )


def refresh_lock(env: str) -> int:
    """Resolves ``jgo.toml`` again and writes the lock; needs the network.

    Returns:
        The number of jars of the environment.
    """
    from jgo.env import EnvironmentBuilder, EnvironmentSpec  # noqa: PLC0415  # only a refresh needs it
    from jgo.env._lockfile import LockFile, compute_spec_hash  # noqa: PLC0415
    from jgo.maven import MavenContext  # noqa: PLC0415
    from jgo.parse import Coordinate  # noqa: PLC0415

    path = lock_path(env)
    spec_path = path.with_name("jgo.toml")
    context = MavenContext()
    builder = EnvironmentBuilder(context)
    chosen: dict[tuple[str, ...], Dependency] = {}
    for text in EnvironmentSpec.load(spec_path).coordinates:
        # If jgo resolves all roots together, the managed versions of one apply to the others:
        # Debezium's would change half of Kafka's Jetty. Each root is therefore resolved alone, to
        # the versions that its authors use; in a conflict, the earlier root wins.
        wanted = builder._coordinates_to_dependencies([Coordinate.parse(text)])  # noqa: SLF001
        found = wanted
        if _TRANSITIVE[env]:
            inputs, transitive = context.resolver.resolve(wanted)
            found = [*inputs, *transitive]
        for dep in found:
            if dep.type == "jar" and not dep.optional:
                chosen.setdefault((dep.groupId, dep.artifactId, dep.classifier), dep)
    lock = LockFile.from_resolved_dependencies(
        list(chosen.values()),
        environment_name=env,
        min_java_version=17,
        spec_hash=compute_spec_hash(spec_path),
    )
    lock.save(path)
    return len(chosen)
