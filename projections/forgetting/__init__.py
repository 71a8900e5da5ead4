"""Forgetting: what was known of a key goes from every place that has it, for good."""
