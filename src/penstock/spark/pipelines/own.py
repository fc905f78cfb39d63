"""Pipelines of your own."""
