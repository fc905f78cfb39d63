"""A producer and a consumer that count: what was confirmed, what came, what came again after its ack."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Final

import penstock
from penstock.errors import PenstockError

QUEUE: Final = "orders"
PAUSE_SECONDS: Final = 0.005
PATIENCE_SECONDS: Final = 120.0


class Load:
    """Both, each in a thread. Payloads are numbers, so each can be accounted for."""

    def __init__(self, urls: list[str]) -> None:
        self._urls = urls
        self._is_over = threading.Event()
        self._is_produced = threading.Event()  # the last push was answered: it may come after `_is_over`
        self.confirmed: set[int] = set()  # pushes that were answered
        self.tried = 0
        self.delivered: set[int] = set()
        self.acked: set[int] = set()
        self.after_ack = 0
        self.confirmed_at = time.monotonic()  # the last one
        self.longest_seconds = 0.0  # without a confirmed push
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._produce, self._consume)]

    def start(self) -> None:
        with self._connected() as ps:
            ps.create_queue(QUEUE, exist_ok=True, max_attempts=1_000, backoff_base_seconds=0.0)
        self.confirmed_at = time.monotonic()
        for thread in self._threads:
            thread.start()

    def finish(self) -> dict[str, int]:
        """Stop the producer, let the consumer finish, and count."""
        self._is_over.set()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
        with self._connected() as ps:
            stored = [int(_bytes(message.payload)) for message in _everything(ps)]
        return {
            "confirmed": len(self.confirmed),
            "lost": len(self.confirmed - set(stored)) + len(self.confirmed - self.delivered),
            "doubled": len(stored) - len(set(stored)),
            "delivered_after_ack": self.after_ack,
        }

    def _produce(self) -> None:
        try:
            self._push_until_over()
        finally:
            self._is_produced.set()

    def _push_until_over(self) -> None:
        with self._connected() as ps:
            queue = ps.queue(QUEUE)
            while not self._is_over.is_set():
                number = self.tried
                self.tried += 1
                with suppress(PenstockError):  # not confirmed: it may be there or not
                    queue.push(b"%d" % number)
                    now = time.monotonic()
                    self.longest_seconds = max(self.longest_seconds, now - self.confirmed_at)
                    self.confirmed_at = now
                    self.confirmed.add(number)
                self._is_over.wait(PAUSE_SECONDS)

    def _consume(self) -> None:
        with self._connected() as ps:
            queue = ps.queue(QUEUE)
            while not (self._is_produced.is_set() and self.confirmed <= self.delivered):
                with suppress(PenstockError):
                    for delivery in queue.lease(100, wait=0.2):
                        number = int(_bytes(delivery.payload))
                        self.after_ack += number in self.acked
                        self.delivered.add(number)
                        delivery.ack()
                        self.acked.add(number)

    def _connected(self) -> penstock.Penstock:
        return penstock.connect(self._urls, timeout=PATIENCE_SECONDS, connect_seconds=PATIENCE_SECONDS)


def _everything(ps: penstock.Penstock) -> list[penstock.Message]:
    found: list[penstock.Message] = []
    while page := ps.queue(QUEUE).read(offset=len(found), limit=10_000):
        found += page
    return found


def _bytes(payload: object) -> bytes:
    assert isinstance(payload, bytes)
    return payload
