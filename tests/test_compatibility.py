"""Versions meet: a client and a worker of an earlier version with today's broker, and the reverse, over TCP and HTTP.

`tests/support/earlier.py` says which version that is. Both sides run the same script, in processes of their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock
from penstock.errors import BadRequest
from tests.support import earlier

# What a client does all day; `sys.argv[1]` is the URL. Everything in it is in the earlier version too.
CLIENT = """
import sys, penstock
from penstock.errors import GroupNotFound, InvalidField, LeaseLost, QueueNotFound

with penstock.connect(sys.argv[1]) as ps:
    ps.create_queue("orders", partitions=2, max_attempts=2, lease_seconds=77)
    orders = ps.queue("orders")
    orders.push({"n": 1}, key="ann", headers={"a": "b"}, dedup_key="one")
    orders.push({"n": 1}, key="ann", dedup_key="one")
    orders.push_many([b"bytes", "text", {"n": 2}])
    leased = orders.lease(max=10)
    assert sorted(len(delivery.payload) for delivery in leased) == [4, 5, 7, 7], [d.payload for d in leased]
    first, *rest = leased
    first.nack(delay=0, error="again")
    for delivery in rest:
        delivery.ack()
    (again,) = orders.lease(max=10, wait=5)
    assert again.attempt == 2
    again.nack(error="for good")
    assert len(orders.dlq.list()) == 1
    assert orders.dlq.redrive() == 1
    with ps.transaction() as transaction:
        transaction.push("copies", {"n": 3})
    assert [message.payload for message in ps.queue("copies").peek(5)] == [b'{"n":3}']
    orders.create_group("audit")
    seen = 0
    for delivery in orders.subscribe(group="audit", member="m"):
        delivery.ack()
        seen += 1
        if seen == 4:
            break
    for delivery in orders.consume():
        delivery.ack()
        break
    stats = orders.stats()
    assert (stats.messages, stats.groups["default"].ready) == (4, 0), stats
    assert len(orders.read(limit=10)) + len(orders.read(limit=10, partition=1)) == 4
    for error, call in (
        (QueueNotFound, lambda: ps.queue("nowhere").lease()),
        (GroupNotFound, lambda: orders.lease(group="nobody")),
        (InvalidField, lambda: ps.create_queue("bad", ordering="fifo")),
        (LeaseLost, lambda: again.ack()),
    ):
        try:
            call()
        except error as raised:
            assert raised.message and raised.code == error.code
        else:
            raise AssertionError(error)
    assert set(ps.queues()) >= {"orders", "copies"}
print("fine")
"""
TASKS = """
import penstock

app = penstock.App()

@app.task(queue="work", max_attempts=2, timeout=30)
def add(left: int, right: int) -> int:
    return left + right

@app.task(queue="work")
async def total(numbers: list) -> int:
    return sum(numbers)
"""
ENQUEUE = """
import sys, penstock
from shop_of_versions import add, app, total

app.move(sys.argv[1])
with app:
    one, two = add.enqueue(1, 2), add.enqueue(3, 4)
    both = penstock.chord([add.s(1, 1), add.s(2, 2)], total.s()).enqueue() if hasattr(penstock, "chord") else None
    assert (one.result(timeout=60), two.result(timeout=60)) == (3, 7)
    assert both is None or both.result(timeout=60) == 6
