"""The demo: runs the whole platform on real traffic, then compares every view with its source."""
