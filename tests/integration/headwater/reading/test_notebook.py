"""A notebook's Spark sees every view under its name, at the version that is published."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headwater.reading.notebook import spark
from headwater.reading.sql import AsOfError, NoViewsError
from projections.publishing.published_versions import Published

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

VIEWS = """
from headwater import source, view

shop = source("shop", tables=["public.orders", "public.items"])
view.mirror("orders", shop.orders, to=["table"])
view.mirror("items", shop["public.items"], to=["table"])
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "views.py").write_text(VIEWS)
    (tmp_path / "headwater.toml").write_text('[project]\nname = "shop"\nviews = "views.py"\n')
    return tmp_path / "headwater.toml"


def test_views_are_read_by_name_at_one_boundary(config: Path) -> None:
    tables = config.parent / ".headwater" / "tables"
    for rows in ([1], [1, 2], [1, 2, 3]):
        for name in ("orders", "items"):
            write_deltalake(str(tables / name), pa.table({"id": rows}), mode="overwrite")
    published = Published(tables, "shop")
    published.publish(1, 100, {"orders": 0, "items": 0})
    published.publish(1, 200, {"orders": 1, "items": 1})
    archived = config.parent / ".headwater" / "archive" / "shop"
    write_deltalake(str(archived), pa.table({"op": ["c", "u"], "lsn": [100, 200]}))
    together = "SELECT (SELECT count(*) FROM orders) AS o, (SELECT count(*) FROM items) AS i"

    newest = spark(config).sql(together).collect()
    changed = spark(config).sql("SELECT op FROM changes WHERE lsn > 100").collect()
    before = spark(config, as_of="0/64").sql(together).collect()

    assert [(2, 2)] == [tuple(row) for row in newest]
    assert [("u",)] == [tuple(row) for row in changed]
    assert [(1, 1)] == [tuple(row) for row in before]
    with pytest.raises(AsOfError):
        spark(config, as_of="0/1")


def test_a_project_without_views_yet_says_how_they_are_built(config: Path) -> None:
    with pytest.raises(NoViewsError) as refused:
        spark(config)

    assert "headwater up" in str(refused.value.hint)
