"""The demo: the whole path on real input, ending in a comparison that can fail."""
