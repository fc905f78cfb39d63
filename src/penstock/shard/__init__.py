"""A shard: one journal, the delivery state in front of it, and everything that may be done to them behind one lock."""
