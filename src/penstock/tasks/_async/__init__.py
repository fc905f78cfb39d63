"""Calls on tasks, for event loops."""
