"""Integrations with other frameworks. Each module imports its framework; no other module imports these."""
