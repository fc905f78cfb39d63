"""Backtests: the handler in a process of its own, and the report."""
