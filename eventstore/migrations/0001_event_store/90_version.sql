-- Any role may see which version it works with; the table of migrations says nothing else.
GRANT USAGE ON SCHEMA headwater_migrations TO PUBLIC;
