"""The dashboard, in a real browser against a real broker."""
