"""Forecasts: rates by hour of the week, queueing, and the report."""
