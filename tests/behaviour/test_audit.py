"""The audit log, by every way in."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidField, InvalidName, NotAuthorised, QueueNotFound
from penstock.model import AUDIT_QUEUE
from penstock.model_audit import GENESIS


@pytest.fixture
def audited(way):
    """A system whose session writes the audit log."""
    ps = way.start()
    way.session.audit.is_on = True
    return ps


def test_changes_are_recorded_and_the_chain_is_whole(audited):
    audited.create_queue("orders")
    audited.queue("orders").pause()
    with pytest.raises(QueueNotFound):
        audited.queue("nowhere").purge()

    found = [(record.what, record.queue, record.outcome) for record in audited.audit.list()]
    changes = [line for line in found if line[0] not in ("seal", "list_audit")]
    assert changes == [
        ("purge", "nowhere", "queue_not_found"),
        ("pause", "orders", "ok"),
        ("create_queue", "orders", "ok"),
    ]
    assert [record.what for record in audited.audit.list(outcome="failed")] == ["purge"]
    checked = audited.audit.verify()
    assert checked.is_whole
    assert checked.first is not None
    assert checked.first.previous == GENESIS
    assert checked.count >= 3


def test_the_log_is_read_like_any_queue_and_changed_by_nobody(audited):
    audited.create_queue("orders")
    log = audited.queue(AUDIT_QUEUE)
    assert log.read(0, 0)[0].json()["what"] == "create_queue"
    for forbidden in (log.purge, log.pause, lambda: log.push(b"forged"), lambda: audited.delete_queue(AUDIT_QUEUE)):
        with pytest.raises(NotAuthorised):
            forbidden()
    with pytest.raises(NotAuthorised), audited.transaction() as tx:
        tx.push(AUDIT_QUEUE, b"forged")
    assert audited.audit.verify().is_whole


def test_reserved_names_are_refused(ps):
    with pytest.raises(InvalidName, match="reserved"):
        ps.create_queue("penstock.mine")
    with pytest.raises(InvalidName, match="reserved"):
        ps.queue("penstock.mine").push(b"a")


def test_a_limit_that_makes_no_sense_is_refused(ps):
    assert ps.audit.list() == []
    with pytest.raises(InvalidField):
        ps.audit.list(limit=0)
