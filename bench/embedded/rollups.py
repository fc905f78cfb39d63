"""What the history of the counters costs: the recorder's share of a core while 100,000 messages a second pass."""

from __future__ import annotations

from time import thread_time

from bench.measure import Row, Scale
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session

MESSAGES_PER_SECOND = 100_000
SHARE_MAX = 1.0  # % of a core
SECONDS = 130  # two full minutes, with their roll-up


def cpu_share(scale: Scale) -> list[Row]:
    """Time that the recorder's own thread uses per second, over all queues that are busy."""
    return [_row(queues, scale) for queues in (10, 1_000)]


def _row(queues: int, scale: Scale) -> Row:
    clock = ManualClock(1_800_014_400_000_000)
    session = Session(None, durability="os", clock=clock, background=False)
    used, seconds = 0.0, max(61, scale(SECONDS))
    payloads = [b"%0100d" % number for number in range(MESSAGES_PER_SECOND // queues)]
    with Penstock(BlockingSession(session)) as ps:
        handles = [ps.queue(f"q{number}") for number in range(queues)]
        session.recorder.tick()
        for second in range(seconds):
            for queue in handles:
                queue.push_many(payloads)
                queue.lease(len(payloads)).ack()
                session.meter.leased(queue.name, "default", 1, 0.001 * (1 + second % 7))
            clock.advance(seconds=1)
            began = thread_time()
            session.recorder.tick()
            used += thread_time() - began
    what = f"history of {queues:,} busy queues"
    return Row(what, used / seconds * 100, "% of a core", floor=SHARE_MAX, floor_what="issue 14", ceiling=True)
