"""Offsets: how far the partitions of topics were read."""

from __future__ import annotations

Offsets = dict[tuple[str, int], int]
"""Next offset by topic and partition."""
