"""Nodes of Penstock on a store in PostgreSQL, with faults of every kind."""
