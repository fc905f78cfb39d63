"""`penstock demo --dashboard`: a broker with a small shop in it, so that every page of the dashboard is alive.

Orders arrive all the time, each with a trace of its own. Payments without a currency and cards of one bank fail and
become dead letters; one carrier is slow, so its key waits; the group `analytics` lags behind; nobody reads `crm.sync`;
one queue is paused; mails bounce now and then; a report is a workflow; a redrive waits after its canary. Where
Spark is installed, a pipeline runs once.
Broker and worker are processes of their own.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import penstock
from penstock.cli import output
from penstock.cli.dashboard import new_link, warn_if_not_built
from penstock.cli.target import CLIENT

app = penstock.App("penstock://127.0.0.1:7710")  # `run` moves it to the real address

ORDERS: Final = "shop.orders"
PAYMENTS: Final = "shop.payments"
SHIPMENTS: Final = "shop.shipments"
COUNTRIES: Final = ("de", "fr", "it", "nl", "pl", "se")
BANKS: Final = ("Rhinebank", "Harbour Credit", "Northbank")
CARRIERS: Final = ("swift", "swift", "swift", "parcel-one", "parcel-one", "snail")
SLOW_CARRIER: Final = "snail"
PIPELINE_AFTER_SECONDS: Final = 20.0
REDRIVE_AFTER_SECONDS: Final = 5.0
CANARY: Final = 5
CUSTOMERS: Final = ("ann", "bo", "chen", "dana", "emre", "bounce-7")


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
    time.sleep(random.uniform(0.2, 0.9))
    return random.randrange(1_000, 9_000)


@app.task(queue="reports", max_attempts=1)
def convert(rows: int, country: str) -> float:
    """The second step, for one country; now and then a rate is missing."""
    time.sleep(random.uniform(0.1, 1.4))
    if country == "pl" and random.random() < 0.25:
        raise LookupError(f"no exchange rate for PLN among {rows} rows")
    return rows * random.random()


@app.task(queue="reports")
def merge(parts: list[float]) -> float:
    """Waits for every country."""
    time.sleep(0.3)
    return sum(parts)


@app.task(queue="reports")
def publish(total: float) -> str:
    """The last step."""
    time.sleep(0.2)
    return f"published {total:.2f}"


@app.task(queue="reports", cron="*/2 * * * *")
def refresh_prices() -> None:
    """Runs every two minutes."""
    time.sleep(0.3)


@app.task(queue="reports")
def close_books(region: str = "eu") -> None:
    """For the schedules."""
    time.sleep(0.5)


def _report() -> None:
    """One workflow: two steps for each country, then what needs them all."""
    report = penstock.graph()
    for country in COUNTRIES:
        report.add(f"extract {country}", extract.s(country))
        report.add(f"convert {country}", convert.s(country=country), after=f"extract {country}")
    report.add("merge", merge.s(), after=[f"convert {country}" for country in COUNTRIES])
    report.add("publish", publish.s(), after="merge")
    report.enqueue()


class Shop:
    """Producers and consumers, each in a thread with a connection of its own."""

    def __init__(self, url: str, where: Path) -> None:
        self._url, self._where = url, where
        self._stopping = threading.Event()
        works: dict[str, Callable[[penstock.Penstock], None]] = {
            "storefront": self._order,
            "checkout": self._pay,
            "bank": self._charge,
            **{f"warehouse-{number}": self._ship for number in range(1, 5)},
            "analytics": self._analyse,
            "office": self._enqueue,
        }
        self._threads = [threading.Thread(target=self._run, args=item, name=item[0]) for item in works.items()]
        self._threads.append(threading.Thread(target=self._roll_up, name="roll-up"))
        self._threads.append(threading.Thread(target=self._redrive, name="operator"))

    def start(self) -> None:
        """Make the queues and begin."""
        with penstock.connect(self._url) as ps:
            ps.create_queue(ORDERS, partitions=4, exist_ok=True)
            ps.create_queue(PAYMENTS, ordering="key", max_attempts=3, backoff_base_seconds=0.5, exist_ok=True)
            ps.create_queue(SHIPMENTS, key_max_in_flight=2, exist_ok=True)
            ps.create_queue("shop.returns", exist_ok=True)
            with contextlib.suppress(penstock.PenstockError):
                ps.queue(ORDERS).create_group("analytics", start="earliest")
            ps.queue("warehouse.import").push_many([{"sku": number} for number in range(40)])
            ps.queue("warehouse.import").pause()
            ps.queue("newsletter").push({"issue": 12}, delay=3600)
        app.schedule("close-books", "0 3 * * *", close_books.s("eu"), timezone="Europe/Berlin")
        app.schedule("weekly-digest", "30 9 * * 1", close_books.s("us"), timezone="America/New_York")
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _run(self, name: str, work: Callable[[penstock.Penstock], None]) -> None:
        with penstock.connect(self._url, client=name) as ps:
            while not self._stopping.is_set():
                with contextlib.suppress(penstock.PenstockError):  # a broker that is being restarted, say
                    work(ps)

    def _order(self, ps: penstock.Penstock) -> None:
        """More of them in some minutes than in others."""
        busy = 1 + (int(time.time()) // 40) % 3
        for _ in range(random.randrange(2, 5 * busy)):
            ps.queue(ORDERS).push(_new_order(), trace=_new_trace())
        self._stopping.wait(random.uniform(0.2, 0.5))

    def _enqueue(self, ps: penstock.Penstock) -> None:
        send_mail.enqueue(f"{random.choice(CUSTOMERS)}@example.com", template="receipt")
        if random.random() < 0.06:
            _report()
        if random.random() < 0.2:
            ps.queue("crm.sync").push({"customer": random.choice(CUSTOMERS)})
        self._stopping.wait(random.uniform(0.3, 1.0))

    def _pay(self, ps: penstock.Penstock) -> None:
        for delivery in ps.queue(ORDERS).lease(max=50, wait=1, consumer="checkout"):
            order = delivery.json()
            ps.queue(PAYMENTS).push({**order, "paid": False}, key=order["customer"], trace=delivery.trace)
            if random.random() < 0.1:
                to = f"{random.choice(CUSTOMERS)}@example.com"
                send_mail.options(trace=delivery.trace).enqueue(to, template="order")
            delivery.ack()

    def _charge(self, ps: penstock.Penstock) -> None:
        for delivery in ps.queue(PAYMENTS).lease(max=20, wait=1, consumer="bank"):
            order = delivery.json()
            if order["currency"] is None:
                delivery.nack(error=f"TypeError: unsupported currency None in order {order['order']}")
            elif order["bank"] == "Northbank" and order["order"] % 5 == 0:
                delivery.nack(error=f"BankError: 402 the card {order['order']:06d} of Northbank has expired")
            else:
                carrier = random.choice(CARRIERS)
                shipment = {"order": order["order"], "carrier": carrier, "items": order["items"]}
                ps.queue(SHIPMENTS).push(shipment, key=carrier, trace=delivery.trace)
                delivery.ack()

    def _ship(self, ps: penstock.Penstock) -> None:
        """Ships at once, but waits for the slow carrier: at most two at a time do, which is the limit of a key."""
        name = threading.current_thread().name
        for delivery in ps.queue(SHIPMENTS).lease(max=1, wait=1, consumer=name):
            if delivery.key == SLOW_CARRIER:
                self._stopping.wait(1.5)
            delivery.ack()

    def _analyse(self, ps: penstock.Penstock) -> None:
        """Slower than orders arrive."""
        for delivery in ps.queue(ORDERS).lease(max=6, wait=1, group="analytics", consumer="analytics"):
            delivery.ack()
        self._stopping.wait(0.6)

    def _redrive(self) -> None:
        """Try a redrive with a few dead letters; it waits for somebody to continue it."""
        with penstock.connect(self._url, client="operator") as ps:
            while not self._stopping.wait(REDRIVE_AFTER_SECONDS):
                with contextlib.suppress(penstock.PenstockError):
                    letters = ps.queue(PAYMENTS).dlq
                    if letters.begin_redrive(error_contains="currency", dry_run=True).matched > CANARY:
                        letters.begin_redrive(error_contains="currency", edit={"currency": "EUR"}, canary=CANARY)
                        return

    def _roll_up(self) -> None:
        """Run a pipeline once, when there is something to count. Without Spark its page says how to run one."""
        if not _has_spark() or self._stopping.wait(PIPELINE_AFTER_SECONDS):
            return
        queues = [word for queue in (ORDERS, PAYMENTS, SHIPMENTS) for word in ("--queue", queue)]
        places = ("--url", self._url, "--out", str(self._where / "rollup"), "--master", "local[1]")
        with _child("pipeline", "run", "rollup", *queues, *places, log=self._where / "pipeline.log") as pipeline:
            while pipeline.poll() is None and not self._stopping.wait(0.5):
                pass


def _has_spark() -> bool:
    return importlib.util.find_spec("pyspark") is not None and shutil.which("java") is not None


def _new_trace() -> str:
    return f"00-{random.getrandbits(128):032x}-{random.getrandbits(64):016x}-01"


def _new_order() -> dict[str, Any]:
    number = random.randrange(100_000)
    currency = None if number % 40 == 0 else random.choice(("EUR", "EUR", "SEK", "PLN"))
    items = [{"sku": random.randrange(500), "count": random.randrange(1, 4)} for _ in range(random.randrange(1, 4))]
    about = {"currency": currency, "bank": random.choice(BANKS), "country": random.choice(COUNTRIES)}
    return {"order": number, "customer": f"c-{number % 97}", **about, "items": items}


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
    """Start the broker, the worker and the shop; go on until Ctrl-C or SIGTERM, or for `seconds`."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # or broker and worker would be left behind
    ports = ("--tcp-port", "0", "--http-port", "0", "--grpc-port", "off")
    label = ("--dashboard-environment", "demo", "--dashboard-color", "blue")
    serve = ("serve", "--json", "--data", str(where / "data"), *ports, *label)
    with _child(*serve, log=where / "broker.log") as broker:
        assert broker.stdout is not None
        line = broker.stdout.readline()
        if not line:
            raise penstock.Unavailable(f"the broker did not start: see {where / 'broker.log'}")
        urls = {name: address["url"] for name, address in json.loads(line)["addresses"].items()}
        app.move(urls["tcp"])
        worker = ("worker", "penstock.cli.demo_shop:app", "--url", urls["tcp"], "--concurrency", "4")
        with _child(*worker, log=where / "worker.log"):
            shop = Shop(urls["tcp"], where)
            shop.start()
            try:
                link = new_link(urls["http"], CLIENT)
                warn_if_not_built(urls["http"], CLIENT)
                output.write(f"The dashboard; the link works once, within 10 minutes:\n\n  {link}\n")
                output.write(f"[dim]Data and logs are in {where}. Ctrl-C stops it.[/]")
                with contextlib.suppress(KeyboardInterrupt):
                    threading.Event().wait(seconds)
            finally:
                shop.stop()
                app.close()
