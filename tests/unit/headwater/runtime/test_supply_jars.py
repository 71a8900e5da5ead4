"""Jars are taken only with the locked bytes, and from the network only when missing."""

from __future__ import annotations

import os
import socket
import tomllib
from typing import TYPE_CHECKING, Never

import pytest

from headwater.runtime.java import jars, lock
from headwater.runtime.java.errors import JarDamagedError, JarUnavailableError, LockUnreadableError
from headwater.runtime.java.lock import ENVIRONMENTS, LockedJar, read_lock

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def _repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: Sequence[str]) -> Path:
    folder = tmp_path / "repository"
    locked = []
    for name in names:
        jar = LockedJar("org.example", name, "1.0", "", "")
        path = folder / jar.path
        path.parent.mkdir(parents=True)
        path.write_bytes(f"content of {name}".encode())
        locked.append(LockedJar("org.example", name, "1.0", "", jars.sha256_of(path)))
    monkeypatch.setattr(jars, "read_lock", lambda _env: tuple(locked))
    return folder


def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Never:
        raise OSError("the network was touched")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_every_locked_jar_has_a_checksum_and_a_version(env: str) -> None:
    locked = read_lock(env)

    assert locked
    assert {64} == {len(jar.sha256) for jar in locked}
    assert len(locked) == len({(jar.group, jar.artifact, jar.classifier) for jar in locked})


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_a_lock_belongs_to_its_jgo_toml_and_names_no_host(env: str) -> None:
    path = lock.lock_path(env)
    from jgo.env._lockfile import compute_spec_hash

    written = tomllib.loads(path.read_text("utf-8"))["metadata"]["spec_hash"]

    assert compute_spec_hash(path.with_name("jgo.toml")) == written
    assert "://" not in path.read_text("utf-8")


def test_one_version_of_jetty_serves_kafka_connect() -> None:
    jetty = {jar.version for jar in read_lock("kafka") if "jetty" in jar.group}

    assert 1 == len(jetty)


def test_with_everything_in_the_cache_the_network_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _repository(tmp_path, monkeypatch, ["one", "two"])
    _no_network(monkeypatch)

    first = jars.ensure("any", repository=folder)
    second = jars.ensure("any", repository=folder)

    assert first == second
    assert ["one-1.0.jar", "two-1.0.jar"] == [path.name for path in first]


def test_a_damaged_jar_is_refused_by_name_with_the_file_to_remove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _repository(tmp_path, monkeypatch, ["one", "two"])
    victim = folder / "org/example/two/1.0/two-1.0.jar"
    victim.write_bytes(b"something else")

    with pytest.raises(JarDamagedError) as caught:
        jars.ensure("any", repository=folder)

    assert "the jar two-1.0.jar is damaged" == caught.value.message
    assert caught.value.hint is not None
    assert str(victim) in caught.value.hint
    assert [victim] == jars.damaged("any", repository=folder)


def test_a_jar_that_a_start_has_checked_is_not_read_again_to_look_for_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _repository(tmp_path, monkeypatch, ["one", "two"])
    checked, _ = jars.ensure("any", repository=folder)
    read: list[Path] = []
    monkeypatch.setattr(jars, "sha256_of", lambda path: read.append(path) or "another")
    other = folder / "org/example/two/1.0/two-1.0.jar"
    other.write_bytes(b"something else")

    assert [other] == jars.damaged("any", repository=folder)
    assert checked not in read


def test_damage_after_a_first_check_is_still_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _repository(tmp_path, monkeypatch, ["one"])
    path = jars.ensure("any", repository=folder)[0]
    before = path.stat()
    path.write_bytes(b"content of 0ne")
    # The same size; even an honest clock may give it the same second.
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))

    with pytest.raises(JarDamagedError):
        jars.ensure("any", repository=folder)


def test_a_warm_start_does_not_read_the_jars_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _repository(tmp_path, monkeypatch, ["one", "two"])
    jars.ensure("any", repository=folder)
    hashed: list[Path] = []
    monkeypatch.setattr(jars, "sha256_of", lambda path: hashed.append(path) or "")

    jars.ensure("any", repository=folder)

    assert [] == hashed


def test_a_missing_jar_without_network_is_an_error_that_can_be_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _repository(tmp_path, monkeypatch, ["one"])
    (folder / "org/example/one/1.0/one-1.0.jar").unlink()
    _no_network(monkeypatch)

    with pytest.raises(JarUnavailableError) as caught:
        jars.ensure("any", progress=False, repository=folder)

    assert caught.value.retriable
    assert "org.example:one:1.0" in (caught.value.detail or "")
    assert ["one"] == [jar.artifact for jar in jars.missing("any", repository=folder)]


def test_a_download_with_other_bytes_never_reaches_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _repository(tmp_path, monkeypatch, ["one"])
    path = folder / "org/example/one/1.0/one-1.0.jar"
    path.unlink()

    def forged(_jar: LockedJar, staging: Path, _bar: object) -> Path:
        staging.mkdir(parents=True)
        arrived = staging / "one.jar"
        arrived.write_bytes(b"forged")
        return arrived

    monkeypatch.setattr(jars, "_fetch", forged)

    with pytest.raises(JarDamagedError):
        jars.ensure("any", progress=False, repository=folder)

    assert not path.exists()
    assert [] == list(folder.glob(".headwater-*"))


def test_an_unknown_environment_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(LockUnreadableError) as caught:
        read_lock("flink")

    assert "one of: kafka, opensearch, spark" == caught.value.hint
