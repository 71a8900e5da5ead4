"""From what a project declares to what is captured and run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from headwater.project import open_project
from headwater.runtime import Endpoints
from headwater.wiring import _code, capture_spec
from projections.view import EVENT_TABLES, OUTBOX

if TYPE_CHECKING:
    from pathlib import Path

    from headwater.project import Project

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
