"""The project that captures what pgbench makes."""
