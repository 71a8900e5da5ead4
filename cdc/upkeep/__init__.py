"""Upkeep: checks that a capture matches its declaration, delivers changes, and can continue."""
