"""Two sources whose addresses differ and whose database is one are found out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psycopg
import pytest

from headwater.cli import main
from headwater.errors import UsageError
from headwater.platform.platform import Platform
from headwater.project.project import open_project
from headwater.project.settings.errors import ConflictingSettingsError
from tests.fix_services import fresh_database

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

VIEWS = """
from headwater import source, view
shop = source("shop", tables=["orders"])
view.mirror("orders", shop.orders)
billing = source("billing", tables=["invoices"])
view.mirror("invoices", billing.invoices)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADWATER_HOME", raising=False)
    (tmp_path / "views.py").write_text(VIEWS)
    return tmp_path


def settle(folder: Path, shop: str, billing: str) -> list[Platform]:
    for dsn in {shop, billing}:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS orders (id int PRIMARY KEY)")
            connection.execute("CREATE TABLE IF NOT EXISTS invoices (id int PRIMARY KEY)")
    file = folder / "headwater.toml"
    file.write_text(f"[source.shop]\ndsn = {shop!r}\n[source.billing]\ndsn = {billing!r}\n")
    return [Platform(part, file) for part in open_project(file).parts]


def test_one_database_by_two_addresses_is_refused_before_anything_is_changed(
    folder: Path, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = database.replace("127.0.0.1", "localhost")
    assert other != database
    shop, billing = settle(folder, database, other)

    assert None is shop.same_database()
    with pytest.raises(ConflictingSettingsError, match="shop and billing are the same database"):
        billing.apply()
    main(["doctor", "--json"])
    checks = {check["name"]: check["state"] for check in json.loads(capsys.readouterr().out)}

    assert "fail" == checks["database (billing)"]
    with psycopg.connect(database) as connection:
        found = connection.execute("SELECT to_regnamespace('headwater')").fetchone()
    assert (None,) == found


def test_two_databases_of_one_server_are_two(
    folder: Path, database: str, postgres_dsn: str
) -> None:
    with fresh_database(postgres_dsn) as second:
        _, billing = settle(folder, database, second)
        assert None is billing.same_database()
    assert None is billing.same_database()  # it is down: nothing can be said


def test_traces_of_a_former_source_name_the_database_that_has_them(
    folder: Path, database: str, postgres_dsn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with fresh_database(postgres_dsn) as second:
        settle(folder, database, second)
        with psycopg.connect(second, autocommit=True) as connection:
            connection.execute("CREATE PUBLICATION headwater_former")

        assert 0 == main(["source", "remove", "--source", "former", "--json"])
        shown = json.loads(capsys.readouterr().out)["items"]
        assert 2 == main(["source", "remove", "--source", "nowhere"])
        refused = capsys.readouterr().err

    assert ["headwater_former"] == [i["name"] for i in shown if i["part"] == "publication"]
    assert "0 databases" in refused
    assert UsageError.code in refused
