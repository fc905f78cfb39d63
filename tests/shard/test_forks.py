"""A fork inherits open handles: in the child every use is refused, and the parent goes on as if nothing had been."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

import penstock
from penstock import aio
from penstock.errors import Closed
from tests.support.broker_process import Served

PATIENCE_SECONDS: Final = 60
HOW: Final = "open it after the fork"
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("broker"), "--http-port", "0", "--grpc-port", "off") as served:
        yield served


def in_a_fork(work: Callable[[], object]) -> str:
    """What the child says of what it did, or of the exception that it met."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            reported = f"did it: {work()}"
        except BaseException as error:  # noqa: BLE001 - told to the parent
            reported = f"{type(error).__name__}: {error}"
        os.write(writing, reported.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        reported = pipe.read()
    os.waitpid(child, 0)
    return reported


def refused(reported: str) -> bool:
    return reported.startswith("Closed: ") and "forked" in reported and HOW in reported


def uses(ps: Any) -> list[Callable[[], object]]:
    """Some of everything that a blocking handle does."""
    queue = ps.queue("mail")

    def transact() -> None:
        with ps.transaction() as transaction:
            transaction.push("mail", b"child")

    return [
        lambda: queue.push(b"child"),
        lambda: queue.push_many([b"child", b"child"]),
        lambda: queue.lease(max=5),
        lambda: next(iter(queue.consume())),
        queue.stats,
        ps.queues,
        lambda: ps.create_queue("new"),
        transact,
    ]


def opened(kind: str, broker: Served, path: Path) -> Any:
    if kind == "directory":
        return penstock.open(path)
    return penstock.connect(broker.url(kind))


def drained(ps: Any) -> list[bytes]:
    found = []
    while leased := ps.queue("mail").lease(max=100):
        found += [delivery.payload for delivery in leased]
        leased.ack()
    return found


@pytest.mark.parametrize("kind", ["directory", "tcp", "http"])
@pytest.mark.parametrize("first", ["parent", "child"])
def test_every_use_of_an_inherited_handle_is_refused_and_the_parent_goes_on(kind, first, broker, tmp_path):
    with closing(opened(kind, broker, tmp_path / "data")) as ps:
        ps.create_queue("mail", exist_ok=True)
        drained(ps)
        ps.queue("mail").push(b"before")
        (delivery,) = ps.queue("mail").lease()
        for use in [*uses(ps), delivery.ack, lambda: delivery.extend(5)]:
            if first == "parent":
                ps.queue("mail").push(b"parent")
            reported = in_a_fork(use)
            assert refused(reported), reported
            ps.queue("mail").push(b"parent")
        assert in_a_fork(ps.close).startswith("did it")  # and nothing came of it
        ps.queue("mail").push(b"after")
        delivery.ack()
        assert set(drained(ps)) == {b"parent", b"after"}


@pytest.mark.parametrize("kind", ["directory", "tcp", "http"])
def test_the_asyncio_face_too(kind, broker, tmp_path):
    async def main() -> None:
        ps = aio.open(tmp_path / "data") if kind == "directory" else aio.connect(broker.url(kind))
        async with ps:
            queue = ps.queue("async")
            await queue.push(b"before")
            for use in (lambda: queue.push(b"child"), queue.lease, queue.stats, ps.queues):
                reported = in_a_fork(lambda use=use: run_by_hand(use()))  # type: ignore[misc]
                assert refused(reported), reported
                await queue.push(b"parent")
            assert in_a_fork(lambda: run_by_hand(ps.close())).startswith("did it")
            leased = await queue.lease(max=100)
            assert [delivery.payload for delivery in leased] == [b"before"] + [b"parent"] * 4
            await leased.ack()

    asyncio.run(main())


def run_by_hand(coroutine: Any) -> object:
    """In a fork the loop is not ours: what is refused at once never comes to wait for it."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits for the loop of the parent")


def push_in_a_child(ps: Any, answers: Any) -> None:
    try:
        answers.put(("did it", ps.queue("mail").push(b"child")))
    except Closed as error:
        answers.put(("refused", str(error)))


def test_a_fork_of_multiprocessing_is_refused_and_may_open_its_own(broker, tmp_path):
    context = multiprocessing.get_context("fork")
    with closing(penstock.open(tmp_path / "data")) as ps, closing(penstock.connect(broker.url("tcp"))) as remote:
        for each in (ps, remote):
            answers = context.SimpleQueue()
            child = context.Process(target=push_in_a_child, args=(each, answers))
            child.start()
            what, reported = answers.get()
            child.join(PATIENCE_SECONDS)
            assert (what, HOW in reported, child.exitcode) == ("refused", True, 0)
            each.queue("mail").push(b"parent")
        remote.queue("own").push(b"x")
    url = broker.url("tcp")
    assert in_a_fork(lambda: penstock.connect(url).queue("own").push(b"y")).startswith("did it")


def test_an_app_on_a_directory_or_in_memory_is_refused_and_one_on_a_broker_opens_its_own(broker, tmp_path):
    for url, is_refused in ((tmp_path / "data", True), (None, True), (broker.url("tcp"), False)):
        app = penstock.App(url)

        @app.task(name="double")
        def double(number: int) -> int:
            return 2 * number

        double.enqueue(1)
        reported = in_a_fork(lambda task=double: task.enqueue(2).id)  # type: ignore[misc]
        assert refused(reported) is is_refused, reported
        assert reported.startswith("did it") is not is_refused, reported
        double.enqueue(3)
        app.close()


LEFT_OPEN: Final = """
import os, sys, penstock
ps = penstock.open(sys.argv[1]) if "://" not in sys.argv[1] else penstock.connect(sys.argv[1])
queue = ps.queue(sys.argv[2])
queue.push(b"before")
child = os.fork()
if not child:
    sys.exit(0)  # with everything that an interpreter does at its end, and nothing closed
assert os.waitpid(child, 0)[1] == 0
for _ in range(3):
    queue.push(b"parent")
print(queue.stats().groups["default"].ready, flush=True)
"""


@pytest.mark.parametrize("kind", ["directory", "tcp", "http"])
def test_a_child_that_ends_without_closing_disturbs_nobody(kind, broker, tmp_path):
    place = str(tmp_path / "data") if kind == "directory" else broker.url(kind)
    words = [sys.executable, "-W", "error", "-c", LEFT_OPEN, place, f"left-{kind}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "4"), done.stderr
    with closing(penstock.open(place) if kind == "directory" else penstock.connect(place)) as ps:
        assert ps.queue(f"left-{kind}").stats().groups["default"].ready == 4


def test_a_fork_keeps_no_descriptor_of_what_its_parent_has_open(broker, tmp_path):
    before = open_places().split()  # what other tests have left in this process
    with closing(penstock.open(tmp_path / "data")) as ps, closing(penstock.connect(broker.url("tcp"))) as remote:
        ps.queue("mail").push(b"x")
        remote.queue("mail").push(b"x")
        reported = in_a_fork(open_places)
    names = reported.removeprefix("did it: ").split()
    assert not any(str(tmp_path) in name for name in names)
    assert [name for name in names if name.startswith("socket") and name not in before] == []


def open_places() -> str:
    found = []
    for each in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{each}"))
        except OSError:  # the listing itself
            continue
    return " ".join(found)
