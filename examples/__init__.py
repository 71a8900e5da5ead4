"""Projects that run as they are, and serve as templates."""
