"""The jar of the converter belongs to its source."""

from __future__ import annotations

import hashlib
import importlib.util
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cdc.connect import converter
from cdc.connect.errors import ConverterMissingError
from cdc.values import UNCHANGED_PLACEHOLDER

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("converter_build", ROOT / "setup/converter.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def contents() -> dict[str, bytes]:
    with zipfile.ZipFile(converter.JAR) as jar:
        return {name: jar.read(name) for name in jar.namelist()}


def test_the_jar_was_built_from_the_sources_beside_it():
    manifest = contents()["META-INF/MANIFEST.MF"].decode().replace("\r\n ", "")

    checksum = hashlib.sha256(b"".join(s.read_bytes() for s in converter.SOURCES)).hexdigest()
    assert f"Source-SHA-256: {checksum}\r\n" in manifest
    assert f"{converter.CLASS.replace('.', '/')}.class" in contents()


def test_building_it_again_gives_the_same_bytes(build: ModuleType, tmp_path: Path):
    manifest = contents()["META-INF/MANIFEST.MF"].decode()
    if f"Build-Jdk-Spec: {build.compiler()}\r\n" not in manifest:
        pytest.skip(f"javac is {build.compiler() or 'missing'}: only the jar's own says the same")

    build.write_jar(tmp_path / "again.jar", build.classes())

    assert converter.JAR.read_bytes() == (tmp_path / "again.jar").read_bytes()


def test_the_source_sends_the_mark_that_is_understood():
    mark = UNCHANGED_PLACEHOLDER.replace("\0", "\\0")

    for source in converter.CONVERTERS:
        assert f'UNCHANGED = "{mark}"' in source.read_text()


def test_a_worker_without_it_is_told_from_a_configuration_that_is_wrong():
    converter.require(["Connection to localhost:1 refused"])

    with pytest.raises(ConverterMissingError) as missing:
        converter.require([f"IllegalArgumentException: Unable to find class {converter.CLASS}"])
    assert str(converter.JAR) in str(missing.value.hint)


def test_the_wheel_brings_it(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        name = converter.JAR.relative_to(ROOT).as_posix()

        assert converter.JAR.read_bytes() == archive.read(name)
