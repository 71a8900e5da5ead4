"""What GlobalShop derives from its database: its tables, an order's history, and its events."""

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
order_items = view.mirror("order_items", shop.order_items, keys=["order_id", "line"])
payments = view.mirror("payments", shop.payments, keys=["id"])

order_events = view.events(
    "order_events",
    shop.events(OrderPlaced, OrderPaid, OrderShipped, OrderCancelled, OrderRefunded),
)
