"""Definition: what a user declares. Imports no library that reaches outside."""
