-- What whoever talks to a customer wants to see at once.
SELECT c.id,
       c.full_name,
       c.nickname,
       c.newsletter,
       coalesce(o.orders, 0) AS orders,
       coalesce(o.spent, 0) AS spent,
       o.last_order_at
  FROM customers c
  LEFT JOIN (
    SELECT customer_id,
           count(*) AS orders,
           sum(total) AS spent,
           max(placed_at) AS last_order_at
      FROM orders
     WHERE status <> 'cancelled'
     GROUP BY customer_id
  ) o ON o.customer_id = c.id