print("fine")
"""


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return earlier.unpacked(tmp_path_factory.mktemp("earlier"))


@contextmanager
def served(sources: Path | None, folder: Path) -> Iterator[dict[str, str]]:
    """The addresses of a broker of that version, by protocol."""
    words = [sys.executable, "-m", "penstock", "serve", "--json", "--data", "data", "--auth", "off"]
    words += ["--tcp-port", "0", "--http-port", "0", "--grpc-port", "off"]
    environment = earlier.environment(sources)
    with (
        (folder / "log").open("a") as log,
        subprocess.Popen(words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log, text=True) as broker,
    ):
        try:
            assert broker.stdout is not None
            ready = broker.stdout.readline()
            assert ready.startswith("{"), (folder / "log").read_text()
            yield {name: place["url"] for name, place in json.loads(ready)["addresses"].items()}
        finally:
            broker.terminate()
            assert broker.wait(60) == 0


def run(script: str, url: str, sources: Path | None, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script, url],
        cwd=folder, env=earlier.environment(sources), capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.stdout.endswith("fine\n"), done.stderr


def test_the_earlier_version_is_another_one_and_small(old):
    words = [sys.executable, "-c", "import penstock; print(penstock.__file__)"]
    where = subprocess.run(words, env=earlier.environment(old), capture_output=True, text=True, check=True).stdout

    assert Path(where.strip()).is_relative_to(old)
    assert not (old / "penstock" / "refusals.py").exists()
    assert earlier.PACKED.stat().st_size < earlier.SIZE_MAX
    assert len(json.loads((old / "commit.json").read_text())["commit"]) == 40


@pytest.mark.parametrize("protocol", ["tcp", "http"])
@pytest.mark.parametrize(("client", "broker"), [("old", "new"), ("new", "old"), ("new", "new")])
def test_clients_and_brokers_of_different_versions_work_together(client, broker, protocol, old, tmp_path):
    versions = {"old": old, "new": None}
    with served(versions[broker], tmp_path) as urls:
        run(CLIENT, urls[protocol], versions[client], tmp_path)


@pytest.mark.parametrize(
    ("producer", "worker", "broker"),
    [("old", "new", "new"), ("new", "old", "new"), ("old", "old", "new"), ("new", "old", "old")],
)
def test_tasks_of_one_version_are_run_by_another(producer, worker, broker, old, tmp_path):
    versions = {"old": old, "new": None}
    (tmp_path / "shop_of_versions.py").write_text(TASKS)
    with served(versions[broker], tmp_path) as urls:
        words = [sys.executable, "-m", "penstock", "worker", "shop_of_versions:app", "--url", urls["tcp"]]
        with (tmp_path / "worker.log").open("w") as log:
            process = subprocess.Popen(words, cwd=tmp_path, env=earlier.environment(versions[worker]), stderr=log)
        try:
            run(ENQUEUE, urls["tcp"], versions[producer], tmp_path)
        finally:
            process.terminate()
            assert process.wait(90) == 0


@pytest.mark.parametrize("protocol", ["tcp", "http"])
@pytest.mark.parametrize("queues", ["work", "work,more"])
def test_a_worker_of_today_stops_at_a_broker_that_is_too_old_for_it(queues, protocol, old, tmp_path):
    (tmp_path / "shop_of_versions.py").write_text(TASKS)
    with served(old, tmp_path) as urls:
        words = ["worker", "shop_of_versions:app", "--url", urls[protocol], "--queues", queues]
        done = subprocess.run(
            [sys.executable, "-m", "penstock", *words],
            cwd=tmp_path, env=earlier.environment(None), capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    assert done.returncode == 1, done.stderr
    assert "is older than this client" in done.stderr
    assert "does not know LEASE_QUEUES requests" in done.stderr
    assert "upgrade the broker first" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("protocol", ["tcp", "http"])
def test_a_request_that_an_older_broker_does_not_know_fails_at_once_and_others_work(protocol, old, tmp_path):
    with served(old, tmp_path) as urls, penstock.connect(urls[protocol]) as ps:
        ps.create_queue("orders")
        with pytest.raises(BadRequest, match="does not know LEASE_QUEUES requests"):
            ps.lease(["orders", "more"])
        ps.queue("orders").push(b"hello")
        assert [delivery.payload for delivery in ps.queue("orders").lease()] == [b"hello"]


def test_a_directory_of_the_earlier_version_opens_today(old, tmp_path):
    with served(old, tmp_path) as urls:
        run(CLIENT, urls["tcp"], old, tmp_path)
        done = subprocess.run(
            [sys.executable, "-m", "penstock", "push", "later", "hello", "-u", urls["tcp"]],
            env=earlier.environment(old), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    with penstock.open(tmp_path / "data") as ps:
        assert ps.queue("orders").stats().messages == 4
        (delivery,) = ps.queue("later").lease()
        assert delivery.payload == b"hello"
        assert ps.queue("orders").options().lease_seconds == 77
