"""Kept for what imports it from here: `projections.publishing.published_versions`."""

from __future__ import annotations

from projections.publishing.published_versions import Published

__all__ = ["Published"]
