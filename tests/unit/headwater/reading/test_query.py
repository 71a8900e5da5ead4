from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headwater.reading import sql as reading_sql
from projections.publishing.published_content import TableVersion
from projections.publishing.published_versions import Published

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    totals = pa.array([Decimal("1.10"), Decimal("2.20")], pa.decimal128(12, 2))
    write_deltalake(str(tmp_path / "orders"), pa.table({"id": [1, 2], "total": totals}))
    write_deltalake(str(tmp_path / "orders.deleted"), pa.table({"id": [3]}))
    return tmp_path


def test_a_query_answers_exactly(tables: Path) -> None:
    answer = reading_sql.run("SELECT sum(total) AS total FROM orders", tables)

    assert [{"total": Decimal("3.30")}] == answer.to_pylist()


def test_changes_are_read_beside_the_views(tables: Path) -> None:
    archive = tables / "archived"
    write_deltalake(str(archive), pa.table({"op": ["c", "u"], "key": ['{"id":1}', '{"id":1}']}))
    sql = "SELECT count(*) AS changes FROM changes JOIN orders ON key = '{\"id\":' || id || '}'"

    assert [{"changes": 2}] == reading_sql.run(sql, tables, archive=archive).to_pylist()
    with pytest.raises(reading_sql.QueryError, match="no view is named changes"):
        reading_sql.run(sql, tables, archive=tables / "none")


def test_bookkeeping_is_not_a_view(tables: Path) -> None:
    assert list(reading_sql.view_tables(tables)) == ["orders"]


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO orders VALUES (3, 1)",
        "DELETE FROM orders",
        "DROP TABLE orders",
        "CREATE TABLE copy AS SELECT * FROM orders",
        "COPY (SELECT 1) TO 'stolen.csv'",
        "ANALYZE INSERT INTO orders VALUES (3, 1)",
        "/* a query? */ ANALYZE INSERT INTO orders VALUES (3, 1)",
    ],
)
def test_a_statement_that_changes_anything_is_refused(tables: Path, sql: str) -> None:
    with pytest.raises(reading_sql.ReadOnlyError):
        reading_sql.run(sql, tables)

    assert DeltaTable(tables / "orders").version() == 0


def test_a_second_statement_is_refused(tables: Path) -> None:
    with pytest.raises(reading_sql.QueryError):
        reading_sql.run("SELECT 1; DROP TABLE orders", tables)


def test_a_misspelt_view_names_the_nearest(tables: Path) -> None:
    with pytest.raises(reading_sql.QueryError) as refused:
        reading_sql.run("SELECT * FROM ordrs", tables)

    assert refused.value.hint == "did you mean orders?"


@pytest.mark.parametrize(
    ("sql", "detail"),
    [
        ("SELECT 1 / (id - id) FROM orders", "Divide by zero error"),
        ("SELECT id FROM orders WHERE 1 / (id - id) > 0", "divide by zero"),
        ("SELECT CAST('x' || id AS int) FROM orders", "Cannot cast string 'x1' to value of Int"),
        ("SELECT id FROM orders WHERE CAST('x' || id AS int) > 0", "Cannot cast string 'x1' to"),
        ("SELECT CAST('x' AS int) FROM orders", "Cannot cast string 'x' to value of Int32 type"),
        ("SELECT sum('x' || id) FROM orders", "No function matches the given name and argument"),
        ("SELECT to_timestamp('x' || id) FROM orders", "Error parsing timestamp from 'x1'"),
    ],
)
def test_a_statement_that_fails_is_explained_by_the_cause(
    tables: Path, sql: str, detail: str
) -> None:
    with pytest.raises(reading_sql.QueryError) as refused:
        reading_sql.run(sql, tables)

    assert (refused.value.detail or "").startswith(detail)


def test_a_statement_that_fails_at_a_row_leaves_the_others(tables: Path) -> None:
    views = reading_sql.readable(tables, reading_sql.view_tables(tables))

    wrong, right = reading_sql.run_all(
        ["SELECT 1 / (id - id) FROM orders", "SELECT count(*) AS n FROM orders"], views
    )

    assert isinstance(wrong, reading_sql.QueryError)
    assert isinstance(right, pa.Table)
    assert [{"n": 2}] == right.to_pylist()


