"""The ways themselves: each does what its name says, or the suite would show less than it seems to."""

from __future__ import annotations

import pytest

from penstock import Message


@pytest.mark.parametrize("way", ["sealed"], indirect=True)
def test_the_sealed_way_has_nothing_in_memory(ps, way):
    queue = ps.create_queue("mail", max_attempts=1)
    queue.push(b"a")
    queue.push(b"b", key="k")
    queue.push_many([b"c", Message(payload=b"d", priority=1)])
    with ps.transaction() as tx:
        tx.push("other", b"e")
    queue.lease(1).nack()
    queue.lease(1)[0].reject()

    extents = [
        extent
        for queue in way.session.shard.core.queues.values()
        for partition in queue.partitions
        for extent in partition.extents
    ]
    assert len(extents) == 6
    assert all(extent.sealed is not None and extent.batch is None for extent in extents)
