"""What `headwater view verify` and `headwater view repair` refuse, and how a repair is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pytest
import typer

from cdc.lsn import Lsn
from headwater.cli.verification import (
    VerificationReport,
    present,
    present_repaired,
    refuse_paused,
    refuse_unknown,
)
from headwater.errors import UnhealthyError, UsageError
from projections.common.fault import Fault
from projections.definition.registry import load
from projections.definition.views import Store
from projections.planning.job_spec import PausedView
from projections.verification.repair import Repaired
from projections.verification.report import KeyFinding, KeyVerdict, ViewReport

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from projections.definition.views import View


VIEWS = """
from headwater import source, view
shop = source("shop", tables=["orders"])
view.mirror("orders", shop.orders, to=["cache"])
"""


@pytest.fixture
def declared(tmp_path: Path) -> Mapping[str, View]:
    (tmp_path / "views.py").write_text(VIEWS)
    return load(tmp_path / "views.py").views


def paused(name: str) -> PausedView:
    hint = f"headwater view resume {name}"
    fault = Fault("HW-P051", f"view {name} is paused", "column a", hint, retriable=False)
    return PausedView(name, frozenset({Store.CACHE}), (), fault)


@pytest.mark.parametrize(
    ("name", "store", "hint"),
    [
        ("ordres", None, "did you mean orders?"),
        ("people", None, "headwater view list"),
        ("orders", Store.TABLE, "its stores: cache"),
    ],
)
def test_what_is_not_declared_is_refused_with_what_is(
    declared: Mapping[str, View], name: str, store: Store | None, hint: str
) -> None:
    refuse_unknown(declared, ["orders"], Store.CACHE)
    with pytest.raises(UsageError) as refused:
        refuse_unknown(declared, [name], store)

    assert hint == refused.value.hint


def test_paused_views_are_refused_only_where_nothing_else_was_asked_for() -> None:
    still = [paused("orders"), paused("items")]

    with pytest.raises(UnhealthyError) as refused:
        refuse_paused(still, ["orders", "items"])
    assert "headwater view resume orders" == refused.value.hint
    assert ["view orders is paused"] == [f.message for f in refuse_paused(still, ["orders", "x"])]
    assert 2 == len(refuse_paused(still, []))
    assert [] == refuse_paused([], ["orders"])


@pytest.mark.parametrize(("left", "code"), [(0, None), (2, 3)])
def test_a_repair_exits_3_if_any_row_is_left(
    capsys: pytest.CaptureFixture[str], left: int, code: int | None
) -> None:
    # keys of a table are named as far as they were looked at
    named = (KeyFinding("1", KeyVerdict.DIFFERENT, 0, ("sum",)),)[:left]
    done = Repaired("totals", Store.TABLE, 20, 20 - left, named)

    ended = None
    try:
        present_repaired([done], as_json=True)
    except typer.Exit as error:
        ended = error.exit_code

    (said,) = orjson.loads(capsys.readouterr().out)
    assert (code, left, 20 - left) == (ended, said["left"], said["cured"])


@pytest.mark.parametrize("applied", [None, Lsn(16)])
def test_a_view_that_has_reported_no_position_has_none(
    capsys: pytest.CaptureFixture[str], applied: Lsn | None
) -> None:
    report = ViewReport("orders", Store.TABLE, 3, 0, 0, 0, applied)

    present(VerificationReport([report]), as_json=True)

    (said,) = orjson.loads(capsys.readouterr().out)
    assert (applied and str(applied), None) == (said["applied_through"], said["verified_through"])
