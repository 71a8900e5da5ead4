"""What the wheel has in it, and what works of it without the extra `platform`."""

from __future__ import annotations

import json
import tomllib
import zipfile
from pathlib import Path

import pytest
from hatchling.build import build_editable
from packaging.requirements import Requirement

from headwater.project import optional
from tests.fix_packaging import PROJECT, closure, modules_of, normalized

ROOT = Path(__file__).resolve().parents[3]


def test_an_editable_installation_has_no_copy_of_anything(tmp_path, monkeypatch):
    """A copy would go stale."""
    monkeypatch.chdir(ROOT)
    built = tmp_path / build_editable(str(tmp_path))
    with zipfile.ZipFile(built) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}

    assert {"_headwater.pth"} == files


@pytest.fixture(scope="module")
def names(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.mark.parametrize("package", ["cdc", "eventstore", "projections"])
def test_the_wheel_has_the_migrations_of_each_package(names, package):
    files = (ROOT / package / "migrations").rglob("*.sql")
    kept = {path.relative_to(ROOT).as_posix() for path in files}

    assert kept
    assert kept <= names


def test_the_wheel_has_the_page_of_dashboards(names):
    folder = ROOT / "headwater" / "reading" / "dashboard" / "page"

    assert {"page.html", "page.css", "page.js", "chart.js"} == {p.name for p in folder.iterdir()}
    assert [] == [
        p.name
        for p in folder.iterdir()
        if f"headwater/reading/dashboard/page/{p.name}" not in names
    ]


@pytest.mark.parametrize("package", ["foundation", "cdc", "eventstore", "projections", "headwater"])
def test_the_wheel_says_that_each_package_is_typed(names, package):
    assert f"{package}/py.typed" in names


def test_the_wheel_brings_no_top_folder_but_the_packages(names):
    tops = {name.partition("/")[0] for name in names}

    expected = {"cdc", "eventstore", "examples", "foundation", "headwater", "projections"}
    assert expected == {top for top in tops if not top.endswith(".dist-info")}


def test_the_image_gets_every_folder_that_the_wheel_is_made_of():
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    folders = build["targets"]["wheel"]["only-include"]
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    let_in = (ROOT / ".dockerignore").read_text().splitlines()

    assert [] == [f for f in folders if f"COPY --chown=headwater {f} {f}\n" not in dockerfile]
    assert [] == [f for f in folders if f"!{f}" not in let_in]


def test_the_extra_s_modules_are_those_of_its_distributions():
    base = closure(PROJECT["dependencies"])
    wanted = PROJECT["optional-dependencies"]["platform"]
    named = {normalized(Requirement(text).name) for text in wanted}

    assert optional.MODULES <= modules_of(closure(wanted) - base)
    assert [] == [name for name in named if not modules_of({name}) & optional.MODULES]


def test_an_import_of_the_event_store_needs_its_own_dependencies_only(installed, tmp_path):
    answer = installed.python(
        "import eventstore, eventstore.postgres.schema as schema\n"
        "print(eventstore.__file__); print(schema.folder())",
        cwd=tmp_path,
    )

    assert (0, "") == (answer.returncode, answer.stderr)
    assert [
        str(installed.folder / "eventstore" / "__init__.py"),
        str(installed.folder / "eventstore" / "migrations"),
    ] == answer.stdout.split()


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--version"], "headwater 0."),
        (["--help"], "Usage"),
        (["db", "upgrade", "--help"], "--sql"),
        (["events", "append", "--help"], "--expected-version"),
        (["demo", "--help"], "--workload"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_help_and_version_need_no_extra(installed, tmp_path, words, shown):
    answer = installed.headwater(*words, cwd=tmp_path)

    assert (0, "") == (answer.returncode, answer.stderr)
    assert shown in answer.stdout


@pytest.mark.parametrize("command", ["up", "demo", "run", "query", "source", "view", "doctor"])
def test_a_command_of_the_platform_names_the_missing_extra(installed, tmp_path, command):
    words = {
        "query": ["query", "SELECT 1"],
        "source": ["source", "status"],
        "view": ["view", "verify"],
        "demo": ["demo", "--home", str(tmp_path / "demo")],
    }.get(command, [command])
    (tmp_path / "headwater.toml").write_text("[source.shop]\ndsn = 'postgresql://127.0.0.1:1/x'\n")
    (tmp_path / "views.py").write_text(
        "from headwater import source, view\n"
        'shop = source("shop", tables=["orders"])\n'
        'view.mirror("orders", shop.orders)\n'
    )
    (tmp_path / ".headwater" / "tables" / "orders" / "_delta_log").mkdir(parents=True)

    answer = installed.headwater(*words, cwd=tmp_path)

    assert 4 == answer.returncode, answer.stderr
    assert "HW-U003" in answer.stderr
    assert "pip install 'headwater[platform]'" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_the_missing_extra_is_one_document_for_programs(installed, tmp_path):
    answer = installed.headwater("demo", "--json", "--home", str(tmp_path / "demo"), cwd=tmp_path)

    error = json.loads(answer.stdout)["error"]
    assert ("HW-U003", "pip install 'headwater[platform]'") == (error["code"], error["hint"])


def test_another_missing_module_is_not_blamed_on_the_extra():
    assert optional.missing(ModuleNotFoundError(name="shop.orders")) is None
