"""What of `headwater view rebuild` is refused before anything is looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headwater.cli import main
from headwater.cli import rebuild as command
from projections.replay.bounds import Bounds

if TYPE_CHECKING:
    from pathlib import Path

VIEWS = """
from headwater import source, view
shop = source("shop", tables=["orders"])
view.mirror("orders", shop.orders, to=["table"])
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADWATER_HOME", raising=False)
    (tmp_path / "headwater.toml").write_text('[project]\nname = "shop"\n')
    (tmp_path / "views.py").write_text(VIEWS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--where", "tenant"], "--where tenant=acme"),
        (["--where", "=acme"], "--where tenant=acme"),
        (["--since", "yesterday"], "--since is no time: yesterday"),
        (["--until", "2026-13-01"], "--until is no time: 2026-13-01"),
        (["--key", '{"id":5}', "--from-source"], "made anew in their place"),
        (["--since", "2026-11-21", "--cutover", "when-explained"], "made anew in their place"),
        (["--cutover", "always"], "when-explained"),
        (["--share", "2"], "--share"),
        (["--share", "0"], "--share"),
    ],
)
def test_what_cannot_be_meant_is_refused_as_a_wrong_command(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 2 == main(["view", "rebuild", "orders", *words])
    assert said in " ".join(capsys.readouterr().err.split())


def test_bounds_are_read_as_they_are_given() -> None:
    found = command.bounds_of(
        ['{"id":5}', '{"id":6}'], "tenant=a=b", "2026-11-21T10:00Z", "2026-11-21T10:00:01.5+00:00"
    )

    at = 1_795_255_200_000_000
    expected = Bounds(frozenset(['{"id":5}', '{"id":6}']), ("tenant", "a=b"), at, at + 1_500_000)
    assert expected == found
    assert command.bounds_of(None, None, None, None) is None
