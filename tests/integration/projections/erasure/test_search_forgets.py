"""Documents that were overwritten just now are in no segment of the search engine afterwards."""

from __future__ import annotations

import secrets
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from projections.erasure.residue import expunge
from projections.stores.opensearch.client import SearchEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration


@pytest.fixture
def engine(search_url: str) -> Iterator[SearchEngine]:
    with closing(SearchEngine(search_url)) as opened:
        yield opened


@pytest.fixture
def place(engine: SearchEngine) -> Iterator[str]:
    """A view's place, whose index has a segment of 200 documents."""
    name = f"p{secrets.token_hex(4)}"
    engine.request("PUT", f"/{name}-v1", {"settings": {"number_of_replicas": 0}})
    _write(engine, name, range(200), 1)
    yield name
    engine.request("DELETE", f"/{name}-v1")


def _write(engine: SearchEngine, place: str, ids: range, version: int) -> None:
    for each in ids:
        path = f"/{place}-v1/_doc/{each}?version={version}&version_type=external"
        engine.request("PUT", path, {"name": f"name {each} {version}"})
    engine.request("POST", f"/{place}-v1/_flush?force=true&wait_if_ongoing=true")


def _former(engine: SearchEngine, place: str) -> int:
    said: Any = engine.request("GET", f"/{place}-v1/_stats/docs")
    return int(said["_all"]["primaries"]["docs"]["deleted"])


def test_a_document_that_was_overwritten_just_now_goes(engine: SearchEngine, place: str) -> None:
    """The engine keeps it half a minute for copies that might lack the change."""
    _write(engine, place, range(7, 9), 2)
    before = _former(engine, place)

    done = expunge(engine, [place], 60)

    assert before >= 2
    assert ([f"{place}-v1"], []) == done
    assert 0 == _former(engine, place)
    assert 200 == engine.request("GET", f"/{place}-v1/_count")["count"]
    settings = engine.request("GET", f"/{place}-v1/_settings?flat_settings=true")[f"{place}-v1"]
    assert not [name for name in settings["settings"] if "expunge" in name or "soft" in name]
