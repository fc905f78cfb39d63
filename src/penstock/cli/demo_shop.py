"""`penstock demo --dashboard`: a broker with a small shop in it, so that every page of the dashboard is alive.

Orders arrive all the time; payments without a currency fail and become dead letters; one group lags behind; one queue
is paused; mails fail now and then; a report is a workflow. The broker and the worker are processes of their own.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import penstock
from penstock.cli import output
from penstock.cli.dashboard import new_link
from penstock.cli.target import CLIENT

app = penstock.App("penstock://127.0.0.1:7710")  # `run` moves it to the real address

ORDERS: Final = "shop.orders"
PAYMENTS: Final = "shop.payments"
COUNTRIES: Final = ("de", "fr", "it", "nl", "pl", "se")


@app.task(queue="mail", max_attempts=3, timeout=10)
def send_mail(to: str, template: str) -> str:
    """Sends nothing; fails for addresses that bounce."""
    time.sleep(random.uniform(0.02, 0.2))
    if to.startswith("bounce"):
        raise ConnectionError(f"550 no such mailbox: {to}")
    return f"250 queued as {random.getrandbits(32):08x}"


@app.task(queue="reports")
def extract(country: str) -> int:
    """The first step of the report."""
    time.sleep(random.uniform(0.2, 1.2))
    return random.randrange(1_000, 9_000)


@app.task(queue="reports")
def convert(country: str) -> float:
    """The second step, for one country."""
    time.sleep(random.uniform(0.1, 0.6))
    return random.random()


@app.task(queue="reports")
def publish() -> str:
    """The last step: waits for every country."""
    time.sleep(0.2)
    return "published"


@app.task(queue="reports", cron="*/2 * * * *")
def refresh_prices() -> None:
    """Runs every two minutes."""
    time.sleep(0.3)


class Shop:
    """Producers and consumers, each in a thread with a connection of its own."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stopping = threading.Event()
        works = (self._order, self._pay, self._ship, self._enqueue)
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in works]

    def start(self) -> None:
        """Make the queues and begin."""
        with penstock.connect(self._url) as ps:
            ps.create_queue(ORDERS, partitions=4, exist_ok=True)
            ps.create_queue(PAYMENTS, ordering="key", max_attempts=3, backoff_base_seconds=0.5, exist_ok=True)
            ps.create_queue("shop.returns", exist_ok=True)
            with contextlib.suppress(penstock.PenstockError):
                ps.queue(ORDERS).create_group("analytics", start="earliest")
            ps.queue("warehouse.import").push_many([{"sku": number} for number in range(40)])
            ps.queue("warehouse.import").pause()
            ps.queue("newsletter").push({"issue": 12}, delay=3600)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _run(self, work: Any) -> None:
        with penstock.connect(self._url) as ps:
            while not self._stopping.is_set():
                with contextlib.suppress(penstock.PenstockError):  # a broker that is being restarted, say
                    work(ps)

    def _order(self, ps: penstock.Penstock) -> None:
        orders = [_new_order() for _ in range(random.randrange(1, 30))]
        ps.queue(ORDERS).push_many(orders)
        self._stopping.wait(random.uniform(0.1, 0.5))

    def _enqueue(self, ps: penstock.Penstock) -> None:
        name = random.choice(("ann", "bo", "chen", "dana", "bounce-7"))
        send_mail.enqueue(f"{name}@example.com", template="receipt")
        if random.random() < 0.03:
            steps = [convert.options(depends_on=[extract.enqueue(country)]).enqueue(country) for country in COUNTRIES]
            publish.options(depends_on=steps).enqueue()
        self._stopping.wait(random.uniform(0.1, 0.6))

    def _pay(self, ps: penstock.Penstock) -> None:
        for delivery in ps.queue(ORDERS).lease(max=50, wait=1, consumer="checkout"):
            order = delivery.json()
            ps.queue(PAYMENTS).push({**order, "paid": False}, key=order["customer"])
            delivery.ack()

    def _ship(self, ps: penstock.Penstock) -> None:
        for delivery in ps.queue(PAYMENTS).lease(max=20, wait=1, consumer="bank"):
            order = delivery.json()
            if order["currency"] is None:
                delivery.nack(error=f"TypeError: unsupported currency None in order {order['order']}")
            else:
                delivery.ack()
            self._stopping.wait(0.01)


def _new_order() -> dict[str, Any]:
    number = random.randrange(100_000)
    currency = None if number % 40 == 0 else random.choice(("EUR", "EUR", "SEK", "PLN"))
    items = [{"sku": random.randrange(500), "count": random.randrange(1, 4)} for _ in range(random.randrange(1, 4))]
    return {"order": number, "customer": f"c-{number % 97}", "currency": currency, "items": items}


@contextlib.contextmanager
def _child(*words: str, log: Path) -> Iterator[subprocess.Popen[str]]:
    """A `penstock` command as a process; it is asked to stop at the end."""
    command = [sys.executable, "-m", "penstock", *words]
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)  # noqa: S603
    try:
        yield process
    finally:
        process.terminate()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def run(where: Path, seconds: float | None) -> None:
    """Start the broker, the worker and the shop; go on until Ctrl-C, or for `seconds`."""
    ports = ("--tcp-port", "0", "--http-port", "0", "--grpc-port", "off")
    serve = ("serve", "--json", "--data", str(where / "data"), *ports)
    with _child(*serve, log=where / "broker.log") as broker:
        assert broker.stdout is not None
        line = broker.stdout.readline()
        if not line:
            raise penstock.Unavailable(f"the broker did not start: see {where / 'broker.log'}")
        urls = {name: address["url"] for name, address in json.loads(line)["addresses"].items()}
        app.move(urls["tcp"])
        worker = ("worker", "penstock.cli.demo_shop:app", "--url", urls["tcp"], "--concurrency", "4")
        with _child(*worker, log=where / "worker.log"):
            shop = Shop(urls["tcp"])
            shop.start()
            try:
                link = new_link(urls["http"], CLIENT)
                output.write(f"The dashboard; the link works once, within 10 minutes:\n\n  {link}\n")
                output.write(f"[dim]Data and logs are in {where}. Ctrl-C stops it.[/]")
                with contextlib.suppress(KeyboardInterrupt):
                    threading.Event().wait(seconds)
            finally:
                shop.stop()
                app.close()
