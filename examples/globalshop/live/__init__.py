"""GlobalShop with a live page."""
