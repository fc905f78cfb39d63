"""A process that pushes, leases and acknowledges until it is killed, and says what it was told, line by line.

    python -m tests.support.killed DIRECTORY CYCLE

Lines: `pushed ID PAYLOAD`, `leased ID ATTEMPT PAYLOAD`, `acked ID PAYLOAD`, each written after the fact.
"""

from __future__ import annotations

import sys
from itertools import count
from typing import Any

from penstock.client.handles import Penstock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session

QUEUE = "mail"


def run(directory: str, cycle: str) -> None:
    """Work until killed."""
    ps = Penstock(BlockingSession(Session(directory, journal_file_bytes=1 << 16)))
    rules: dict[str, Any] = {"max_attempts": 100, "backoff_base_seconds": 0.0, "lease_seconds": 0.05}
    queue = ps.create_queue(QUEUE, exist_ok=True, partitions=3, **rules)
    for number in count():
        payloads = [f"{cycle}-{number}-{item}".encode() for item in range(5)]
        for payload, id in zip(payloads, queue.push_many(payloads).ids, strict=True):
            say("pushed", id, payload.decode())
        id = queue.push(b"%s-%d-one" % (cycle.encode(), number))
        say("pushed", id, f"{cycle}-{number}-one")
        for delivery in queue.lease(max=6, lease_seconds=30):
            say("leased", delivery.id, delivery.attempt, delivery.payload.decode())
            if delivery.offset % 5:
                delivery.ack()
                say("acked", delivery.id, delivery.payload.decode())
            else:
                delivery.nack(delay=0)


def say(*words: object) -> None:
    """One line, at once: the next moment may be the last."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2])
