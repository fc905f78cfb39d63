"""Does the state of a shard add up? Every counter against what it counts, every index against what it points at.

Promise 12 from the inside: a counter that drifts shows here long before a user sees a wrong number.
"""

from __future__ import annotations

from itertools import pairwise

from penstock.delivery.core import DeliveryState
from penstock.delivery.group import Group
from penstock.delivery.inspection import count_phases, group_stats
from penstock.delivery.log import Partition
from penstock.delivery.phases import LEASED, SETTLED, WAITING
from penstock.delivery.progress import Progress
from penstock.delivery.recovery import gaps
from penstock.shard.shard import Shard


def assert_accounts(shard: Shard) -> None:
    """Raise an AssertionError that names the first thing that does not add up."""
    shard.look(lambda now: _check(shard.core))


def _check(core: DeliveryState) -> None:
    for queue in core.queues.values():
        for partition in queue.partitions:
            _check_extents(partition)
        for group in queue.groups.values():
            _check_group(core, group)


def _check_extents(partition: Partition) -> None:
    where = f"{partition.queue.name}/{partition.name}"
    bounds = [(extent.first, extent.end) for extent in partition.extents]
    assert partition.firsts == [first for first, _ in bounds], f"{where}: {partition.firsts} beside {bounds}"
    assert all(a[1] <= b[0] for a, b in pairwise(bounds)), f"{where}: extents overlap: {bounds}"
    assert not gaps(partition), f"{where}: extents leave a gap: {bounds}, removed {list(partition.removed)}"
    if partition.start < partition.end:
        assert bounds, f"{where}: no extents for [{partition.start}, {partition.end})"
        assert bounds[-1][1] == partition.end, f"{where}: ends at {partition.end}: {bounds}"


def _check_group(core: DeliveryState, group: Group) -> None:
    where = f"{group.queue.name}, group {group.name}"
    for progress in group.progress:
        _check_progress(where, progress)
    counts = count_phases(group)
    stats = group_stats(group, core.wheel.reached)
    assert counts[SETTLED] == stats.acked + stats.dead + stats.dropped, f"{where}: {counts} beside {stats}"
    assert stats.messages == sum(counts.values()), f"{where}: {counts} beside {stats}"
    assert stats.ready >= 0, f"{where}: {stats}"
    assert group.backlog == sum(progress.unsettled() for progress in group.progress), f"{where}: {group.backlog}"
    _check_leases(core, group, where)


def _check_progress(where: str, progress: Progress) -> None:
    name = f"{where}, partition {progress.partition.name}"
    states = [*progress.states, *(progress.sparse or {}).values()]
    assert progress.leased == states.count(LEASED), f"{name}: leased {progress.leased}, states {states}"
    assert progress.waiting == states.count(WAITING), f"{name}: waiting {progress.waiting}, states {states}"
    assert progress.dead >= len(progress.dead_offsets or ()), f"{name}: {progress.dead} dead, {progress.dead_offsets}"
    waiting = {progress.base + index for index, state in enumerate(progress.states) if state == WAITING}
    waiting |= {offset for offset, state in (progress.sparse or {}).items() if state == WAITING}
    assert set(progress.dues or ()) == waiting, f"{name}: due {progress.dues}, waiting {waiting}"
    assert not progress.states or progress.states[0] != SETTLED, f"{name}: the low-water mark could be higher"
    assert all(offset < progress.base for offset in progress.sparse or ()), f"{name}: {progress.sparse}"


def _check_leases(core: DeliveryState, group: Group, where: str) -> None:
    held: list[tuple[int, int]] = []
    for lease in group.leases.values():
        assert core.leases.get(lease.nonce) is lease, f"{where}: lease {lease.nonce:x} is only half known"
        assert lease.count == sum(take.open for take in lease.takes), f"{where}: lease {lease.nonce:x} miscounts"
        for take, indexes in lease.open_takes():
            offsets = [take.offsets[index] for index in indexes]
            held += [(take.progress.partition.id, offset) for offset in offsets]
    leased = [
        (progress.partition.id, progress.base + index)
        for progress in group.progress
        for index, state in enumerate(progress.states)
        if state == LEASED
    ]
    leased += [(p.partition.id, o) for p in group.progress for o, s in (p.sparse or {}).items() if s == LEASED]
    assert sorted(held) == sorted(leased), f"{where}: leases hold {sorted(held)}, states say {sorted(leased)}"
