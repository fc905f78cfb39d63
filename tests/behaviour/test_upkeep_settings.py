"""Backoffs by name, and a sync on request, over every way in."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidField
from penstock.model import BACKOFFS


@pytest.mark.parametrize("name", BACKOFFS)
def test_a_backoff_by_name_sets_the_numbers_of_that_system(ps, name):
    ps.create_queue("mail", backoff=name)
    options = ps.queue("mail").options()

    assert {option: getattr(options, option) for option in BACKOFFS[name]} == BACKOFFS[name]


def test_a_number_beside_the_name_counts_more_and_an_update_takes_names_too(ps):
    ps.create_queue("mail", backoff="taskqueue", backoff_max_seconds=10.0)
    assert ps.queue("mail").options().backoff_max_seconds == 10.0

    ps.update_queue("mail", backoff="rivetq")
    assert ps.queue("mail").options().backoff_base_seconds == 0.1


def test_a_backoff_that_nobody_knows_is_refused_and_changes_nothing(ps):
    for name in ("celery", 5, None):
        with pytest.raises(InvalidField, match="backoff"):
            ps.create_queue("mail", backoff=name)
    assert ps.queues() == []


def test_a_retry_waits_as_the_other_system_would(ps, clock):
    queue = ps.create_queue("mail", backoff="goqueue")
    queue.push(b"x")
    for seconds in (1, 2, 4):
        queue.lease(1)[0].nack()
        clock.advance(seconds - 0.01)
        assert not queue.lease(1)
        clock.advance(0.02)
    assert queue.lease(1)


def test_a_sync_answers_with_the_last_durable_sequence(ps):
    before = ps.sync()
    ps.queue("mail").push(b"x")

    assert ps.sync() > before
