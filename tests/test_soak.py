"""A broker at work for a while, with kills, cut connections and paused queues: it keeps its promises and its size."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import NamedTuple

import pytest

import penstock
from tests.support import crowd
from tests.support.crowd import JOBS, Crowd
from tests.support.dose import dose
from tests.support.recorded import Record, problems
from tests.support.restarting import Restarting
from tests.support.served import Served
from tests.support.wire import Wire

SEEDS = dose(ci=1, nightly=60)
ROUNDS = dose(ci=4, nightly=40)
OPERATIONS = 1500  # of a round, in all
# What may come and go; what is lost for good in every round is more than that in the end.
SPARE_FILES, SPARE_THREADS, SPARE_BYTES = 60, 10, 150 << 20


class Size(NamedTuple):
    """What a broker takes from its machine."""

    files: int
    threads: int
    bytes: int


def size_of(served: Served) -> Size:
    process = Path(f"/proc/{served.process.pid}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text(encoding="ascii").splitlines())
    return Size(len(os.listdir(process / "fd")), int(status["Threads"]), int(status["VmRSS"].split()[0]) * 1024)


def trouble(ps: penstock.Penstock, wire: Wire, record: Record) -> None:
    """One round: work, cut wires, work, a pause, work."""
    record.until(more=OPERATIONS // 3)
    wire.cut()
    record.until(more=OPERATIONS // 3)
    ps.queue(JOBS).pause()
    record.until(more=OPERATIONS // 10)
    ps.queue(JOBS).resume()
    record.until(more=OPERATIONS // 3)
    with record.doing("watcher", "stats", drained=False) as row:
        row.result = ps.queue(JOBS).stats()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_broker_in_trouble_keeps_its_promises_and_its_size(tmp_path, seed):
    rng = random.Random(seed)
    record = crowd.record()
    with Restarting(tmp_path, rng) as broker, Wire(broker) as wire:
        crowd.prepare(broker.url)
        people = Crowd(wire, record)
        people.start()
        first: Size | None = None
        with penstock.connect(broker.url, timeout=60) as ps:
            for number in range(ROUNDS):
                trouble(ps, wire, record)
                now = size_of(broker.served)
                first = first or now
                assert now.files <= first.files + SPARE_FILES
                assert now.threads <= first.threads + SPARE_THREADS
                assert now.bytes <= first.bytes + SPARE_BYTES
                if number == 0 or rng.random() < 0.1:
                    broker.kill()
                    broker.start()
                    first = None
        people.stop()
        broker.kill()
        broker.start()
        crowd.drain(broker.url, record)
        assert broker.stop() == 0

    assert problems(record.history, crowd.one_result) == []
