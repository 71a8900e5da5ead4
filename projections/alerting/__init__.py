"""Alerting: looks at views at each boundary, notes who is to be told what, and tells them."""
