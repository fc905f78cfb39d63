"""Seeds of the simulation. A failure prints its seed; a seed that failed once stays in `REGRESSIONS`.

CI runs as many seeds as fit into half a minute, always the same ones; `PENSTOCK_DOSE=nightly` runs 300.
"""

from __future__ import annotations

import pytest

from tests.simulation.run import broken_promises, simulate, small_limits
from tests.support.dose import dose

SEEDS = range(1000, 1000 + dose(14, 300))

# 4, 6: a failed sync, a reopening that trusted what was in memory only, then a power cut.
REGRESSIONS = [4, 6]


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    small_limits(monkeypatch)


@pytest.mark.parametrize("seed", [*REGRESSIONS, *SEEDS])
def test_every_promise_is_kept_whatever_happens_to_the_disk_and_the_process(seed):
    broken = broken_promises(simulate(seed))

    assert not broken, f"seed {seed}:\n" + "\n".join(broken)


def test_a_seed_tells_the_same_story_twice():
    first, second = simulate(5, steps=120), simulate(5, steps=120)

    assert [str(row) for row in first.rows] == [str(row) for row in second.rows]
