"""Token buckets: exact to the µs, and forgotten when they are full."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from penstock.delivery import rate_limits
from penstock.delivery.rate_limits import Buckets, Rate


def test_a_bucket_starts_full_and_fills_at_its_rate():
    found = Buckets(Rate.of(3, 2))
    assert found.available("a", 0) == 2
    found.take("a", 2, 0)

    assert found.wait("a", 1, 0) == 333_334
    assert found.available("a", 333_333) == 0
    assert found.available("a", 333_334) == 1
    assert found.available("a", 10_000_000) == 2
    assert found.available("b", 0) == 2


def test_full_buckets_are_forgotten():
    found = Buckets(Rate.of(1, 1))
    for number in range(10 * rate_limits.SWEEP_MIN):
        found.take(number, 1, number * 10_000)

    assert len(found) <= 2 * rate_limits.SWEEP_MIN
    assert found.available(10 * rate_limits.SWEEP_MIN - 1, 10 * rate_limits.SWEEP_MIN * 10_000) == 0


def test_when_there_are_too_many_the_fullest_are_forgotten(monkeypatch):
    monkeypatch.setattr("penstock.limits.buckets_max", 100)
    found = Buckets(Rate.of(0.001, 10))
    for number in range(3 * rate_limits.SWEEP_MIN):
        found.take(number, 1 + number % 2, 0)

    assert len(found) < rate_limits.SWEEP_MIN + 100
    assert all(found.available(number, 0) == 8 for number in list(found._levels)[:50])


def test_a_new_rate_keeps_what_is_there():
    found = Buckets(Rate.of(1, 10))
    found.take("a", 10, 0)
    found.set_rate(Rate.of(100, 5), 3_000_000)

    assert found.available("a", 3_000_000) == 3
    assert found.wait("a", 5, 3_000_000) == 20_000
    assert found.available("b", 3_000_000) == 5


STEPS = st.lists(st.tuples(st.integers(0, 3_000_000), st.integers(1, 6)), max_size=40)


@given(STEPS, st.integers(1, 50_000), st.integers(1, 5))
def test_a_bucket_agrees_with_exact_fractions(steps, thousandths, burst):
    found = Buckets(Rate.of(thousandths / 1000, burst))
    rate = Fraction(thousandths, 1000) / 1_000_000
    level, now = Fraction(burst), 0
    for passed, wanted in steps:
        now += passed
        level = min(Fraction(burst), level + passed * rate)
        assert found.available(0, now) == int(level)
        wait = found.wait(0, min(wanted, burst), now)
        assert (wait == 0) == (level >= min(wanted, burst))
        assert level + wait * rate >= min(wanted, burst)
        assert wait == 0 or level + (wait - 1) * rate < min(wanted, burst)
        if wanted <= level:
            found.take(0, wanted, now)
            level -= wanted
