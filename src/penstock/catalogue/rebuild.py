"""Making the catalogue anew: from the sealed `tasks` table, then from the journal after it."""

from __future__ import annotations

from penstock.catalogue.follower import Follower
from penstock.catalogue.store import Store, set_meta
from penstock.shard import Shard


def rebuild(store: Store, shard: Shard) -> Follower:
    """Fill an empty database as far as the segments go. Returns the follower that goes on from there."""
    follower = Follower(store)
    position = shard.store.sealed_sequence if shard.store is not None else 0
    with shard.lock:
        for id, queue in shard.core.queues.items():
            follower.known.learn_queue(id, queue.name)
            follower.known.learn_partitions(id, 0, [partition.name for partition in queue.partitions])
    with store.writing() as connection:
        set_meta(connection, "position", position)
        set_meta(connection, "checksum", 0)
    follower.position = position
    return follower
