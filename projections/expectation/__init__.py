"""Expectations: what rows of a view should be like, and what becomes of those that are not."""
