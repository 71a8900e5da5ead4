"""A query as of a time that no published version is kept for is answered by former tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headwater.reading import sql as reading_sql
from headwater.reading.sql import AsOfError
from projections.publishing.published_versions import Published

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def test_the_views_that_a_statement_names_are_those_of_then(tmp_path: Path) -> None:
    tables, before = tmp_path / "tables", tmp_path / "before"
    for folder, total in ((tables, 2), (before, 1)):
        write_deltalake(str(folder / "orders"), pa.table({"id": [1], "total": [total]}))
    Published(tables, "shop").publish(1, 0x500, {"orders": 0})
    asked: list[tuple[str, bool]] = []

    def former(as_of: str, words: frozenset[str]) -> Mapping[str, Path]:
        asked.append((as_of, "orders" in words))
        return {"orders": before / "orders"}

    def total(as_of: str) -> object:
        sql = "SELECT total FROM orders"
        return reading_sql.run(sql, tables, as_of, former=former).to_pylist()[0]["total"]

    assert 2 == total("0/500")
    assert [] == asked
    assert 1 == total("0/4FF")
    assert [("0/4FF", True)] == asked
    with pytest.raises(AsOfError, match="can no longer be read"):
        total("7")
    with pytest.raises(AsOfError, match="not a position, time or version"):
        total("yesterday")
    assert 1 == len(asked), "a version is either kept or not"
