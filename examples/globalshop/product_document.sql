-- A product with what every warehouse has of it.
SELECT p.sku,
       p.name,
       p.description,
       p.price,
       p.active,
       coalesce(s.on_hand, 0) AS on_hand,
       s.warehouses
  FROM products p
  LEFT JOIN (
    SELECT sku,
           sum(on_hand) AS on_hand,
           sort_array(collect_list(struct(warehouse, on_hand))) AS warehouses
      FROM inventory
     GROUP BY sku
  ) s ON s.sku = p.sku
