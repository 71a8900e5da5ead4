-- An order as a shop shows it: with its customer, and its items with the names of their products.
-- CONSTRAINT has_items EXPECT (items IS NOT NULL)
SELECT o.id,
       o.status,
       o.total,
       o.note,
       o.placed_at,
       o.shipped_on,
       named_struct('id', c.id, 'name', c.full_name, 'nickname', c.nickname) AS customer,
       i.items
  FROM orders o
  LEFT JOIN customers c ON c.id = o.customer_id
  LEFT JOIN (
    SELECT l.order_id,
           sort_array(
             collect_list(struct(l.line, l.sku, p.name, l.quantity, l.unit_price, l.gift))
           ) AS items
      FROM order_items l
      LEFT JOIN products p ON p.sku = l.sku
     GROUP BY l.order_id
  ) i ON i.order_id = o.id
