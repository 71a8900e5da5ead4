"""GlobalShop's live page: windows, joins and patterns over what happens, and what is shown of them.

Each panel asks a view that is kept as orders come, so a question costs a few rows, and all panels
stand at the same transaction boundary.
"""

from headwater import (
    Bars,
    Line,
    Number,
    Pattern,
    Recent,
    Rows,
    Step,
    Topic,
    Tumbling,
    alert,
    dashboard,
    source,
    view,
)

shop = source(
    "shop",
    tables=[
        "public.customers",
        "public.products",
        "public.inventory",
        "public.orders",
        "public.payments",
        "public.searches",
        "public.clicks",
    ],
)
customers = view.mirror("customers", shop.customers, keys=["id"])
products = view.mirror("products", shop.products, keys=["sku"])
inventory = view.mirror("inventory", shop.inventory, keys=["warehouse", "sku"])
orders = view.mirror("orders", shop.orders, keys=["id"])
payments = view.mirror("payments", shop.payments, keys=["id"])
searches = view.mirror("searches", shop.searches, keys=["id"])
clicks = view.mirror("clicks", shop.clicks, keys=["id"])

view.aggregate(
    "orders_per_minute",
    orders,
    to=["table"],
    where="status <> 'cancelled'",
    window=Tumbling("placed_at", "1 minute"),
    count="orders",
    sums={"revenue": "total"},
)
# whoever changes their language takes what they have ordered along to the other region
view.sql(
    "revenue_by_region",
    """
    SELECT CASE get_json_object(c.preferences, '$.language')
             WHEN 'de' THEN 'Europe' WHEN 'ja' THEN 'Japan' WHEN 'pt-BR' THEN 'Brazil'
             ELSE 'elsewhere' END AS region,
           count(*) AS orders,
           sum(o.total) AS revenue
      FROM orders o
      JOIN customers c ON c.id = o.customer_id
     WHERE o.status <> 'cancelled'
     GROUP BY 1
    """,
    keys=["region"],
    to=["table"],
)
paid = view.sql(
    "paid_orders",
    """
    SELECT p.id, p.order_id, o.customer_id, p.amount, p.method, p.paid_at,
           (unix_micros(p.paid_at) - unix_micros(o.placed_at)) / 1000000D AS waited_s
      FROM payments p
      JOIN orders o ON o.id = p.order_id
    """,
    keys=["id"],
    to=["table"],
)
view.aggregate(
    "payment_delay",
    paid,
    to=["table"],
    where="waited_s < 86400",
    window=Tumbling("paid_at", "1 minute"),
    count="payments",
    percentiles={
        "p50": view.Percentile("waited_s", 0.5),
        "p95": view.Percentile("waited_s", 0.95),
    },
)
# searches without a click are there as well, or the rate would be that of those with one
looked = view.sql(
    "looked",
    """
    SELECT s.id, s.searched_at, CAST(min(c.clicked_at) IS NOT NULL AS INT) AS clicked
      FROM searches s
      LEFT JOIN clicks c ON c.search_id = s.id
       AND c.clicked_at BETWEEN s.searched_at AND s.searched_at + INTERVAL 1 HOUR
     GROUP BY s.id, s.searched_at
    """,
    keys=["id"],
    to=["table"],
)
view.aggregate(
    "click_through",
    looked,
    to=["table"],
    window=Tumbling("searched_at", "1 minute"),
    count="searches",
    sums={"clicked": "clicked"},
)
low_stock = view.sql(
    "low_stock",
    """
    SELECT p.sku, max(p.name) AS name, sum(i.on_hand) AS on_hand
      FROM products p
      JOIN inventory i ON i.sku = p.sku
     WHERE p.active
     GROUP BY p.sku
    HAVING sum(i.on_hand) < 300
    """,
    keys=["sku"],
    to=["table"],
)
suspects = view.pattern(
    "suspects",
    paid,
    to=["table"],
    by=["customer_id"],
    time="paid_at",
    pattern=Pattern(
        [
            Step("first", "true"),
            Step("second", "true", beside=["amount > first.amount"]),
            Step("third", "true", beside=["amount > second.amount"]),
        ],
        within="3 minutes",
    ),
    keep=["order_id", "amount"],
)


# whoever buys stock reads the one, whoever holds back deliveries the other
alert("stock_low", low_stock, to=[Topic("globalshop.stock_low")], quiet="1 minute")
alert(
    "suspected_fraud",
    suspects,
    to=[Topic("globalshop.suspected_fraud")],
    recent=Recent("match_end", "1 day"),
)


def whole_minutes(of: str, columns: str) -> str:
    """The last hour of windows, but for the newest: it is not over yet.

    What has not begun is not the newest: one order of a clock that is a year ahead would be, and
    the hour before it is empty.
    """
    newest = f"(SELECT max(window_start) FROM {of} WHERE window_start <= now())"  # noqa: S608  # names of this file
    whole = f"window_start < {newest} AND window_start > {newest} - INTERVAL '1 hour'"
    return f"SELECT window_start, {columns} FROM {of} WHERE {whole} ORDER BY window_start"  # noqa: S608


dashboard(
    "GlobalShop",
    [
        Line("Orders per minute", whole_minutes("orders_per_minute", "orders")),
        Line(
            "From order to payment",
            whole_minutes("payment_delay", "p95, p50"),
            unit="s",
            note="the payments of each minute, of orders placed within a day",
        ),
        Line(
            "Click-through rate",
            whole_minutes("click_through", "100.0 * clicked / searches AS clicked"),
            unit="%",
            note="searches with a click within an hour: a minute grows as clicks come",
        ),
        Number(
            "Orders of this minute",
            """
            SELECT orders FROM orders_per_minute
             WHERE window_start <= now() ORDER BY window_start DESC LIMIT 1
            """,
        ),
        Number(
            "Revenue of the last whole minute",
            """
            SELECT revenue, lead(revenue) OVER (ORDER BY window_start DESC) AS before
              FROM orders_per_minute
             WHERE window_start <= now() ORDER BY window_start DESC LIMIT 1 OFFSET 1
            """,
            unit="EUR",
        ),
        Bars(
            "Revenue by region",
            "SELECT region, revenue FROM revenue_by_region ORDER BY revenue DESC",
            unit="EUR",
        ),
        Rows(
            "Low stock",
            "SELECT name, sku, on_hand FROM low_stock ORDER BY on_hand, sku",
        ),
        Rows(
            "Suspected fraud",
            """
            SELECT s.match_end AS at, c.full_name AS customer, c.id
              FROM suspects s JOIN customers c ON c.id = s.customer_id
             ORDER BY s.match_end DESC, c.id
            """,
            note="three payments of a customer within three minutes, each larger than the last",
        ),
    ],
)
