"""Where a replay can be compared with what readers see, and what of it is refused at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cdc.lsn import Lsn
from headwater.cli import main
from headwater.reading.replay import boundary
from headwater.reading.sql import AsOfError
from projections.archive.commits import Reached
from projections.definition.views import DerivedView, Store
from projections.publishing.published_content import PublishedVersion, TableVersion
from projections.publishing.published_versions import Published

if TYPE_CHECKING:
    from pathlib import Path

VIEWS = """
from headwater import source, view

shop = source("shop", tables=["public.orders", "public.people"])
orders = view.mirror("orders", shop.orders, to=["table"])
view.aggregate("by_status", orders, by=["status"], to=["table"], count="n")
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADWATER_HOME", raising=False)
    (tmp_path / "headwater.toml").write_text('[project]\nname = "shop"\n')
    (tmp_path / "views.py").write_text(VIEWS)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["orders"], "HW-U001 view orders reads a table"),
        (["orders"], "headwater view rebuild orders"),
        (["by_statis"], "did you mean by_status?"),
        (["ordrs"], "did you mean orders?"),
        (["by_status", "--until", "yesterday"], "not a position, time or version"),
        (["by_status", "--to", "full"], "the folder is not empty"),
        (["by_status", "--to", "full/something"], "the folder is not empty"),
        (["by_status"], "does not answer"),
    ],
)
@pytest.mark.usefixtures("project")
def test_what_cannot_be_replayed_is_refused_with_the_reason(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 2 == main(["view", "replay", *words])
    assert said in " ".join(capsys.readouterr().err.split())


LARGE = DerivedView("large", ("id",), frozenset({Store.TABLE}), ("orders",), "SELECT 1 AS id")
MOST = DerivedView("most", ("id",), frozenset({Store.TABLE}), ("large",), "SELECT 2 AS id")
CHAIN = (LARGE, MOST)


def publish(
    published: Published, lsn: int, large: int | None, most: int | None, query: str | None = None
) -> PublishedVersion:
    """One version, with where each view stands there."""
    published.publish(1, lsn, {"orders": lsn}, complete=False)
    newest = published.newest()
    assert newest is not None
    made = {}
    for view, at in ((LARGE, large), (MOST, most)):
        if at is not None:
            made[view.name] = TableVersion(1, 1, at, {}, query or view.fingerprint)
    published.complete(newest, made)
    latest = published.latest()
    assert latest is not None
    return latest


def archived(lsn: int, epoch: int = 1) -> Reached:
    return Reached(epoch, Lsn(lsn), 0)


def test_the_newest_version_is_chosen_at_which_the_views_stand_and_the_archive_is(
    tmp_path: Path,
) -> None:
    published = Published(tmp_path, "shop")
    first = publish(published, 0x100, 0x100, 0x100)
    second = publish(published, 0x200, 0x200, 0x200)
    publish(published, 0x300, 0x300, 0x200)
    publish(published, 0x400, 0x300, 0x400)
    fifth = publish(published, 0x500, 0x500, 0x500)
    publish(published, 0x600, 0x600, 0x600, query="another")
    versions = published.all()

    assert fifth == boundary(versions, CHAIN, archived(0x700))
    assert second == boundary(versions, CHAIN, archived(0x4FF))
    assert second == boundary(versions, CHAIN, archived(0x700), "0/4FF")
    assert second == boundary(versions, CHAIN, archived(0x700), str(second.number))
    assert first == boundary(versions, CHAIN, archived(0x1FF), "2100-01-01T00:00Z")


@pytest.mark.parametrize(
    ("reached", "until", "said"),
    [
        (archived(0xFF), None, "the archive has not reached a published version yet"),
        (archived(0x700, epoch=2), None, "the archive has not reached a published version yet"),
        (archived(0x700), "0/FF", "the published rows of view most at that time cannot be read"),
        (archived(0x700), "2020-01-01T00:00Z", "at that time cannot be read"),
        (archived(0x700), "9", "at that time cannot be read"),
        (archived(0x700), "2", "has no common boundary with its inputs"),
    ],
)
def test_where_there_is_no_such_version_the_reason_is_told(
    tmp_path: Path, reached: Reached, until: str | None, said: str
) -> None:
    published = Published(tmp_path, "shop")
    publish(published, 0x100, 0x100, 0x100)
    publish(published, 0x200, 0x200, 0x100)

    with pytest.raises(AsOfError, match=said) as refused:
        boundary(published.all(), CHAIN, reached, until)
    assert refused.value.detail
    assert refused.value.hint
