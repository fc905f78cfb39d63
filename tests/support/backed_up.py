"""A process that pushes, leases and acknowledges, and takes one backup after the other, until it is killed.

    python -m tests.support.backed_up DIRECTORY SET CYCLE

Lines, each written after the fact: `pushed ID PAYLOAD`, `acked ID PAYLOAD`; and before it: `acking ID`. `begun NUMBER`
comes before a backup and `taken MOMENT NUMBER` after it: what was said before `begun` is in that moment.
"""

from __future__ import annotations

import sys
import threading
from itertools import count

from penstock.client.handles import Penstock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session

QUEUE = "mail"
_saying = threading.Lock()


def run(directory: str, place: str, cycle: str) -> None:
    """Work until killed."""
    ps = Penstock(BlockingSession(Session(directory, journal_file_bytes=1 << 16)))
    queue = ps.create_queue(QUEUE, exist_ok=True, partitions=3, retention_messages=2_000)
    threading.Thread(target=back_up, args=(ps, place), daemon=True).start()
    for number in count():
        payloads = [f"{cycle}-{number}-{item}".encode() for item in range(20)]
        for payload, id in zip(payloads, queue.push_many(payloads).ids, strict=True):
            say("pushed", id, payload.decode())
        for delivery in queue.lease(max=10):
            say("acking", delivery.id)  # killed in the middle, nobody knows
            delivery.ack()
            say("acked", delivery.id, delivery.payload.decode())


def back_up(ps: Penstock, place: str) -> None:
    """One after the other."""
    for number in count():
        say("begun", number)
        say("taken", ps.backup(place, keep=3).moment, number)


def say(*words: object) -> None:
    """One line, at once: the next moment may be the last."""
    with _saying:
        sys.stdout.write(" ".join(map(str, words)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    run(*sys.argv[1:4])
