"""What all tests share.

No test may fail because the machine is busy, so Hypothesis has no deadline here. The ordinary dose draws the same
examples every time; `PENSTOCK_DOSE=nightly` draws new ones.

Nor because its disk is slow or nearly full: directories of tests are in memory where there is plenty of it. What the
operating system does with a real disk is for tests that ask for `on_disk`, and for the nightly dose.

And none may hang the run. A test that takes too long fails (`timeout` in pyproject.toml). Should it, or what cleans up
after it, hang even so, or a thread outlive the last test, the process prints every thread's stack and ends.

`make test` distributes the tests over several worker processes: see `Distribution`.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import tempfile
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import thread as executors
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from penstock.storage import disk
from tests.support.dose import NIGHTLY
from tests.support.postgres import PostgresServer

SPARK = PurePosixPath("tests/spark")
OWN_SPARK = ("test_cluster.py", "test_sink_kills.py", "test_spark_pages.py")
TOGETHER = ("test_tidy.py",)  # they share what takes longer than they do
# Begun early, or at the end all would wait for one of them.
LONG = (*OWN_SPARK, "test_kill9_broker.py", "test_soak.py", "test_patroni.py", "test_faults.py", "test_ha_demo.py")


class Distribution(LoadScopeScheduling):  # type: ignore[misc] # it publishes no types
    """How tests are distributed over worker processes (`pytest --numprocesses`): tests of one scope stay together.

    Those with a Spark share it, so they go together to one worker, and first, because that takes longest. Those that
    start Spark in processes of their own go one after the other to another worker: more of them at once would only be
    in each other's way. Any other test goes by itself to whoever is free.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = PurePosixPath(nodeid.partition("::")[0])
        if path.name in OWN_SPARK:
            return "own Spark"
        if path.name in TOGETHER:
            return path.name
        return "Spark" if SPARK in path.parents else nodeid


# Brokers of tests announce themselves there, and not to the programs of whoever runs the tests. Nor do tests see
# entries that earlier brokers left.
RUNTIME = tempfile.TemporaryDirectory(prefix="penstock-runtime-")
os.environ["XDG_RUNTIME_DIR"] = os.environ["XDG_STATE_HOME"] = RUNTIME.name

settings.register_profile("ordinary", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("nightly", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("nightly" if NIGHTLY else "ordinary")

IN_MEMORY = "/dev/shm"
IN_MEMORY_BYTES_MIN = 8 << 30  # a broker's data directory takes 128 MiB, and few tests have more than one at a time
GRACE_SECONDS = 120  # for cleaning up after a test that took too long
EXIT_SECONDS = 60  # for what is still running after the last test
WORKERS_MAX = 8  # each collects all tests first, and the one that has Spark is the last to end
ALLOCATE = disk._allocate
STDERR = pytest.StashKey[int]()
LOST = pytest.StashKey[bool]()


def has_plenty_of_memory() -> bool:
    with suppress(OSError):
        files = os.statvfs(IN_MEMORY)
        free = min(files.f_bavail * files.f_frsize, os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGESIZE"))
        return os.access(IN_MEMORY, os.W_OK) and free >= IN_MEMORY_BYTES_MIN
    return False


if not NIGHTLY and has_plenty_of_memory():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", IN_MEMORY)
    # There a file has its size without the zeros: to write them would be most of the work of opening a directory.
    pytest.MonkeyPatch().setattr(disk, "_allocate", None)


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """A command that sets up logging in this process writes to streams that are closed after its test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in root.handlers[:]:
        if type(handler) is logging.StreamHandler and handler not in handlers:
            root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(disk, "_allocate", ALLOCATE)
    with tempfile.TemporaryDirectory(prefix="penstock-test-") as path:
        yield Path(path)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL for all tests of this process; each takes a database of its own."""
    server = PostgresServer()
    yield server
    server.close()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STDERR] = os.dup(2)  # what is printed there later belongs to the test that runs


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are processors: tests wait a lot, for threads and for processes that they start."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores + 1, WORKERS_MAX)


def is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    from tests.conftest import Distribution

    return Distribution(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if is_worker(config):
        from tests.conftest import LONG

        items.sort(key=lambda item: item.path.name not in LONG)


def pytest_collection_finish() -> None:
    """The tests themselves are no garbage: whoever looks for it need not look through them every time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    mark = item.get_closest_marker("timeout")
    seconds = float(mark.args[0] if mark else item.config.getoption("timeout") or item.config.getini("timeout"))
    faulthandler.dump_traceback_later(seconds + GRACE_SECONDS, exit=True, file=item.config.stash[STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A worker is gone. Its own test failed with it; where it had none to run any more, the run fails all the same."""
    if error is not None:
        node.config.stash[LOST] = True


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker that cannot end is killed without a word; so it does here, where it can tell, what its end would do."""
    if is_worker(session.config):
        limit_exit(session.config)
        executors._python_exit()
        for thread in threading.enumerate():
            if not thread.daemon and thread is not threading.main_thread():
                thread.join()
        faulthandler.cancel_dump_traceback_later()
    elif session.config.stash.get(LOST, False):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config: pytest.Config) -> None:
    if not is_worker(config):  # which now waits for the others
        limit_exit(config)


def limit_exit(config: pytest.Config) -> None:
    faulthandler.dump_traceback_later(EXIT_SECONDS, exit=True, file=config.stash[STDERR])
