"""The clicks: who produces them, and who consumes them while they come."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import penstock
from penstock import Message

PAGES = ("/", "/search", "/product", "/basket", "/checkout")
BATCH = 100
BEGIN = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)


def clicks(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """What one web server sees in ten minutes: people who look, few who buy, and a crawler."""
    rng = random.Random(seed)
    for number in range(count):
        is_crawler = rng.random() < 0.02
        yield {
            "user": "bot" if is_crawler else f"u{rng.randrange(500)}",
            "page": rng.choices(PAGES, (40, 25, 20, 10, 5))[0],
            "agent": "crawler" if is_crawler else "browser",
            "clicked_at": (BEGIN + timedelta(seconds=600 * number / count)).isoformat(),
        }


def produce(url: str, seed: int, count: int) -> int:
    """Push the clicks of one web server in batches; those of a user stay in order."""
    with penstock.connect(url, client=f"web-{seed}") as ps:
        queue = ps.queue("clicks")
        found = list(clicks(seed, count))
        for first in range(0, count, BATCH):
            queue.push_many([Message(payload=click, key=click["user"]) for click in found[first : first + BATCH]])
    return count


class Recommendations:
    """A service that learns from every click, and wants none of a crawler's."""

    def __init__(self, url: str, expected: int) -> None:
        self._url = url
        self._left = expected
        self._lock = threading.Lock()
        self._done = threading.Event()

    def work(self, name: str) -> tuple[int, int]:
        """Consume until all clicks have been seen; how many were learnt from, and refused."""
        learnt = refused = 0
        with penstock.connect(self._url, client=name) as ps:
            for delivery in ps.queue("clicks").consume(
                group="recommendations", start="earliest", batch=BATCH, stop=self._done
            ):
                if delivery.json()["agent"] == "crawler":
                    delivery.reject("crawlers buy nothing")
                    refused += 1
                else:
                    learnt += 1
                self._count()
        return learnt, refused

    def _count(self) -> None:
        with self._lock:
            self._left -= 1
            if not self._left:
                self._done.set()


def produce_and_consume(url: str, producers: int, each: int) -> dict[str, int]:
    """Some web servers and two instances of the service, all at once."""
    service = Recommendations(url, producers * each)
    with ThreadPoolExecutor() as pool:
        working = [pool.submit(service.work, f"recommendations-{number}") for number in range(2)]
        pushed = sum(pool.map(lambda seed: produce(url, seed, each), range(producers)))
        counts = [future.result() for future in working]
    return {"pushed": pushed, "learnt": sum(row[0] for row in counts), "refused": sum(row[1] for row in counts)}


def windows(url: str) -> list[dict[str, Any]]:
    """What the window pipeline pushed."""
    with penstock.connect(url) as ps:
        return [json.loads(delivery.payload) for delivery in ps.queue("clicks.per_minute").lease(10_000, auto_ack=True)]
