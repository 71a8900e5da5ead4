"""Upkeep: whether a capture is what it was declared to be, does what it says, and lasts."""
