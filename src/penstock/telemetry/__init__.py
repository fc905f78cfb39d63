"""What a running broker reports about itself: metrics and logs.

Counting is cheap and happens where the work is done (`Meter`); everything else is read from the state when somebody
asks (`Metrics`), in a thread of its own and without the shard's lock. Every metric is one line of `names.FAMILIES`.
"""
