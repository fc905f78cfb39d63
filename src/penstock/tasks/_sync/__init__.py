"""Calls on tasks, for threads: generated from `_async`."""
