"""What GlobalShop derives from its database: mirrors, histories, documents, sums, events."""

from examples.globalshop.orders import (
    OrderCancelled,
    OrderPaid,
    OrderPlaced,
    OrderRefunded,
    OrderShipped,
)
from headwater import CacheOptions, SearchOptions, Text, source, view

shop = source(
    "shop",
    tables=[
        "public.customers",
        "public.products",
        "public.inventory",
        "public.orders",
        "public.order_items",
        "public.payments",
    ],
    eventstore=True,
)

customers = view.mirror("customers", shop.customers, keys=["id"])
products = view.mirror(
    "products",
    shop.products,
    keys=["sku"],
    search=SearchOptions(
        fields={
            "name": Text(analyzer="english", suggest=True),
            "description": Text(analyzer="english", exact=False),
        }
    ),
)
inventory = view.mirror("inventory", shop.inventory, keys=["warehouse", "sku"])
orders = view.mirror(
    "orders",
    shop.orders,
    keys=["id"],
    cache=CacheOptions(
        lookups=["customer:{customer_id}:orders"],
        counters={"orders:{status}": "*"},
        leaderboards={"largest": "total"},
    ),
)
orders_history = view.mirror("orders_history", shop.orders, keys=["id"], scd=2)
products_history = view.mirror(
    "products_history",
    shop.products,
    keys=["sku"],
    scd=2,
    except_column_list=["description"],
    track_history_column_list=["name", "price", "active"],
)
order_items = view.mirror("order_items", shop.order_items, keys=["order_id", "line"])
payments = view.mirror("payments", shop.payments, keys=["id"])

order_events = view.events(
    "order_events",
    shop.events(OrderPlaced, OrderPaid, OrderShipped, OrderCancelled, OrderRefunded),
)

order_document = view.document(
    "order_document",
    "order_document.sql",
    keys=["id"],
    search=SearchOptions(fields={"note": Text(analyzer="english")}),
)
product_document = view.document("product_document", "product_document.sql", keys=["sku"])
sales_by_status = view.aggregate(
    "sales_by_status",
    orders,
    by=["status"],
    count="orders",
    sums={"total": "total"},
    distinct={"customers": "customer_id"},
    top={"largest": view.Top("total", 3, ("id",))},
)
payments_by_method = view.aggregate(
    "payments_by_method",
    payments,
    by=["method"],
    where="NOT refunded",
    count="payments",
    sums={"amount": "amount"},
)
stock_by_warehouse = view.aggregate(
    "stock_by_warehouse",
    inventory,
    by=["warehouse"],
    count="products",
    sums={"on_hand": "on_hand"},
)
best_sellers = view.sql(
    "best_sellers",
    "best_sellers.sql",
    keys=["sku"],
    cache=CacheOptions(leaderboards={"units": "units"}),
)
customer_card = view.sql("customer_card", "customer_card.sql", keys=["id"])
