"""The guide to search is run as it stands: its declaration, its commands, its examples."""

from __future__ import annotations

import doctest
import re
import shlex
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cdc.table import Column, ColumnKind, TableName, TableSchema
from headwater.cli import main
from projections.changes.row_change import RowChange
from projections.definition.registry import load
from projections.planning.view_plan import plan_views
from projections.stores.opensearch.sink import SearchSink

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "search.md"
COLUMNS = (
    Column("id", ColumnKind.INTEGER, "bigint", nullable=False),
    Column("name", ColumnKind.TEXT, "text"),
    Column("category", ColumnKind.TEXT, "text"),
    Column("description", ColumnKind.TEXT, "text"),
    Column("price", ColumnKind.NUMERIC, "numeric(9,2)", 9, 2),
    Column("sold", ColumnKind.BOOLEAN, "boolean"),
    Column("remarks", ColumnKind.TEXT, "text"),
)
PRODUCTS = (
    (1, "Red chair", "Seats", "Four wooden legs", Decimal("49.90"), True, "shelf 4"),
    (2, "Red table", "Tables", "Goes with four chairs", Decimal("149.00"), False, None),
    (3, "Blue chair", "Seats", None, Decimal("12.50"), False, None),
    (4, "Desk lamp", "Lights", "Warm light", Decimal("9.99"), None, None),
)
SETTINGS = """
[source.shop]
dsn = "postgresql://nobody@127.0.0.1:1/none"
[services.kafka]
address = "127.0.0.1:1"
[services.connect]
address = "http://127.0.0.1:1"
[services.cache]
address = "redis://127.0.0.1:1/0"
[services.search]
address = "{url}"
"""


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", GUIDE.read_text(), re.DOTALL)


@pytest.fixture
def project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, search_url: str
) -> Iterator[SearchSink]:
    """A project in this folder, and its view filled."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    Path("headwater.toml").write_text(SETTINGS.format(url=search_url))
    (declared,) = blocks("python")
    Path("views.py").write_text(declared)
    schema = TableSchema(TableName("public", "products"), COLUMNS, ("id",))
    views = load(Path("views.py")).views.values()
    (plan,) = plan_views(views, {schema.table: schema})
    sink = SearchSink(search_url)
    sink.prepare(plan)
    names = [column.name for column in COLUMNS]
    rows = [dict(zip(names, values, strict=True)) for values in PRODUCTS]
    sink.apply(plan, [RowChange((row["id"],), 1 << 56, row, 1) for row in rows])
    sink.engine.request("POST", "/products/_refresh")
    yield sink
    sink.engine.request("DELETE", "/products-v1")
    sink.close()


@pytest.mark.usefixtures("project")
def test_every_command_of_the_guide_prints_what_it_shows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = [block.removeprefix("$ headwater ").partition("\n") for block in blocks("console")]
    for command, _, answer in shown:
        assert 0 == main(shlex.split(command))
        printed = capsys.readouterr().out
        lines = [line.rstrip() for line in printed.splitlines()]
        assert answer.splitlines() == lines, command

    assert len(shown) == 3


@pytest.mark.usefixtures("project")
def test_a_search_that_cannot_be_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["product"],
        ["products", "--where", "pric<1"],
        ["products", "--facet", "remarks"],
    ):
        assert 2 == main(["search", *words, "--json"])
        assert '"code": "HW-P07' in capsys.readouterr().out
    assert 0 == main(["search", "products", "nothing like that"])
    assert 2 == main(["search", "products", "x", "--suggest", "y"])


def test_every_example_of_the_guide_does_what_it_shows(
    project: SearchSink, search_url: str
) -> None:
    del project
    examples = "\n".join(blocks("pycon"))
    found = doctest.DocTestParser().get_doctest(
        examples, {"URL": search_url}, "search.md", str(GUIDE), 0
    )
    told: list[str] = []
    runner = doctest.DocTestRunner(
        optionflags=doctest.FAIL_FAST | doctest.IGNORE_EXCEPTION_DETAIL, verbose=False
    )
    done = runner.run(found, out=told.append)

    assert [] == told
    assert len(found.examples) == done.attempted > 10
