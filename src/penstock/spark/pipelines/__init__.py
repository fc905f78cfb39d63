"""Pipelines that ship with Penstock, and what is needed to write others."""
