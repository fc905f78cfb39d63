"""What the audit log says about operations on many things."""

from __future__ import annotations

import pytest

from penstock import operations as ops
from penstock.delivery.entries import OperationSet
from penstock.errors import PenstockError
from tests.shard.test_audit import opened, records, run
from tests.support.forgetful import ForgetfulDisk


def test_the_record_of_a_stop_says_how_far_the_operation_was():
    session = opened(ForgetfulDisk(1))
    counts = {"matched": 40, "done": 7, "failed": 2}
    waiting = OperationSet("far", "cancel", b"{}", OperationSet.WAITING, 0, 0, matched=40, cancelled=7, failed=2)
    session.shard.change(lambda now: [waiting])

    run(session, ops.StopOperation("far"))
    run(session, ops.StopOperation("far"))  # once more changes nothing
    with pytest.raises(PenstockError):
        run(session, ops.StopOperation("none"))

    first, again, none = [record for record in records(session) if record.what == "stop_operation"]
    assert first.arguments == {"operation_id": "far", "action": "cancel", **counts}
    assert again.arguments == {"operation_id": "far"}
    assert (none.arguments, none.outcome) == ({"operation_id": "none"}, "operation_not_found")
    session.close()
