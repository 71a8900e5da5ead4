"""A version of a view in several stores is filled in each of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from projections.changes.quarantine import table as quarantine_table
from projections.definition.views import Store
from projections.planning.job_config import JobConfig
from projections.versions import fill_from_archive
from tests.fix_log import PLAN

if TYPE_CHECKING:
    import pytest


def test_each_target_names_its_store_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine_table, "held", lambda *_: {})
    config, connection = JobConfig.of_tables("shop", Path("home"), ()), Any
    everywhere = replace(PLAN, to=frozenset(Store))

    found = fill_from_archive.targets(connection, config, everywhere)  # type: ignore[arg-type]

    assert [[{store}] for store in sorted(Store)] == [
        [{*plan.to} for plan in target.plans] for target in found
    ]
