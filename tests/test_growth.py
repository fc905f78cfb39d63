"""How costs grow, counted in steps at two sizes: a wrong exponent fails here, whatever the machine.

The costs are those of `python -m bench growth`, declared once in `bench/growth`.
"""

from __future__ import annotations

import pytest

from bench.growth.cost import COSTS, Steps, counted, exponent


@pytest.mark.parametrize("name", COSTS)
def test_a_cost_grows_no_faster_than_it_may(name, tmp_path):
    cost = COSTS[name]
    small, large = (counted(cost, size, tmp_path / str(size)) for size in cost.steps_at)

    assert exponent(cost.steps_at, [small.work, large.work]) <= cost.exponent_max, (small, large)
    if small.hold:
        assert exponent(cost.steps_at, [small.hold, large.hold]) <= cost.hold_exponent_max, (small, large)


def test_steps_are_turns_of_loops_and_comprehensions_whatever_line_they_are_on():
    def square(count: int) -> int:
        return sum([left * right for left in range(count) for right in range(count)])

    with Steps() as small:
        square(10)
    with Steps() as large:
        square(80)

    assert 1.8 < exponent((10, 80), [small.count, large.count]) < 2.2
