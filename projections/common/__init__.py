"""Common: technical helpers that know no view."""
