"""The source database: its catalog, its publication, its slot, what it must allow."""
