"""What all tests share.

No test may fail because the machine is busy, so Hypothesis has no deadline here. The ordinary dose draws the same
examples every time; `PENSTOCK_DOSE=nightly` draws new ones.

And none may hang the run. A test that takes too long fails (`timeout` in pyproject.toml). Should it, or what cleans up
after it, hang even so, or a thread outlive the last test, the process prints every thread's stack and ends.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("ordinary", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("nightly", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("nightly" if os.environ.get("PENSTOCK_DOSE") == "nightly" else "ordinary")

GRACE_SECONDS = 120  # for cleaning up after a test that took too long
EXIT_SECONDS = 60  # for what is still running after the last test
STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STDERR] = os.dup(2)  # what is printed there later belongs to the test that runs


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    seconds = float(item.config.getoption("timeout") or item.config.getini("timeout"))
    faulthandler.dump_traceback_later(seconds + GRACE_SECONDS, exit=True, file=item.config.stash[STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_unconfigure(config: pytest.Config) -> None:
    faulthandler.dump_traceback_later(EXIT_SECONDS, exit=True, file=config.stash[STDERR])
