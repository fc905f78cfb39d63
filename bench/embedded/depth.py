"""A deep backlog: what it costs in speed and in memory."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench import fresh, workload
from bench.embedded.leasing import fill, rate_of_leases
from bench.measure import Row, Scale, directory, interleaved
from bench.memory import Above
from bench.workload import BATCH
from penstock import operations as ops
from penstock.client.handles import Penstock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from tests.support.operations import run_operation

DEEP = 10_000_000
SHALLOW = 10_000
DEEPER = 20  # a round of the deep backlog is so much longer, so that every round reads row groups from files


class Backlog:
    """A queue that holds `waiting` messages before each round."""

    def __init__(self, stack: ExitStack, path: Path, waiting: int, *, sealed: bool) -> None:
        self._session = Session(path, durability="os")
        ps = stack.enter_context(Penstock(BlockingSession(self._session)))
        self._queue = ps.queue("mail")
        self._sealed = sealed
        fill(self._queue, workload.cycled(waiting // BATCH))
        self._settle()

    def measure(self, size: int, count: int) -> float:
        rate = rate_of_leases(self._queue, count, size)
        fill(self._queue, workload.cycled(count * size // BATCH))
        self._settle()
        return rate

    def _settle(self) -> None:
        if self._sealed:
            run_operation(self._session, ops.Seal())


def rates(scale: Scale) -> list[Row]:
    """10 k waiting are in memory, 10 M mostly in segments; so both kinds of 10 k are compared."""
    with directory() as place, ExitStack() as stack:
        backlogs = (
            Backlog(stack, place / "deep", scale(DEEP), sealed=True),
            Backlog(stack, place / "shallow", SHALLOW, sealed=False),
            Backlog(stack, place / "sealed", SHALLOW, sealed=True),
        )
        return compared(BATCH, backlogs) + compared(1, backlogs)


def compared(size: int, backlogs: tuple[Backlog, Backlog, Backlog]) -> list[Row]:
    """A round takes half of the shallow backlogs."""
    count = SHALLOW // 2 // size
    deep, *shallow = backlogs
    value, tail, sealed = interleaved(
        partial(deep.measure, size, count * (DEEPER if size > 1 else 1)),
        *(partial(each.measure, size, count) for each in shallow),
    )
    what = f"lease({size}), touch, ack, 10 M waiting"
    return [
        Row(what, value, "msg/s", tail, "10 k waiting, in memory", 0.8 * tail, "80 % of 10 k waiting"),
        Row(what, value, "msg/s", sealed, "10 k waiting, sealed too", 0.8 * sealed, "80 % of 10 k sealed"),
    ]


def memory(scale: Scale) -> list[Row]:
    """Ten million, pushed and sealed."""
    count = scale(DEEP)
    with directory() as place:
        value = fresh.run(memory_of_backlog, str(place), count)
    limit = fresh.run(memory_of_list, count)
    return [Row("10 M waiting: memory", value, "MB", limit, "a list of the payloads", 400, ceiling=True)]


def memory_of_backlog(place: str, count: int) -> float:
    """Runs in a fresh process: memory once they are pushed and sealing has settled."""
    workload.lists()
    above = Above()
    session = Session(place, durability="os")
    fill(Penstock(BlockingSession(session)).queue("mail"), workload.cycled(count // BATCH))
    run_operation(session, ops.Seal())
    return above.megabytes()


def memory_of_list(count: int) -> float:
    """Runs in a fresh process."""
    above = Above()
    kept = [bytes(workload.PAYLOAD_BYTES) for _ in range(count)]
    found = above.megabytes()
    del kept
    return found
