"""A whole shard under a virtual clock, on a disk that lies, used by many clients; checked against what was promised."""
