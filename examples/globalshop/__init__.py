"""GlobalShop, the running example: a shop whose Postgres is the only system of record."""
