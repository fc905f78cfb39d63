"""Faults are caught: a sample of them here, all of them nightly and by `make mutants`."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.mutants.faults import FAULTS, SAMPLE
from tests.mutants.run import PACKAGE, ROOT, caught_by, run
from tests.support.dose import NIGHTLY

CHOSEN = FAULTS if NIGHTLY else [fault for fault in FAULTS if fault.name in SAMPLE]


def test_every_fault_fits_the_code_as_it_is():
    wrong = [
        fault.name
        for fault in FAULTS
        if (PACKAGE / fault.path).read_text(encoding="utf-8").count(fault.old) != 1 or fault.old == fault.new
    ]

    assert not wrong, f"the lines of these faults have changed, or are there more than once: {wrong}"
    assert [name for name, count in Counter(fault.name for fault in FAULTS).items() if count > 1] == []
    assert all((ROOT / test.partition("::")[0]).exists() for fault in FAULTS for test in fault.tests)
    assert len(FAULTS) >= 30
    assert len(CHOSEN) >= 5


def test_tests_that_did_not_run_have_caught_nothing():
    assert caught_by(FAULTS[0], 0, "FAILED a.py::test_a") == ""
    assert caught_by(FAULTS[0], 1, "FAILED a.py::test_a - it is so\nFAILED b.py::test_b") == "a.py::test_a"
    assert caught_by(FAULTS[0], 1, "++++ Timeout ++++").endswith("(hangs)")
    assert caught_by(FAULTS[0], -11, "Fatal Python error").endswith("(crashes)")
    for code in (2, 3, 4, 5):
        with pytest.raises(AssertionError, match="did not run"):
            caught_by(FAULTS[0], code, "ERROR tests/a.py")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", CHOSEN, ids=lambda fault: fault.name)
def test_a_fault_is_caught(fault):
    outcome = run(fault)

    assert outcome.caught_by, f"{fault.what}: no test fails\n{outcome.output[-2000:]}"
