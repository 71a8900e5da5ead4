"""Verification: every view in every store, proved equal to its source while writes go on."""
