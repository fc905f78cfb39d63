"""The ways in which the behavioural suite reaches Penstock.

A way opens a system for a test and knows the few things that a test cannot say in the public language: ending the
process without a farewell, sealing what was pushed, letting the housekeeper have its turn, settling with a receipt that
travelled as text. Another journal or protocol joins the suite by one more class here and its name in `WAYS`.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from penstock import Penstock, connect, validation
from penstock import operations as ops
from penstock.clock import ManualClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session, segments_at
from penstock.model import Outcome, Receipt
from penstock.postgres.store import PostgresStore
from penstock.storage.disk import Disk
from tests.behaviour.accounts import check_accounts
from tests.support.brokers import BrokerThread
from tests.support.dose import NIGHTLY
from tests.support.forgetful import ForgetfulDisk
from tests.support.operations import run_operation

JOURNAL_FILE_BYTES = 1 << 17


class Way:
    """An embedded system whose journal is in memory."""

    lasts = False  # whether it can be opened again

    def __init__(self, directory: Path, clock: ManualClock) -> None:
        self.directory = directory
        self.clock = clock
        self.opened: list[Session] = []

    def start(self) -> Penstock:
        self.opened.append(self.make())
        return Penstock(BlockingSession(self.session))

    def make(self) -> Session:
        return Session(None, durability="os", **self.arguments())

    def arguments(self) -> dict[str, Any]:
        return {"clock": self.clock, "rng": random.Random(1), "background": False}

    @property
    def session(self) -> Session:
        return self.opened[-1]

    def restart(self) -> Penstock:
        """Stop cleanly and open again."""
        self.session.close()
        return self.start()

    def crash(self) -> Penstock:
        """End without a farewell and open what is left."""
        raise AssertionError("memory does not survive")

    def stop(self) -> None:
        """The end of a test; the accounts must add up."""
        if not self.session.shard.is_closed:
            check_accounts(self.session)
        for session in self.opened:
            session.close()

    def seal(self) -> None:
        """Move everything pushed so far into segments."""
        run_operation(self.session, ops.Seal())

    def let_time_happen(self) -> None:
        """What the timekeeper does while nobody calls."""
        self.session.timekeeper.tick()

    def keep_house(self) -> None:
        """What the storekeeper does by itself every few seconds."""
        assert self.session.keeper is not None
        self.session.keeper.tick()

    def settle(self, receipts: Sequence[str], outcome: Outcome = Outcome.ACKED) -> None:
        """Settle with receipts that travelled as text."""
        proofs = [Receipt.parse(receipt) for receipt in receipts]
        self.session.confirm(self.session.settle(proofs, validation.settling(outcome)))


class FileWay(Way):
    """A directory on the real disk."""

    lasts = True

    def make(self) -> Session:
        return Session(self.directory, journal_file_bytes=JOURNAL_FILE_BYTES, **self.arguments())

    def crash(self) -> Penstock:
        # What a killed process had written is what a copy of its directory holds.
        copy = self.directory.with_name(f"{self.directory.name}-{len(self.opened)}")
        shutil.copytree(self.directory, copy, ignore=shutil.ignore_patterns("*.tmp"))
        self.directory = copy
        return self.start()


class ForgetfulWay(Way):
    """A disk that loses what was not synced when the power goes."""

    lasts = True

    def __init__(self, directory: Path, clock: ManualClock) -> None:
        super().__init__(directory, clock)
        self.disk = ForgetfulDisk(seed=7)

    def make(self) -> Session:
        disk: Disk = self.disk
        return Session(None, disk=disk, journal_file_bytes=JOURNAL_FILE_BYTES, **self.arguments())

    def crash(self) -> Penstock:
        self.disk = self.disk.crash()
        self.session.shard.is_closed = True
        return self.start()


class SealedWay(ForgetfulWay):
    """As `ForgetfulWay`, with every message in a Parquet segment before anyone reads it; nightly in another place."""

    def make(self) -> Session:
        disk: Disk = self.disk
        arguments = self.arguments()
        if NIGHTLY:
            arguments["segments"] = segments_at(self.directory / "elsewhere")
        return SealingSession(None, disk=disk, journal_file_bytes=JOURNAL_FILE_BYTES, **arguments)


class SealingSession(Session):
    """Seals after everything that may have pushed something."""

    def __init__(self, path: None, **arguments: Any) -> None:
        super().__init__(path, **arguments)
        push_one, settle, settle_lease = self.push_one, self.settle, self.settle_lease
        self.push_one = lambda *call: self._sealed(push_one, *call)
        self.settle = lambda *call: self._sealed(settle, *call)
        self.settle_lease = lambda *call: self._sealed(settle_lease, *call)

    def push(self, *call: Any) -> Any:
        return self._sealed(super().push, *call)

    def transact(self, *call: Any) -> Any:
        return self._sealed(super().transact, *call)

    def run(self, operation: ops.Operation[Any], *call: Any) -> Any:
        if isinstance(operation, ops.SubmitTasks | ops.FinishTasks):
            return self._sealed(super().run, operation, *call)
        return super().run(operation, *call)

    def _sealed(self, call: Callable[..., Any], *arguments: Any) -> Any:
        pushed = self._pushed()
        answer = call(*arguments)
        if self._pushed() != pushed:
            super().run(ops.Seal())
        return answer

    def _pushed(self) -> int:
        """How many messages there are in all queues, dead letters too."""
        return sum(p.end for queue in self.shard.core.queues.values() for p in queue.partitions)


class PostgresWay(Way):
    """A shard in PostgreSQL."""

    lasts = True
    url = ""

    def __init__(self, directory: Path, clock: ManualClock) -> None:
        super().__init__(directory, clock)
        self.stores: list[PostgresStore] = []

    def make(self) -> Session:
        # One node: it takes the shard over from itself, as after a crash.
        store = PostgresStore(self.url, node="test", file_bytes=JOURNAL_FILE_BYTES, directory=self.directory)
        self.stores.append(store)
        return Session(None, store=store, **self.arguments())

    def crash(self) -> Penstock:
        self.session.shard.is_closed = True
        self.stores[-1].links.close()
        return self.start()


class BrokerWay(Way):
    """A broker on a socket; `session` is the broker's own."""

    protocol: str

    def __init__(self, directory: Path, clock: ManualClock) -> None:
        super().__init__(directory, clock)
        self.brokers: list[BrokerThread] = []
        self.clients: list[Penstock] = []

    def start(self) -> Penstock:
        self.opened.append(self.make())
        self.brokers.append(BrokerThread(self.session, protocol=self.protocol))
        self.clients.append(connect(self.brokers[-1].url, rate_limit_seconds=0))
        return self.clients[-1]

    def restart(self) -> Penstock:
        self.brokers[-1].stop()
        return super().restart()

    def stop(self) -> None:
        for client in self.clients:
            client.close()
        for broker in self.brokers:
            broker.stop()
        super().stop()


class TcpWay(BrokerWay, FileWay):
    """Over TCP, on a directory of the real disk."""

    protocol = "penstock"


class HttpWay(BrokerWay, ForgetfulWay):
    """Over HTTP, on a disk in memory: what is on a real one is seen over TCP."""

    protocol = "http"


WAYS: dict[str, type[Way]] = {
    "memory": Way,
    "file": FileWay,
    "sealed": SealedWay,
    "forgetful": ForgetfulWay,
    "tcp": TcpWay,
    "http": HttpWay,
    "postgres": PostgresWay,
}
