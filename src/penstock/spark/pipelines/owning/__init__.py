"""Pipelines of your own, in batches and as a stream."""