def test_a_table_whose_file_is_gone_is_an_error_of_the_query(tables: Path) -> None:
    for file in (tables / "orders").glob("*.parquet"):
        file.unlink()

    with pytest.raises(reading_sql.QueryError):
        reading_sql.run("SELECT * FROM orders", tables)


def test_nothing_to_query_says_how_to_build_views(tmp_path: Path) -> None:
    with pytest.raises(reading_sql.NoViewsError) as refused:
        reading_sql.run("SELECT 1", tmp_path / "nowhere")

    assert "headwater up" in (refused.value.hint or "")


def test_a_query_waits_only_for_views_that_it_names(tmp_path: Path) -> None:
    published = Published(tmp_path, "shop")
    for name, rows in (("orders", 3), ("totals", 2)):
        for number in range(1, rows + 1):
            write_deltalake(str(tmp_path / name), pa.table({"id": [number]}), mode="append")
    first = published.publish(1, 100, {"orders": 1}, complete=False)
    assert first is not None
    published.complete(first, {"totals": TableVersion(1, 1, 100, {"orders": 1}, "q")})
    published.publish(1, 200, {"orders": 2}, complete=False)

    def counted(sql: str) -> int:
        (found,) = reading_sql.run(sql, tmp_path)["n"].to_pylist()
        return int(found)

    assert counted("SELECT count(*) AS n FROM orders") == 3
    assert counted("SELECT count(*) AS n FROM orders JOIN totals USING (id)") == 2
    assert counted("SELECT count(*) AS n FROM totals") == 2
    assert versions(tmp_path) == {"orders": 1, "totals": 1}
    with pytest.raises(reading_sql.QueryError, match="no view is named order"):
        reading_sql.run("SELECT * FROM order_", tmp_path)

    newest = published.newest()
    assert newest is not None
    published.complete(newest, {"totals": TableVersion(1, 1, 200, {"orders": 2}, "q")})
    assert counted("SELECT count(*) AS n FROM orders JOIN totals USING (id)") == 2
    assert versions(tmp_path) == {"orders": 2, "totals": 1}


def versions(tables: Path) -> dict[str, int | None]:
    found = reading_sql.readable(tables, reading_sql.view_tables(tables))
    return {name: table.version for name, table in found.items()}


def test_a_view_that_is_switched_is_read_by_its_own_name_now_and_where_it_was_then(
    tmp_path: Path,
) -> None:
    published = Published(tmp_path, "shop")
    for name, rows in (("orders", [1]), ("orders.v2", [1, 2]), ("items", [1]), ("items.v2", [])):
        write_deltalake(str(tmp_path / name), pa.table({"id": pa.array(rows, pa.int64())}))
    published.publish(1, 100, dict.fromkeys(("orders", "orders.v2", "items", "items.v2"), 0))
    sql = "SELECT (SELECT count(*) FROM orders) AS o, (SELECT count(*) FROM items) AS i"

    def counted(as_of: str | None = None) -> tuple[int, int]:
        (found,) = reading_sql.run(sql, tmp_path, as_of).to_pylist()
        return found["o"], found["i"]

    before, then = counted(), datetime.now(UTC)
    published.switch({"orders": "orders.v2", "items": "items.v2"})
    switched, switched_at = counted(), datetime.now(UTC)
    published.publish(1, 200, {"orders": 0})
    published.switch({"orders": "orders"})

    assert [(1, 1), (2, 0), (1, 0)] == [before, switched, counted()]
    assert [(1, 1), (1, 1), (2, 0)] == [
        counted(each) for each in ("1", then.isoformat(), switched_at.isoformat())
    ]
    assert (2, 0) == counted("0/C8")
    moments = ("1", then.isoformat(), "0/C8", datetime.now(UTC).isoformat())
    read = [reading_sql.boundaries_as_of(tmp_path, each) for each in moments]
    assert [100, 100, 200, 200] == [found["shop"].lsn for found in read]
    assert ["items", "orders"] == list(reading_sql.view_tables(tmp_path))
    with pytest.raises(reading_sql.QueryError, match="no view is named"):
        reading_sql.run('SELECT * FROM "orders.v2"', tmp_path)
