"""Search: what an index of a view is like, and how applications ask it."""
