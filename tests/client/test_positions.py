"""Where a group begins is checked alike by whatever makes it: a lease, a subscription, an operation of the broker."""

from __future__ import annotations

import pytest

from penstock import operations as ops
from penstock.client.member import MemberState
from penstock.errors import InvalidField
from penstock.validation import lease_request

WRONG = [-1, True, 1.5, 2**63, 2**64, {}, {"0": -1}, {"0": 2**64}, {"0": "1"}, [], "soon"]


def joined(start):
    return MemberState("mail", "team", None, start, 1, None, 10.0).start


def leased(start):
    return lease_request(1, None, None, None, False, start=start).start


@pytest.mark.parametrize("start", WRONG, ids=str)
@pytest.mark.parametrize("way", [joined, leased, lambda start: ops.Join("mail", "team", "one", 10.0, start)])
def test_a_start_that_is_no_position_is_refused(way, start):
    with pytest.raises(InvalidField, match="start: "):
        way(start)


@pytest.mark.parametrize("way", [joined, leased])
def test_partitions_of_a_start_travel_by_their_names(way):
    assert way({0: 7, "1": 8}) == {"0": 7, "1": 8}


def test_how_long_a_member_may_be_silent_is_checked_before_it_is_asked_for():
    with pytest.raises(InvalidField, match="session_seconds"):
        ops.Join("mail", "team", "one", float("nan"))
