"""From what a project declares to what is captured and run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from cdc.postgres.check import CheckState
from cdc.retention import TopicRetention
from cdc.table import TableName
from headwater.platform.specs import _code, alert_spec, capture_spec, unsigned
from headwater.project.project import open_project
from headwater.runtime import Endpoints
from headwater.runtime.servers.connect import secrets_folder
from projections.definition.views import EVENT_TABLES, OUTBOX

if TYPE_CHECKING:
    from pathlib import Path

    from headwater.project.project import Project

DSN = "postgresql://u@db/shop"
ENDPOINTS = Endpoints(kafka_bootstrap="kafka:9092", connect_url="http://connect")


@pytest.fixture(autouse=True)
def _path_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])


def project(folder: Path, views: str) -> Project:
    (folder / "shop").mkdir()
    (folder / "shop" / "views.py").write_text(
        "from headwater import source, view\n" + views, encoding="utf-8"
    )
    settings = folder / "headwater.toml"
    settings.write_text('[project]\nname = "shop"\nviews = "shop/views.py"\n', encoding="utf-8")
    return open_project(settings, home=folder / ".headwater")


def test_a_source_with_an_event_store_is_captured_with_its_outbox(tmp_path: Path) -> None:
    spec = capture_spec(project(tmp_path, 'source("shop", eventstore=True)'), DSN, ENDPOINTS)

    assert EVENT_TABLES == spec.tables
    assert OUTBOX == spec.outbox


def test_a_source_without_one_has_no_outbox(tmp_path: Path) -> None:
    assert None is capture_spec(project(tmp_path, 'source("shop", ["a"])'), DSN, ENDPOINTS).outbox


def test_alerts_are_looked_at_with_the_keys_of_their_views_and_signed_by_the_settings(
    tmp_path: Path,
) -> None:
    project(
        tmp_path,
        "from headwater import Webhook, alert\n"
        "orders = view.mirror('orders', source('shop', ['orders']).orders)\n"
        "busy = view.aggregate('busy', orders, by=['region'], count='orders')\n"
        "hooks = [Webhook(f'https://example.org/{name}', name) for name in ('a', 'b', 'c')]\n"
        "alert('calls', busy, hooks, where='orders > 9')\n",
    )
    with (tmp_path / "headwater.toml").open("a", encoding="utf-8") as settings:
        settings.write("[alerts]\nsecrets.a = 'signed'\nsecrets.b = ''\n")
    opened = open_project(tmp_path / "headwater.toml", home=tmp_path / ".headwater")

    spec = alert_spec(opened, DSN, ENDPOINTS, tuple, lambda: opened.declarations.derived)

    assert (("region",), {"a": "signed"}) == (spec.keys()["busy"], spec.secrets)
    assert ["calls"] == [each.name for each in spec.alerts]
    warned = unsigned(opened)
    assert ["in the settings: alerts.secrets.b", "in the settings: alerts.secrets.c"] == [
        each.hint for each in warned
    ]
    assert {("alert calls", CheckState.WARN)} == {(each.name, each.state) for each in warned}


def test_secrets_are_files_of_a_connect_that_is_ours_and_names_for_one_that_is_not(
    tmp_path: Path,
) -> None:
    opened = project(tmp_path, 'source("shop", ["a"])')
    elsewhere = (
        '[source.shop]\nconnector_password = "${file:/etc/shop:password}"\n'
        '[services.connect]\naddress = "http://connect"\n'
    )
    settings = tmp_path / "headwater.toml"
    settings.write_text(settings.read_text() + elsewhere)

    ours = capture_spec(opened, DSN, ENDPOINTS)
    theirs = capture_spec(open_project(settings, home=tmp_path / ".headwater"), DSN, ENDPOINTS)

    assert ours.secrets_folder == secrets_folder(opened.home)
    assert None is ours.connector_password
    assert None is theirs.secrets_folder
    assert "${file:/etc/shop:password}" == theirs.connector_password


def test_retention_is_a_policy_for_each_table(tmp_path: Path) -> None:
    opened = project(tmp_path, 'source("shop", ["a", "b"])')
    settings = tmp_path / "headwater.toml"
    text = '[source.shop]\ntopic_retention_hours = 2\n[source.shop.retention]\na = "latest"\n'
    settings.write_text(settings.read_text() + text)
    opened = open_project(settings, home=tmp_path / ".headwater")

    spec = capture_spec(opened, DSN, ENDPOINTS)

    two_hours_ms = 7_200_000
    assert TopicRetention(two_hours_ms, latest=True) == spec.retention_of(TableName("public", "a"))
    assert TopicRetention(two_hours_ms) == spec.retention_of(TableName("public", "b"))


@pytest.mark.parametrize(
    ("view", "folders"),
    [("", []), ('view.events("v", shop.events("a.b"))', [".", "shop"])],
    ids=["none", "events"],
)
def test_executors_find_the_modules_of_events_if_a_view_needs_them(
    tmp_path: Path, view: str, folders: list[str]
) -> None:
    found = _code(project(tmp_path, f'shop = source("shop", eventstore=True)\n{view}'))

    assert [(tmp_path / folder).resolve() for folder in folders] == list(found)
