"""Failed tries: how many are allowed, who waits for whom, and how little is kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.access import tries
from penstock.access.tries import ADDRESS_BUDGET, NAME_BUDGET, PAIR_BUDGET, FailedTries
from penstock.clock import ManualClock
from penstock.errors import RateLimited

HOME, OFFICE, STRANGER = "192.0.2.1", "192.0.2.2", "203.0.113.9"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def limits(clock) -> FailedTries:
    return FailedTries(clock)


def fail(limits: FailedTries, times: int, address: str, name: str) -> None:
    for _ in range(times):
        limits.begin(address, name)


def sign_in(limits: FailedTries, address: str, name: str) -> None:
    limits.begin(address, name)
    limits.succeeded(address, name)


def wait_seconds(limits: FailedTries, address: str, name: str) -> float:
    """How long a refused try must wait."""
    with pytest.raises(RateLimited) as caught:
        limits.begin(address, name)
    return caught.value.retry_after_seconds


def test_after_five_failures_there_is_one_try_every_ten_seconds(limits, clock):
    fail(limits, PAIR_BUDGET, HOME, "ann")
    assert wait_seconds(limits, HOME, "ann") == 10

    clock.advance(seconds=9)
    assert wait_seconds(limits, HOME, "ann") == 1

    clock.advance(seconds=1)
    limits.begin(HOME, "ann")
    assert wait_seconds(limits, HOME, "ann") == 10


def test_a_refused_try_does_not_prolong_the_wait(limits, clock):
    fail(limits, PAIR_BUDGET, HOME, "ann")
    for _ in range(100):
        assert wait_seconds(limits, HOME, "ann") == 10


def test_who_waits_has_the_whole_budget_again(limits, clock):
    fail(limits, PAIR_BUDGET, HOME, "ann")
    clock.advance(seconds=10 * PAIR_BUDGET)

    fail(limits, PAIR_BUDGET, HOME, "ann")
    wait_seconds(limits, HOME, "ann")


def test_a_success_empties_the_bucket_of_the_name_at_this_address(limits):
    fail(limits, PAIR_BUDGET - 1, HOME, "ann")
    sign_in(limits, HOME, "ann")

    fail(limits, PAIR_BUDGET, HOME, "ann")


def test_failures_elsewhere_do_not_keep_a_user_out(limits):
    fail(limits, PAIR_BUDGET, STRANGER, "ann")
    wait_seconds(limits, STRANGER, "ann")

    limits.begin(HOME, "ann")


def test_many_names_from_one_address_share_a_budget(limits):
    for number in range(ADDRESS_BUDGET):
        limits.begin(STRANGER, f"user{number}")

    assert wait_seconds(limits, STRANGER, "ann") == 10


def test_an_account_of_ones_own_buys_no_guesses_at_those_of_others(limits):
    for number in range(ADDRESS_BUDGET - 1):
        limits.begin(STRANGER, f"user{number}")
    for _ in range(50):
        sign_in(limits, STRANGER, "mallory")

    limits.begin(STRANGER, "ann")
    wait_seconds(limits, STRANGER, "bob")


def test_many_addresses_share_a_budget_for_a_name_and_the_user_is_still_let_in(limits):
    sign_in(limits, HOME, "ann")
    for number in range(NAME_BUDGET):
        limits.begin(f"198.51.{number}.1", "ann")

    assert wait_seconds(limits, "198.51.200.1", "ann") == 10
    sign_in(limits, HOME, "ann")


def test_a_colleague_who_fails_keeps_nobody_out_who_signed_in_from_there_before(limits):
    sign_in(limits, OFFICE, "ann")
    for number in range(ADDRESS_BUDGET):
        limits.begin(OFFICE, f"user{number}")

    fail(limits, PAIR_BUDGET, OFFICE, "ann")
    assert wait_seconds(limits, OFFICE, "ann") == 10


def test_a_new_password_ends_the_trust_in_addresses(limits):
    sign_in(limits, HOME, "ann")
    for number in range(NAME_BUDGET):
        limits.begin(f"198.51.{number}.1", "ann")
    limits.forget_name("ann")

    wait_seconds(limits, HOME, "ann")


def test_wrong_keys_are_counted_by_address_and_keep_nobody_from_signing_in(limits, clock):
    for _ in range(ADDRESS_BUDGET):
        limits.wrong_key(OFFICE)
    with pytest.raises(RateLimited) as caught:
        limits.wrong_key(OFFICE)

    assert caught.value.retry_after_seconds == 10
    limits.wrong_key(HOME)
    limits.begin(OFFICE, "ann")


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("fe80::1%eth0", "fe80::2", True),
        ("unix:@abstract", "unix:@abstract", True),
    ],
)
def test_an_ipv6_network_counts_as_one_address(limits, first, second, is_same):
    fail(limits, PAIR_BUDGET, first, "ann")
    if is_same:
        wait_seconds(limits, second, "ann")
    else:
        limits.begin(second, "ann")


def test_memory_is_bounded_and_made_up_names_do_not_flush_a_real_one(limits, monkeypatch):
    monkeypatch.setattr(tries, "BUCKETS_MAX", 100)
    monkeypatch.setattr(tries, "KNOWN_MAX", 50)
    fail(limits, PAIR_BUDGET, STRANGER, "ann")
    for number in range(1000):
        sign_in(limits, f"198.51.{number % 256}.{number // 256}", f"real{number}")
        limits.begin(f"198.18.{number % 256}.{number // 256}", f"{number}" + "x" * 10_000)
        limits.wrong_key(f"198.19.{number % 256}.{number // 256}")

    sizes = [len(kind._levels) for kind in (limits._pairs, limits._addresses, limits._names, limits._wrong_keys)] + [
        len(limits._known)
    ]
    assert max(sizes) <= 100
    assert wait_seconds(limits, STRANGER, "ann") == 10


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=80))
def test_no_address_ever_gets_more_guesses_at_a_name_than_its_budget_and_one_per_ten_seconds(steps):
    clock = ManualClock()
    limits = FailedTries(clock)
    begun, taken = clock.monotonic(), 0
    for seconds, is_other in steps:
        clock.advance(seconds=seconds)
        if is_other:
            sign_in(limits, HOME, "ann")
        try:
            limits.begin(STRANGER, "ann")
        except RateLimited:
            continue
        taken += 1
        assert taken <= PAIR_BUDGET + (clock.monotonic() - begun) / tries.LEAK_US + 1e-6
