-- What is sold of each product, but for orders that were cancelled.
SELECT l.sku,
       max(p.name) AS name,
       sum(l.quantity) AS units,
       sum(l.quantity * l.unit_price) AS revenue
  FROM order_items l
  JOIN orders o ON o.id = l.order_id
  JOIN products p ON p.sku = l.sku
 WHERE o.status <> 'cancelled'
 GROUP BY l.sku
