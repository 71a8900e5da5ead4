"""Kept for scripts that run `python -m headwater.supply`: see `headwater.runtime.java`."""
