"""History of the counters."""
