"""The streaming job; the only place that knows Spark."""

from __future__ import annotations
