"""Which Java is taken, and what is said when none fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headwater.runtime.java.errors import JavaIncompleteError, JavaMissingError, JavaTooOldError
from headwater.runtime.java.java import find_java

if TYPE_CHECKING:
    from pathlib import Path


def _fake_java(folder: Path, version: str, *modules: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    listed = "\n".join(f"{module}@{version}" for module in ("java.base", *modules))
    java.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = -version ]; then echo \'openjdk version "{version}"\' >&2; exit 0; fi\n'
        f"cat <<'END'\n{listed}\nEND\n"
    )
    java.chmod(0o755)
    return java


def test_no_java_anywhere_is_said_with_the_command_that_installs_it(tmp_path: Path) -> None:
    with pytest.raises(JavaMissingError) as caught:
        find_java(None, search_path=str(tmp_path))

    assert "HW-J001" == caught.value.code
    assert caught.value.hint is not None
    assert "apt-get install openjdk-17-jre-headless" in caught.value.hint


@pytest.mark.parametrize(
    ("version", "major"), [("11.0.22", 11), ("1.8.0_392", 8)], ids=["java-11", "java-8"]
)
def test_an_old_java_is_refused_and_named(tmp_path: Path, version: str, major: int) -> None:
    java = _fake_java(tmp_path / "jdk", version, "jdk.incubator.vector")

    with pytest.raises(JavaTooOldError) as caught:
        find_java(str(tmp_path / "jdk"), search_path=str(tmp_path))

    assert f"Java {major} at {java}" == caught.value.detail


def test_a_trimmed_runtime_is_refused_because_sparks_launcher_would_fail(tmp_path: Path) -> None:
    _fake_java(tmp_path / "jdk", "17.0.15")

    with pytest.raises(JavaIncompleteError) as caught:
        find_java(str(tmp_path / "jdk"), search_path=str(tmp_path))

    assert "jdk.incubator.vector" in caught.value.message


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    chosen = _fake_java(tmp_path / "home", "21.0.3", "jdk.incubator.vector")
    other = _fake_java(tmp_path / "path", "17.0.15", "jdk.incubator.vector")

    found = find_java(str(tmp_path / "home"), search_path=str(other.parent))

    assert (chosen, 21) == (found.path, found.major)


def test_a_java_home_that_is_too_old_does_not_hide_a_good_java_on_the_path(tmp_path: Path) -> None:
    _fake_java(tmp_path / "home", "11.0.22", "jdk.incubator.vector")
    good = _fake_java(tmp_path / "path", "17.0.15", "jdk.incubator.vector")

    found = find_java(str(tmp_path / "home"), search_path=str(good.parent))

    assert good == found.path


def test_a_runtime_that_its_release_file_describes_is_not_started(tmp_path: Path) -> None:
    java = _fake_java(tmp_path / "jdk", "17.0.15", "jdk.incubator.vector")
    java.write_text("#!/bin/sh\nexit 1\n")
    release = tmp_path / "jdk" / "release"
    release.write_text('JAVA_VERSION="21.0.4"\nMODULES="java.base jdk.incubator.vector"\n')

    found = find_java(str(tmp_path / "jdk"), search_path=str(tmp_path))

    assert (java, 21) == (found.path, found.major)


@pytest.mark.parametrize(
    "release",
    ['JAVA_VERSION="11.0.2"\nMODULES="jdk.incubator.vector"', 'JAVA_VERSION="21"', "", "\0"],
)
def test_a_runtime_whose_release_file_does_not_say_enough_is_asked_itself(
    tmp_path: Path, release: str
) -> None:
    java = _fake_java(tmp_path / "jdk", "17.0.15", "jdk.incubator.vector")
    (tmp_path / "jdk" / "release").write_text(release)

    found = find_java(str(tmp_path / "jdk"), search_path=str(tmp_path))

    assert (java, 17) == (found.path, found.major)
