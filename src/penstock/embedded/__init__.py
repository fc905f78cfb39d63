"""The whole system in this process: sessions on a shard of their own, with no server in between."""
