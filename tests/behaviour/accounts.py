"""Conservation: whatever happened, every message of every group is accounted for (promise 12)."""

from __future__ import annotations

from penstock import operations as ops
from penstock.delivery.group import Group
from penstock.delivery.inspection import count_phases
from penstock.delivery.phases import FRESH, LEASED, READY, SETTLED, WAITING
from penstock.embedded.session import Session
from penstock.model import GroupStats
from tests.support.operations import run_operation


def check_accounts(session: Session) -> None:
    """Every queue's statistics add up, and agree with the states counted one by one."""
    for name in run_operation(session, ops.Queues())[0]:
        stats, _ = run_operation(session, ops.Stats(name))
        with session.shard.lock:
            for group in session.shard.core.by_name[name].groups.values():
                check_group(group, stats.groups[group.name])


def check_group(group: Group, stats: GroupStats) -> None:
    counted = count_phases(group)
    # A message that is not due yet is fresh to the core and waiting to the user.
    delayed = stats.waiting - counted[WAITING]

    assert min(stats.ready, stats.leased, stats.waiting, stats.acked, stats.dead, stats.dropped) >= 0, stats
    assert stats.leased == counted[LEASED], (stats, counted)
    assert delayed >= 0, (stats, counted)
    assert stats.ready == counted[FRESH] + counted[READY] - delayed, (stats, counted)
    assert stats.acked + stats.dead + stats.dropped == counted[SETTLED], (stats, counted)
    assert stats.messages == stats.ready + stats.leased + stats.waiting + stats.acked + stats.dead + stats.dropped
    assert group.backlog == stats.ready + stats.leased + stats.waiting, (group.backlog, stats)
