"""Replay: views made from the archive of their source, anew or as of an earlier time."""
