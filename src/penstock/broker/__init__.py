"""Requests from any protocol: may they? then limits, the shard, and the answer once it is durable."""
