"""The names in a SELECT that stand where a table can."""

from __future__ import annotations

import pytest

from projections.definition.derived.relations import relations


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("SELECT id, orders FROM customers", {"customers"}),
        ("SELECT a.id FROM orders a, items AS b WHERE a.id = b.order_id", {"orders", "items"}),
        ("SELECT 1 FROM orders o JOIN items i ON o.id = i.id, c", {"orders", "items", "c"}),
        ("SELECT f(orders, items) FROM (SELECT * FROM a) x, b", {"a", "b"}),
        ("SELECT * FROM ((a JOIN b USING (id)) LEFT JOIN c USING (id))", {"a", "b", "c"}),
        ("SELECT * FROM a WHERE id IN (SELECT id FROM b) GROUP BY x, y", {"a", "b"}),
        ("SELECT * FROM a WHERE x IS NOT DISTINCT FROM y", {"a"}),
        ("SELECT 'from orders', \"it's\", x FROM a -- from items\n", {"a"}),
        ("SELECT r'\\', x FROM a WHERE y = 'from b'", {"a"}),
        ("SELECT 'it\\'s', 'o''clock' FROM a", {"a"}),
        ("SELECT /* FROM b, c */ 1 FROM `a`", {"a"}),
        ("WITH x AS (SELECT * FROM Orders) SELECT * FROM x", {"orders", "x"}),
        ("SELECT * FROM a, LATERAL (SELECT * FROM b WHERE b.id = a.id)", {"a", "b"}),
        ("SELECT * FROM a UNION ALL SELECT x, y FROM b ORDER BY x, c", {"a", "b"}),
        ("SELECT (SELECT max(x) FROM b) AS m, items FROM a", {"a", "b"}),
        ("FROM a JOIN b ON a.x = b.y |> WHERE z > 1", {"a", "b"}),
        ("SELECT * FROM a LIMIT 1)) , b", {"a"}),
        (
            "SELECT * FROM order o, limit JOIN Group g ON o.x = g.x ORDER BY x, y",
            {"order", "limit", "group"},
        ),
        ("SELECT * FROM VALUES (1), (2) AS v(x), a", {"a"}),
    ],
)
def test_tables_are_found_and_columns_texts_and_comments_are_none(
    sql: str, tables: set[str]
) -> None:
    assert relations(sql) == tables
